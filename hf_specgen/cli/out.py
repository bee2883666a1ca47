"""Where a command is to write: checked before minutes are spent on what cannot be written there."""

from __future__ import annotations

import os
from pathlib import Path


def expanded(out: Path) -> Path:
    """With its ~ resolved, which shells leave in --out=~/x."""
    return Path(os.path.expanduser(out))


def checked_out(option: str, out: Path | None, folder: bool = False) -> Path | None:
    """`out`, expanded; None stays None. Nothing is made.

    Args:
        folder: `out` is a folder, and not a file.

    Raises:
        ValueError: it is a folder where a file is wanted, or the reverse; or a file stands in its way.
        PermissionError: the folder cannot be written to.
    """
    if out is None:
        return None
    out = expanded(out)
    if folder and out.exists() and not out.is_dir():
        raise ValueError(f"{option} {out} is a file: pass a folder.")
    if not folder and out.is_dir():
        raise ValueError(f"{option} {out} is a folder; name a file in it.")
    place = out
    if not out.exists() or out.is_file() or out.is_dir():  # neither a pipe nor a device: see `files.write_whole`
        real = Path(os.path.realpath(out))
        first = real if folder else real.parent
        place = next(above for above in (first, *first.parents) if above.exists())
        if not place.is_dir():
            raise ValueError(f"{option} {out}: {place} is no folder.")
    if not os.access(place, os.W_OK):
        raise PermissionError(f"{option} {out}: {place} cannot be written to. Name another place.")
    return out
