"""What a checkpoint's safetensors headers say: names, shapes, dtypes, sizes, and what is missing. No weights are read.

Headers come from a folder (`read_checkpoint`) or from anywhere else, as a dict of `Tensor`s (`Checkpoint.of`).
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .config import read_json
from .expected import Misfit, ask_transformers, compare, misfit
from .gguf import SUFFIX
from .headers import DTYPES, CheckpointError, NoWeightsError, Tensor, read_headers, refuse_pointer

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "NoWeightsError",
    "StoredQuantization",
    "Tensor",
    "read_checkpoint",
    "read_headers",
]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json")
SHARDS = "model-*-of-*.safetensors"

# What a quantized weight brings with it that is no weight: scales, zero points, codebooks, orders.
BESIDE_WEIGHTS = re.compile(
    r"\.(qzeros|scales|g_idx|SCB|weight_format|weight_scale\w*|weight_zero_point|weight_shape|weight_g_idx"
    r"|input_scale|\w+_scales|weight\.(absmax|quant_map|nested_\w+|quant_state\.\w+))$"
)


@dataclass(frozen=True)
class StoredQuantization:
    """What a checkpoint's config says of how its weights are stored."""

    method: str
    """`awq`, `gptq`, `bitsandbytes`, `compressed-tensors`, `fp8`, …"""
    bits: int | None
    """Per weight; None when the config does not say."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> StoredQuantization | None:
        told = config.get("quantization_config") or config.get("compression_config")
        if told is None:
            return None
        told = told if isinstance(told, Mapping) else told.to_dict()
        method = str(getattr(told.get("quant_method"), "value", told.get("quant_method")) or "bitsandbytes")
        return cls(method, _stored_bits(method, told))


@dataclass(frozen=True)
class Checkpoint:
    """The facts of one checkpoint."""

    tensors: Mapping[str, Tensor] = field(repr=False, hash=False)
    """By name in the file; empty for GGUF and pickles, whose headers are not read."""
    bytes: int
    """Of the weights on disk."""
    quantization: StoredQuantization | None = None
    missing: tuple[str, ...] | None = None
    """Tensors that the model has and the checkpoint lacks; None: not compared."""
    unexpected: tuple[str, ...] | None = None
    """Tensors of the checkpoint that the model has no place for; None: not compared."""
    gguf: str | None = None
    """The file, where the folder holds nothing else."""
    pickled: bool = False

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> Checkpoint:
        """From headers, wherever they come from. `missing` and `unexpected` stay None where our table of tensor names
        does not know the model, or does not agree with the headers: then only transformers' own loader knows.

        Raises:
            CheckpointError: the config is that of a model of other sizes.
        """
        quantization = StoredQuantization.of(config)
        size = sum(tensor.bytes for tensor in tensors.values())
        found = compare(tensors.keys(), config, by_module=quantization is not None)
        if quantization is None and (wrong := misfit({name: t.shape for name, t in tensors.items()}, config)):
            raise _edited(wrong)
        if found is not None and any(found) and quantization is None:
            found = None
        missing, unexpected = found or (None, None)
        return cls(dict(tensors), size, quantization, missing, unexpected)

    @cached_property
    def bytes_by_dtype(self) -> dict[str, int]:
        """By torch's dtype name, largest first."""
        found: Counter[str] = Counter()
        for tensor in self.tensors.values():
            found[DTYPES[tensor.dtype][0]] += tensor.bytes
        return dict(found.most_common())

    @property
    def dtype(self) -> str | None:
        """torch's name of the floating-point dtype that holds most bytes; None if there is none."""
        return next((name for name in self.bytes_by_dtype if "float" in name and not name.startswith("float4")), None)

    @cached_property
    def parameters(self) -> int | None:
        """Weights of the model, packed ones counted one by one; None where no header was read."""
        if not self.tensors:
            return None
        return sum(map(self._weights_in, self.tensors))

    def _weights_in(self, name: str) -> int:
        tensor = self.tensors[name]
        if self.quantization is None:
            return tensor.elements
        if BESIDE_WEIGHTS.search(name):
            return 0
        packed = tensor.dtype in ("I32", "U8", "I8") and self.quantization.bits
        return tensor.elements * tensor.bits // self.quantization.bits if packed else tensor.elements


def read_checkpoint(
    folder: str | os.PathLike[str], config: Mapping[str, Any], *, allow_pickle: bool = False
) -> Checkpoint:
    """The facts of a local folder, in milliseconds.

    Where the table of tensor names does not know the model, or finds something missing, transformers' own loader is
    asked, on the meta device: that imports torch (seconds), and still reads no weights.

    Args:
        config: the content of config.json.
        allow_pickle: take a folder that holds only pickled weights (sizes are known then, tensors are not).

    Raises:
        CheckpointError: corrupt, half-downloaded, pickled or no weights, or another model's config.
    """
    folder = Path(folder)
    files, gguf = _weight_files(folder, allow_pickle)
    size = sum(file.stat().st_size for file in files)
    if gguf or files[0].suffix == ".bin":
        for file in files:
            refuse_pointer(file)
            if not file.stat().st_size:
                raise CheckpointError(f"{file} is empty. Download it again.")
    if gguf:
        return Checkpoint({}, size, StoredQuantization("gguf", None), gguf=files[0].name)
    if files[0].suffix == ".bin":
        return Checkpoint({}, size, StoredQuantization.of(config), pickled=True)
    checkpoint = Checkpoint.of(read_headers(files), config)
    if not checkpoint.tensors:
        raise CheckpointError(f"{files[0]} holds no tensors. Download it again, or save the model anew.")
    told = None
    if checkpoint.missing is None and checkpoint.quantization is None:
        told = ask_transformers(folder, config)
    if told is None:
        return checkpoint
    (missing, unexpected), wrong = told
    if wrong is not None:
        raise _edited(wrong)
    return replace(checkpoint, missing=missing, unexpected=unexpected)


def holds_weights(folder: Path) -> bool:
    """Whether files are there that look like a whole model's weights, broken or not."""
    patterns = (SINGLE, INDEX, *PICKLED, SHARDS, f"*{SUFFIX}")
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def _edited(wrong: Misfit) -> CheckpointError:
    name, shape, wanted = wrong
    return CheckpointError(
        f"The config does not fit the weights: {name} is {' × '.join(map(str, shape))} in the checkpoint, "
        f"{' × '.join(map(str, wanted))} by config.json. Was it edited? Take the model's own."
    )


def _weight_files(folder: Path, allow_pickle: bool) -> tuple[list[Path], bool]:
    """The files that transformers would load, and whether they are GGUF."""
    for name in (SINGLE, INDEX, *PICKLED):
        if os.path.lexists(folder / name) and not (folder / name).is_file():
            raise CheckpointError(f"{folder / name} is no file, or a link to one that is gone. Download it again.")
    if (folder / SINGLE).is_file():
        return [folder / SINGLE], False
    if (folder / INDEX).is_file():
        return _shards(folder, folder / INDEX), False
    if gguf := sorted(folder.glob(f"*{SUFFIX}")):
        return gguf[:1], True
    if pickled := next((folder / name for name in PICKLED if (folder / name).is_file()), None):
        if not allow_pickle:
            raise CheckpointError(
                f"{folder} holds only pickled weights ({pickled.name}), which can run code when they are loaded. "
                "If you trust them, pass allow_pickle=True, or convert them once: load the model and call "
                "save_pretrained(folder), which writes safetensors."
            )
        return ([pickled] if pickled.suffix == ".bin" else _shards(folder, pickled)), False
    if partial := _incomplete(folder):
        raise CheckpointError(f"{folder} is half-downloaded ({partial} is still there): run the download again.")
    if shard := next(folder.glob(SHARDS), None):
        raise CheckpointError(f"{folder} holds {shard.name}, but no {INDEX}, so nothing loads it. Download that, too.")
    if (folder / "adapter_model.safetensors").is_file():
        raise CheckpointError(f"{folder} holds an adapter (adapter_model.safetensors) and no model's weights.")
    raise NoWeightsError(f"{folder} holds no weights: neither {SINGLE} nor {INDEX} is there.")


def _shards(folder: Path, index: Path) -> list[Path]:
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        if not all(isinstance(name, str) for name in names):
            raise TypeError
    except (ValueError, LookupError, AttributeError, TypeError):
        raise CheckpointError(f"{index} is corrupt: its weight_map names no files. Download it again.") from None
    lacking = [name for name in names if not (folder / name).is_file()]
    if lacking or not names:
        partial = _incomplete(folder)
        raise CheckpointError(
            f"{folder} lacks {len(lacking)} of the {len(names)} files that {index.name} names: "
            f"{', '.join(lacking[:3])}{', …' if len(lacking) > 3 else ''}"
            f"{f' ({partial} is still there)' if partial else ''}. Run the download again."
        )
    return [folder / name for name in names]


def _incomplete(folder: Path) -> str | None:
    """A file that a download left unfinished, in the folder or where huggingface_hub keeps it."""
    places = (folder.glob("*.incomplete"), (folder / ".cache" / "huggingface").rglob("*.incomplete"))
    return next((file.name for place in places for file in place), None)


def _stored_bits(method: str, told: Mapping[str, Any]) -> int | None:
    for key in ("bits", "w_bit", "nbits"):
        if isinstance(told.get(key), int):
            return told[key]
    if method == "bitsandbytes":
        return 4 if told.get("load_in_4bit") or told.get("_load_in_4bit") else 8
    if method == "compressed-tensors":
        groups = (told.get("config_groups") or {}).values()
        return next((bits for group in groups if (bits := (group.get("weights") or {}).get("num_bits"))), None)
    named = re.search(r"(?:fp|int|uint)_?(4|8)", f"{method} {told.get('quant_type')}".lower())
    return int(named[1]) if named else None
