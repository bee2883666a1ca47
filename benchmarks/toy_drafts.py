"""Drafts made from a target: useless ones, its own first layers, one as large as itself."""

import copy
import math
import time

import torch
from common import bare_steps
from transformers import AutoModelForCausalLM

BATCH, CONTEXT, RATE = 4, 256, 1e-3  # of the distillation: texts per step, tokens of each, learning rate


def random_draft(target, layers: int):
    """The target's config with fewer layers, and fresh weights."""
    torch.manual_seed(0)
    config = shortened(target.config, layers)
    return AutoModelForCausalLM.from_config(config).to(target.device, target.dtype).eval()


def constant_draft(target, token: int, layers: int):
    """Says one token whatever it has read, and is sure of it."""
    config = shortened(target.config, layers)
    config.tie_word_embeddings = False
    draft = AutoModelForCausalLM.from_config(config).to(target.device, target.dtype).eval()
    with torch.no_grad():
        for name, weight in draft.named_parameters():  # every hidden state is a row of ones
            weight.fill_(float("norm" in name or "embed" in name))
        draft.get_output_embeddings().weight[token] = 100 / config.hidden_size
    return draft


def noisy_copy(target, noise: float):
    """As large as the target; `noise`: added to each weight matrix, in its standard deviations."""
    draft = copy.deepcopy(target)
    generator = torch.Generator(target.device).manual_seed(1)
    with torch.no_grad():
        for weight in draft.parameters():
            if weight.dim() >= 2:
                added = torch.randn(weight.shape, generator=generator, device=weight.device, dtype=torch.float32)
                weight.add_((added * weight.float().std() * noise).to(weight.dtype))
    return draft


def part_of(target, layers: list[int]):
    """Some of the target's layers, its norm and its head. The first ones: an early exit."""
    draft = copy.deepcopy(target)
    draft.config = draft.base_model.config = shortened(target.config, len(layers))
    draft.base_model.layers = torch.nn.ModuleList(draft.base_model.layers[i] for i in layers)
    for place, layer in enumerate(draft.base_model.layers):
        layer.self_attn.layer_idx = place
    return draft


def shortened(config, layers: int):
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = config.layer_types[:layers]
    return config


@torch.no_grad()
def agreement(target, draft, texts: list[torch.Tensor], prompts: list[int]) -> tuple[float, float]:
    """How often the greedy tokens are the same, and the mean of 1 - TV(p, q): what a sampled token is accepted with.

    Args:
        texts: int64 `[length]` each. prompts: how much of each was read, not written.
    """
    same, overlap, count = 0.0, 0.0, 0
    for text, start in zip(texts, prompts, strict=True):
        p, q = (model(input_ids=text[None]).logits[0, start - 1 : -1].float() for model in (target, draft))
        same += (p.argmax(-1) == q.argmax(-1)).sum().item()
        overlap += torch.minimum(p.softmax(-1), q.softmax(-1)).sum().item()
        count += len(p)
    return same / count, overlap / count


def speedup(accepted: float, cost: float, position: float, longest: int = 8) -> tuple[float, int]:
    """The best of E(K) / T(K) and its K (0: no drafts), in plain steps, with one acceptance for all positions.

    Args:
        cost: of a draft's step. position: of one more position in a target's step.
    """

    def gain(k: int) -> float:
        tokens = k + 1 if accepted == 1 else (1 - accepted ** (k + 1)) / (1 - accepted)
        return tokens / (1 + position * k + cost * k)

    best = max(range(longest + 1), key=gain)
    return gain(best), best


def best_exit(target, texts: list[torch.Tensor], prompts: list[int]) -> int:
    """How many layers make the fastest early exit, greedily, as they are. Prints what was tried."""
    ids = texts[0][None]
    steps = bare_steps(target, ids, [1, 5])
    position = (steps[5] / steps[1] - 1) / 4
    found = {}
    for layers in [n for n in (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28) if n < target.config.num_hidden_layers]:
        draft = part_of(target, list(range(layers)))
        same, overlap = agreement(target, draft, texts, prompts)
        cost = bare_steps(draft, ids, [1])[1] / steps[1]
        found[layers], k = speedup(same, cost, position)
        print(
            f"early exit after {layers:2}: greedy {same:.0%}, sampled {overlap:.0%}, {cost:.2f} of a step, "
            f"{found[layers]:.2f}x plain at best (K = {k})",
            flush=True,
        )
    return max(found, key=found.get)


def distil(draft, target, texts: list[torch.Tensor], prompts: list[int], minutes: float) -> None:
    """Teach the draft the target's next-token distribution where texts were written (forward KL); embeddings and head
    stay as they are.

    What the target makes of a text is computed once, as the input of its head: its logits are a product away.
    """
    head = target.get_output_embeddings()
    with torch.no_grad():
        read = [target.base_model(input_ids=text[None]).last_hidden_state[0] for text in texts]
    wanted = [hidden[start - 1 : -1] for hidden, start in zip(read, prompts, strict=True)]
    learner = draft.base_model.float().train()
    for name, weight in learner.named_parameters():
        weight.requires_grad_("embed" not in name)
    weights = [weight for weight in learner.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=RATE, betas=(0.9, 0.95), weight_decay=0.01)
    draw = torch.Generator().manual_seed(0)
    start, step, average = time.perf_counter(), 0, None
    while (done := (time.perf_counter() - start) / 60 / minutes) < 1:
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))
        chosen = torch.randint(len(texts), (BATCH,), generator=draw).tolist()
        ids, written = blocks([texts[i] for i in chosen], [len(wanted[i]) for i in chosen])
        with torch.autocast(target.device.type, dtype=torch.bfloat16):
            logits = head(learner(input_ids=ids).last_hidden_state[written].to(head.weight.dtype))
            with torch.no_grad():
                truth = head(torch.cat([wanted[i] for i in chosen])).float().log_softmax(-1)
        learned = logits.float().log_softmax(-1)
        loss = torch.nn.functional.kl_div(learned, truth, log_target=True, reduction="batchmean")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        step += 1
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        if step % 50 == 0:
            print(f"  step {step}, KL {average:.2f} nats, {done:.0%} of the time", flush=True)
    draft.requires_grad_(False).eval().to(target.dtype)


def blocks(texts: list[torch.Tensor], written: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of texts side by side, int64 `[texts, length]`, padded on the right; and, bool, where the next token is
    one of the last `written[i]`."""
    ends = [text[-CONTEXT:] for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(ends, batch_first=True)
    places = torch.arange(ids.shape[1], device=ids.device)
    lengths = torch.tensor([[len(end)] for end in ends], device=ids.device)
    counts = torch.tensor([[count] for count in written], device=ids.device)
    return ids, (places >= lengths - counts - 1) & (places < lengths - 1)
