"""How the embedded pair was made: `python -m hf_specgen.demo.train --out hf_specgen/demo/pair`.

Text: the source of the Python standard library on the machine that runs this script (Python Software Foundation
License 2.0, which allows redistribution), tests left out. Target: a deep, narrow Llama, so that on a CPU its cost is
that of its many small layers, as a large model's cost is that of its weights. Draft: one layer, same tokenizer,
distilled on the target's own distribution (forward KL), which is what acceptance rewards: the expected acceptance rate
is 1 - TV(p, q) (Leviathan et al. 2023, Corollary 3.6).
"""

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB_SIZE = 2048
CONTEXT = 256
END = "<|end|>"
LEFT_OUT = {
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "site-packages",
    "turtledemo",
    "ensurepip",
    "encodings",
    "__pycache__",
}


def corpus() -> list[str]:
    """One string per file of the standard library, in a fixed order."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [f for f in sorted(root.rglob("*.py")) if not LEFT_OUT & set(f.relative_to(root).parts)]
    return [f.read_text(encoding="utf-8", errors="ignore") for f in files]


def train_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that any prompt can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def build(layers: int) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        intermediate_size=288,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        initializer_range=0.05,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():  # residual branches start small: 28 layers train from the first step
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.div_(math.sqrt(2 * layers))
            layer.mlp.down_proj.weight.div_(math.sqrt(2 * layers))
    return model


def fit(model, tokens: torch.Tensor, steps: int, batch: int, lr: float, teacher=None) -> float:
    """AdamW, warm-up, cosine; the loss is cross-entropy, or forward KL to `teacher`. Returns the last loss (nats)."""
    decay = [p for p in model.parameters() if p.dim() >= 2]
    other = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": other, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))
    draw = torch.Generator().manual_seed(0)
    model.train()
    average, start = None, time.perf_counter()
    for step in range(steps):
        ramp = min(1.0, (step + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = lr * ramp * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * step / steps)))
        starts = torch.randint(len(tokens) - CONTEXT - 1, (batch,), generator=draw)
        block = torch.stack([tokens[s : s + CONTEXT + 1] for s in starts.tolist()])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(block[:, :-1], use_cache=False).logits.float().flatten(0, 1)
            if teacher is None:
                loss = torch.nn.functional.cross_entropy(logits, block[:, 1:].flatten())
            else:
                with torch.no_grad():
                    wanted = teacher(block[:, :-1], use_cache=False).logits.float().flatten(0, 1).log_softmax(-1)
                loss = torch.nn.functional.kl_div(
                    logits.log_softmax(-1), wanted, log_target=True, reduction="batchmean"
                )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average = loss.item() if average is None else 0.98 * average + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            print(f"  step {step + 1}/{steps}  loss {average:.3f}  {time.perf_counter() - start:.0f} s", flush=True)
    return average


def save(model, tokenizer, folder: Path) -> None:
    model.eval().to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="receives target/ (kept if it is there) and draft/")
    parser.add_argument("--target-steps", type=int, default=1200)
    parser.add_argument("--draft-steps", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    texts = corpus()
    tokenizer = train_tokenizer(texts)
    tokens = torch.tensor([i for text in texts for i in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
    print(
        f"Python {sys.version.split()[0]}: {len(texts)} files, {sum(map(len, texts)):,} characters, "
        f"{len(tokens):,} tokens"
    )

    torch.manual_seed(0)
    target = build(layers=28)
    print(f"target: {target.num_parameters():,} parameters", flush=True)
    if (args.out / "target").is_dir():
        print("  already there")
        target = LlamaForCausalLM.from_pretrained(args.out / "target", dtype=torch.float32)
    else:
        fit(target, tokens, args.target_steps, batch=16, lr=3e-3)
        save(target, tokenizer, args.out / "target")

    torch.manual_seed(1)
    draft = build(layers=1)
    print(f"draft: {draft.num_parameters():,} parameters", flush=True)
    fit(draft, tokens, args.draft_steps, batch=16, lr=4e-3, teacher=target.float())
    save(draft, tokenizer, args.out / "draft")


if __name__ == "__main__":
    main()
