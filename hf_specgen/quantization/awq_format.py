"""AutoAWQ's file format ("gemm"), written with torch alone.

A linear weight `[out, in]` becomes `qweight` int32 `[in, out / 8]`, `qzeros` int32 `[in / group, out / 8]` and `scales`
float16 `[in / group, out]`; weight = (code − zero) · scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .int4_linear import GROUPS, group_of
from .rounding import round_for_inputs, round_to_nearest
from .steps import Steps

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # column that each nibble of a word holds, low to high
COLUMNS = 32  # outputs: what the fast kernels want a multiple of


def pack(codes: torch.Tensor) -> torch.Tensor:
    """`[rows, columns]` of 0 to 15 -> int32 `[rows, columns / 8]`."""
    nibbles = codes.to(torch.int32).unflatten(1, (-1, 8))[..., list(ORDER)]
    words = torch.zeros(nibbles.shape[:2], dtype=torch.int32)
    for i in range(8):
        words |= nibbles[..., i] << (4 * i)
    return words


def quantized(weight: torch.Tensor, group: int, power: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """The tensors that stand for a weight. `power`: mean squares of its inputs, to choose ranges by; None: rounded."""
    rounded = round_to_nearest(weight, group) if power is None else round_for_inputs(weight, group, power)
    codes, scale, zero = (x.t().contiguous() for x in rounded)
    return {"qweight": pack(codes), "qzeros": pack(zero), "scales": scale.half()}


def save_awq(
    model: PreTrainedModel, out: Path, group: int | None, ids: torch.Tensor | None, steps: Steps
) -> dict[str, Any]:
    """Write a dense model (float, on the CPU) in AWQ's format; its head and embedding stay as they are.

    Args:
        group: weights per scale; None: the largest of 128, 64 and 32 that divides all layers' inputs.
        ids: `[rows, tokens]` of text; ranges are chosen for the inputs that the layers get there. None: rounded only.
        steps: expects one of this; it becomes one a row and one a layer.

    Returns:
        The `quantization_config` that it wrote.
    """
    head = model.get_output_embeddings()
    layers = {n: m for n, m in model.named_modules() if type(m) is torch.nn.Linear and m is not head}
    if not layers:
        kinds = sorted({type(m).__name__ for m in model.modules() if getattr(m, "weight", None) is not None})
        raise ValueError(
            f"{type(model).__name__} has no Linear layers to quantize (its weights are in {', '.join(kinds)}): "
            "this format cannot hold it."
        )
    group = group or group_of(*(layer.in_features for layer in layers.values())) or GROUPS[-1]
    fits = {n: m for n, m in layers.items() if m.in_features % group == 0 and m.out_features % COLUMNS == 0}
    if not fits:
        sizes = sorted({m.in_features for m in layers.values()})
        raise ValueError(f"No layer fits groups of {group} (inputs: {sizes}). Choose --group-size 128, 64 or 32.")
    steps.expected += len(fits) + (0 if ids is None else len(ids)) - 1
    powers = {} if ids is None else input_powers(model, fits, ids, steps)
    tensors = dict(model.state_dict())
    for name in fits:
        steps.begin("quantizing")
        found = quantized(tensors.pop(f"{name}.weight"), group, powers.get(name))
        tensors |= {f"{name}.{key}": x for key, x in found.items()}
    model.config.quantization_config = config = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": group,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": sorted(layers.keys() - fits.keys()) or None,
    }
    model.save_pretrained(out, state_dict=tensors)
    return config


@torch.no_grad()
def input_powers(model: PreTrainedModel, layers: dict[str, torch.nn.Linear], ids: torch.Tensor, steps: Steps) -> dict:
    """The mean square of every input of each layer while the model reads `ids`: name -> float32 `[in]`."""
    powers: dict[str, torch.Tensor] = {}

    def watch(name: str):
        def hook(_, inputs):
            square = inputs[0].float().square().flatten(0, -2).mean(0)
            powers[name] = powers.get(name, 0) + square

        return hook

    hooks = [layer.register_forward_pre_hook(watch(name)) for name, layer in layers.items()]
    try:
        for row in ids:
            steps.begin("calibrating")
            model(row[None], use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return powers
