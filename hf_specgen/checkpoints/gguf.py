"""Where a GGUF file is."""

from __future__ import annotations

import os
from pathlib import Path

SUFFIX = ".gguf"


def file_of(path: str | os.PathLike[str]) -> Path:
    """The GGUF file itself, or the only one in a folder.

    Raises:
        FileNotFoundError, ValueError: there is none, or more than one.
    """
    path = Path(path)
    if path.suffix == SUFFIX:
        return path
    found = sorted(path.glob(f"*{SUFFIX}"))
    if not found:
        raise FileNotFoundError(f"{path} holds no GGUF file.")
    if len(found) > 1:
        raise ValueError(
            f"{path} holds {len(found)} GGUF files ({', '.join(f.name for f in found)}). Pass one of them."
        )
    return found[0]


def lone_file(path: str | os.PathLike[str]) -> Path | None:
    """The GGUF file that this is, or the only one in this folder, where no config.json lies beside it; else None."""
    path = Path(path)
    folder = path.parent if path.suffix == SUFFIX else path
    if (folder / "config.json").is_file() or not any(folder.glob(f"*{SUFFIX}")):
        return None
    return file_of(path)
