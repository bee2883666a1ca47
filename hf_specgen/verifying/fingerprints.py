"""What a certificate says of a loaded model: facts, the packages that its weights need, a hash over some of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch

from .. import compat
from ..tuning.fingerprint import fingerprint

SAMPLED = 256
"""Elements of each tensor that its fingerprint reads."""
PACKAGES = {"bitsandbytes", "compressed_tensors", "gptqmodel", "torchao"}
"""Modules whose layers or tensors hold quantized weights, as their packages are called."""


def described(model) -> dict[str, Any]:
    """Facts, and a hash over the tensors' names, types, shapes and some of their elements."""
    attention = getattr(compat.text_config(model), "_attn_implementation", None)
    return fingerprint(model) | {"attention": attention, "weights": _weights(model)}


def packages_of(model) -> set[str]:
    """Those of `PACKAGES` that its weights are held by."""
    held = (*model.modules(), *(parameter.data for parameter in model.parameters()))
    return PACKAGES & {type(x).__module__.partition(".")[0] for x in held}


def _weights(model) -> str | None:
    """None where tensors are not in memory (offloaded), or of a kind that does not say what it is made of."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_persistent(model), key=lambda item: item[0]):
        for part, plain in _plain(name, tensor.data):
            if plain is None or plain.device.type == "meta":
                return None
            flat = plain.flatten()
            some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].contiguous().cpu()
            digest.update(f"{part} {plain.dtype} {tuple(plain.shape)}".encode())
            digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _persistent(model) -> Iterator[tuple[str, torch.Tensor]]:
    """What a checkpoint holds. Not by `state_dict`, which quantized weights do not survive."""
    yield from model.named_parameters()
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}", buffer


def _plain(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor | None]]:
    """The plain tensors that a tensor is made of; a subclass names them (torchao's do, and DTensor)."""
    if type(tensor) is torch.Tensor:
        yield name, tensor
    elif hasattr(tensor, "__tensor_flatten__"):
        for part in tensor.__tensor_flatten__()[0]:
            yield from _plain(f"{name}.{part}", getattr(tensor, part))
    else:
        yield name, None
