"""How quantized checkpoints are loaded: one file per back end, behind one small interface (`base.py`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.checkpoint import StoredQuantization
from ..checkpoints.config import read_json
from ..checkpoints.gguf import SUFFIX
from . import bitsandbytes, torchao
from .awq import Awq
from .base import Backend
from .compressed import CompressedTensors
from .gguf import Gguf
from .given import Given, method_of
from .loaded import is_quantized

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils.quantization_config import QuantizationConfigMixin

    Quantization = str | QuantizationConfigMixin | None

__all__ = ["NAMES", "Backend", "backend_of", "quantization_of"]

# Quantized while loading, from a dense checkpoint.
_ON_LOADING: dict[str, Callable[[], Backend]] = {
    "nf4": lambda: bitsandbytes.FourBit("nf4"),
    "fp4": lambda: bitsandbytes.FourBit("fp4"),
    "int8": bitsandbytes.EightBit,
    "torchao-int8": torchao.Int8,
    "int4": torchao.Int4,
}
# Checkpoints that are quantized already, by transformers' name for the method.
_SAVED: dict[str, Callable[[dict[str, Any]], Backend]] = {
    "awq": lambda config: Awq(saved=True),
    "bitsandbytes": bitsandbytes.of_checkpoint,
    "compressed-tensors": lambda config: CompressedTensors(saved=True),
    "torchao": lambda config: Given(config, torchao.of_checkpoint(config), saved=True),
}
NAMES = (*_ON_LOADING, "awq", "gguf")


def backend_of(quantization: Quantization, checkpoint: str | os.PathLike[str]) -> Backend:
    """The back end for a checkpoint, a folder or a GGUF file. Reads its config at most, and looks for no package.

    Args:
        quantization: one of `NAMES`; a quantization config of transformers; or None, "as the checkpoint is".

    Raises:
        ValueError: an unknown name, or one that does not fit what the checkpoint is.
    """
    path = Path(checkpoint)
    own = _saved_config(path)
    if quantization is None:
        if own is not None:
            return _of_saved(own)
        return Gguf(saved=True) if _is_gguf(path) else Backend()
    if isinstance(quantization, str) and quantization not in NAMES:
        raise ValueError(f"{quantization!r} is no quantization known here. {_choices()}")
    if not isinstance(quantization, str) and not hasattr(quantization, "quant_method"):
        kind = type(quantization).__name__
        raise ValueError(f"A quantization is a name or a config object of transformers, not a {kind}. {_choices()}")
    asked = quantization if isinstance(quantization, str) else method_of(quantization)
    if own is None and asked != "gguf" and _is_gguf(path):
        raise ValueError(
            f"{checkpoint} is GGUF, which is unpacked when it is loaded, and cannot be loaded as {asked!r}. "
            "Drop the quantization, or name a checkpoint in safetensors."
        )
    if not isinstance(quantization, str):
        if own is not None and not _agree(own, quantization):
            raise ValueError(
                f"{checkpoint} is quantized already ({_of_saved(own)}), and cannot be loaded with a "
                f"{type(quantization).__name__} of another method or other bits. Drop it, or name a dense checkpoint."
            )
        known = _SAVED.get(method_of(quantization))
        like = known(quantization.to_dict()) if known else None
        return Given(quantization, like, pre_quantized=own is not None)
    if quantization == "gguf":
        return Gguf(saved=True)
    if own is not None:
        backend = _of_saved(own)
        if quantization not in (backend.name, method_of(own)) and not (
            quantization == "awq" and isinstance(backend, CompressedTensors)
        ):
            raise ValueError(
                f"{checkpoint} is quantized already ({backend}), and cannot be loaded as {quantization!r}. "
                "Drop the quantization, or name a dense checkpoint."
            )
        return backend
    if quantization == "awq":
        raise ValueError(
            f"{checkpoint} is no AWQ checkpoint: weights are quantized so beforehand, not while loading. "
            f"Make one: hf-specgen quantize {checkpoint} --to awq --out FOLDER"
        )
    return _ON_LOADING[quantization]()


def quantization_of(model: PreTrainedModel) -> str:
    """How the layers of a loaded model are quantized; "dense" where none is, whatever its config says."""
    config = getattr(model.config, "quantization_config", None)
    if config is None or not any(map(is_quantized, model.modules())):
        return Backend.name
    return _of_saved(config if isinstance(config, dict) else config.to_dict()).name


def _agree(own: dict[str, Any], given: QuantizationConfigMixin) -> bool:
    """Whether a config object says what the checkpoint says, as far as both name their bits."""
    ours, theirs = (StoredQuantization.of({"quantization_config": config}) for config in (own, given))
    return ours.method == theirs.method and (None in (ours.bits, theirs.bits) or ours.bits == theirs.bits)


def _of_saved(config: dict[str, Any]) -> Backend:
    known = _SAVED.get(method_of(config))
    return known(config) if known else Given(config, None, saved=True)


def _saved_config(path: Path) -> dict[str, Any] | None:
    """What a checkpoint's config says of its quantization."""
    if not (path / "config.json").is_file():
        return None
    config = read_json(path / "config.json")
    return config.get("quantization_config") or config.get("compression_config")


def _is_gguf(path: Path) -> bool:
    """A GGUF file, or a folder with no other weights."""
    if path.suffix == SUFFIX:
        return True
    return any(path.glob(f"*{SUFFIX}")) and not any(path.glob("*.safetensors"))


def _choices() -> str:
    return f"Choose one of {', '.join(NAMES)}, pass a config object, or None to load the checkpoint as it is."
