"""What tells a model from another one, as cheaply as every call can afford it: equal from a folder and in memory."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

import torch
from transformers import PreTrainedModel

from .. import compat
from ..cache.reader import device_of
from ..quantization import quantization_of
from ..unwrap import unwrap

NAME = "name"
"""The one fact that is told and not compared: a model may be moved, or never have had a folder."""


def fingerprint(model: Any) -> dict[str, Any]:
    """Facts by name, as JSON holds them. Weights are counted, not read: fine-tunes of one model are alike."""
    model = unwrap(model)
    if not isinstance(model, PreTrainedModel):
        return {NAME: "", "class": type(model).__name__}
    config = compat.text_config(model)
    return {
        NAME: PurePath(model.config.name_or_path or "").name,
        "class": type(model).__name__,
        "layers": getattr(config, "num_hidden_layers", None),
        "hidden size": getattr(config, "hidden_size", None),
        "vocabulary": getattr(config, "vocab_size", None),
        "parameters": model.num_parameters(),
        "bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "quantization": quantization_of(model),
        "device": device_of(model, torch.device("cpu")).type,
    }


def differences(tuned: dict[str, Any], here: dict[str, Any]) -> str:
    """In words; empty for the same model."""
    names = [name for name in dict.fromkeys((*tuned, *here)) if name != NAME and tuned.get(name) != here.get(name)]
    return ", ".join(f"{name} {_told(tuned.get(name))} there and {_told(here.get(name))} here" for name in names)


def _told(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
