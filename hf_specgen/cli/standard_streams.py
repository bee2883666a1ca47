"""Standard input, output and errors as commands may count on them: all there, and able to take any character."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import TextIO


def prepare() -> None:
    """Before anything is read or written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller (>&-): no other file must get its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (it stays open)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # stderr never is strict


def let_go(stream: TextIO) -> None:
    """What it still holds cannot be written: the interpreter would try once more as it ends, and say so."""
    with contextlib.suppress(OSError):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
