"""Which positions a model is asked for the logits of."""

from __future__ import annotations

import torch


def last_positions(model, keep: int, width: int) -> int | torch.Tensor:
    """`logits_to_keep` for the last `keep` of `width` positions; 0 is all.

    A number makes transformers cut the hidden states: a view, which a CPU multiplies row by row, with copies, by
    weights that take no gradients (`requires_grad_(False)`, quantized ones). Measured for a head of 49152 × 576 in
    bfloat16 and eight rows: 1079 ms, and 6.7 ms where the positions are picked by their indices (in float32 43 and 21).
    """
    if not 0 < keep < width:
        return keep
    weight = getattr(model.get_output_embeddings(), "weight", None)
    if weight is None or weight.device.type != "cpu" or weight.requires_grad:
        return keep
    return torch.arange(width - keep, width)
