"""Whether two folders hold the same weights, without reading them all: fine-tunes of one model share its config."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from .checkpoint import SHARDS, SINGLE
from .gguf import SUFFIX

PIECES, BYTES = 256, 64
"""Pieces of a file that are read, spread evenly, and how long each is."""


def weight_files(folder: Path) -> list[Path]:
    """Safetensors, or else GGUF; none where the folder holds neither (a Hub id whose weights are not here)."""
    found = (sorted(folder.glob(pattern)) for pattern in (SINGLE, SHARDS, f"*{SUFFIX}"))
    return next(filter(None, found), [])


def digest_of(files: Iterable[Path]) -> str:
    """Hexadecimal; of the files' sizes and pieces, in their order. Equal for copies of them."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{size};".encode())
        with file.open("rb") as stream:
            for i in range(PIECES):
                stream.seek(i * max(0, size - BYTES) // (PIECES - 1))
                digest.update(stream.read(BYTES))
    return digest.hexdigest()[:16]
