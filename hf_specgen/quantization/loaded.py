"""What became of a quantization: which layers of a loaded model have it, and whether a checkpoint holds all of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.checkpoint import Checkpoint, CheckpointError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PACKED = ("qweight", "packed", "weight_packed")
"""Buffers that hold quantized weights; other integers in buffers are positions and masks."""


def is_quantized(module: torch.nn.Module) -> bool:
    """Whether a module holds weights of its own that are quantized."""
    import torch

    own = [*module.parameters(recurse=False), *(x for n, x in module.named_buffers(recurse=False) if n in PACKED)]
    return any(type(x.data) is not torch.Tensor or not x.is_floating_point() or x.element_size() == 1 for x in own)


def warn_of_dense_layers(model: PreTrainedModel, name: str) -> None:
    """Warn where a quantization reached no layer but the head, or left the larger part of the layers' bytes dense."""
    import torch

    head, quantized, dense = model.get_output_embeddings(), 0, {}
    for path, module in model.named_modules():
        if module is head or isinstance(module, torch.nn.Embedding):
            continue
        size = sum(x.numel() * x.element_size() for x in module.parameters(recurse=False) if x.ndim > 1)
        if is_quantized(module):
            quantized += size or 1  # in buffers
        elif size:
            dense[path] = size
    kinds = {type(model.get_submodule(path)).__name__ for path in dense}
    partly = sum(dense.values()) > quantized and kinds != {"Linear"}  # a Linear stays dense where somebody says so
    if dense and (not quantized or partly):
        warnings.warn(
            f"{name} quantized {'only a part' if quantized else 'no layer'} of {type(model).__name__}: "
            f"{sum(dense.values()) / 1e6:.1f} MB stayed dense, in {', '.join(sorted(kinds))}, where it does not reach. "
            "Choose another model or quantization, or expect little of it.",
            stacklevel=2,
        )


def check_scales(folder: Path, checkpoint: Checkpoint) -> None:
    """Raises CheckpointError for packed weights without what unpacks them: transformers would load garbage."""
    if checkpoint.quantization is None:
        return
    bitsandbytes = checkpoint.quantization.method == "bitsandbytes"
    for name, tensor in checkpoint.tensors.items():
        layer, _, kind = name.rpartition(".")
        wanted = {"qweight": "scales", "weight_packed": "weight_scale"}.get(kind)
        if bitsandbytes and kind == "weight":
            wanted = {"U8": "weight.absmax", "I8": "SCB"}.get(tensor.dtype)
        if wanted is not None and f"{layer}.{wanted}" not in checkpoint.tensors:
            raise CheckpointError(f"{folder} holds {name} without its scales ({layer}.{wanted}): it is not whole.")
