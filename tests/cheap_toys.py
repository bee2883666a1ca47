"""A pair that the default drafts with: a deep target whose last layers change little, and its own first layer."""

import copy

import torch
from toys import VOCAB, prompts, tiny

import hf_specgen

REPEATING = [7, 9, 30, 12, 41, 5] * 12


def deep(layers: int = 12, late: float = 0.02, **overrides):
    """A target; `late`: how much the layers behind the first add. The more, the less often its first layer is right."""
    target = tiny(num_hidden_layers=layers, **{"eos_token_id": None} | overrides)
    with torch.no_grad():
        for layer in target.model.layers[1:]:
            layer.self_attn.o_proj.weight.mul_(late)
            layer.mlp.down_proj.weight.mul_(late)
    return target


def early_exit(target, layers: int = 1):
    """Its first layers as a draft of its own."""
    draft = copy.deepcopy(hf_specgen.disable(target))
    draft.model.layers = draft.model.layers[:layers]
    draft.config.num_hidden_layers = layers
    return draft


def told_cheap(monkeypatch, draft, share: float = 0.05) -> None:
    """Let every call believe that a forward of this draft takes this share of one of its target, whatever it is, and
    that a position costs little, as on a GPU: on a CPU, nothing is drafted without measured costs."""
    from hf_specgen.decoding import call

    monkeypatch.setattr(call, "position_costs", lambda model: (0.01, 0.0))
    monkeypatch.setattr(call, "expected_step", lambda model: share if model is draft else 1.0)


def repeating(lengths, side="left", vocab=VOCAB):
    """Ragged prompts of which much stood there before, but for the last one."""
    batch = prompts(lengths, side=side, vocab=vocab)
    for b, length in enumerate(lengths[:-1]):
        where = batch["attention_mask"][b].bool()
        batch["input_ids"][b, where] = torch.tensor(REPEATING[:length]) % vocab
    return batch
