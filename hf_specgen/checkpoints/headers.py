"""The header of a safetensors file: names, shapes and dtypes of its tensors, and whether the file is whole."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

LFS_POINTER = b"version https://git-lfs"
LARGEST_HEADER = 100_000_000  # bytes; safetensors' own limit

# safetensors' name -> (torch's name, bits)
DTYPES = {
    "F64": ("float64", 64),
    "F32": ("float32", 32),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F4": ("float4_e2m1fn_x2", 4),
    "I64": ("int64", 64),
    "I32": ("int32", 32),
    "I16": ("int16", 16),
    "I8": ("int8", 8),
    "U64": ("uint64", 64),
    "U32": ("uint32", 32),
    "U16": ("uint16", 16),
    "U8": ("uint8", 8),
    "BOOL": ("bool", 8),
}


class CheckpointError(ValueError):
    """The weights of a folder cannot be used. The message says which file, what is wrong and what to do."""


class NoWeightsError(CheckpointError):
    """A folder without any weights."""


@dataclass(frozen=True)
class Tensor:
    """One entry of a header; `dtype` by safetensors' name."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bits(self) -> int:
        """Per element."""
        return DTYPES[self.dtype][1]

    @property
    def bytes(self) -> int:
        return self.elements * self.bits // 8


def read_headers(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of these safetensors files.

    Raises:
        CheckpointError: a file is not a whole safetensors file.
    """
    return {name: tensor for file in files for name, tensor in _read_header(file).items()}


def _read_header(file: Path) -> dict[str, Tensor]:
    """8 bytes: length of the header; the header, JSON; the tensors, at the offsets that the header names."""
    size = file.stat().st_size
    refuse_pointer(file)
    with file.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= length <= LARGEST_HEADER:
            raise CheckpointError(
                f"{file} is no safetensors file: it is {size} bytes long and its first 8 bytes name a header of "
                f"{length} bytes. Download it again."
            )
        raw = stream.read(length)
    if len(raw) < length:
        raise CheckpointError(
            f"{file} ends inside its header: it is {size} bytes long, the header alone ends at {8 + length}. "
            "The download was not finished: run it again."
        )
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        tensors = {name: Tensor(entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()}
        places = {name: tuple(entry["data_offsets"]) for name, entry in header.items()}
        require_known_dtypes(file, tensors)
        ends = [_end(tensor, *places[name]) for name, tensor in tensors.items()]
    except CheckpointError:
        raise
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
        raise CheckpointError(f"{file} is corrupt: its header is no safetensors header. Download it again.") from None
    whole = 8 + length + max(ends, default=0)
    if size < whole:
        raise CheckpointError(
            f"{file} is only partly there: {size} of {whole} bytes. The download was not finished: run it again."
        )
    if size > whole:
        raise CheckpointError(f"{file} is corrupt: {size} bytes, but its header ends at {whole}. Download it again.")
    return tensors


def refuse_pointer(file: Path) -> None:
    """Raises CheckpointError for what Git LFS leaves in place of a file."""
    with file.open("rb") as stream:
        if stream.read(len(LFS_POINTER)) == LFS_POINTER:
            raise CheckpointError(f"{file} is a Git LFS pointer, not the weights: run `git lfs pull` in its folder.")


def require_known_dtypes(where: Path | str, tensors: Mapping[str, Tensor]) -> None:
    if unknown := {tensor.dtype for tensor in tensors.values()} - DTYPES.keys():
        raise CheckpointError(f"{where} holds tensors of unknown dtype {', '.join(sorted(unknown))}.")


def _end(tensor: Tensor, begin: int, end: int) -> int:
    """Where a tensor ends; ValueError unless it takes as many bytes as its shape and dtype need."""
    if any(type(number) is not int or number < 0 for number in (*tensor.shape, begin, end)):
        raise ValueError
    if tensor.elements * tensor.bits != 8 * (end - begin):
        raise ValueError
    return end
