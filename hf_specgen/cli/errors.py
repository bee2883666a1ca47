"""How a command ends early: one line on stderr and the right exit code; no traceback unless it is asked for."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from .exit_codes import FAILED, INTERRUPTED, NOBODY_READS

TRACEBACK = "HF_SPECGEN_TRACEBACK"
"""Environment variable: print the traceback of an error as well."""

FORESEEN = (
    "OSError",
    "ValueError",
    "ImportError",
    "MemoryError",
    "OutOfMemoryError",
    "SpecNumericsError",
    "SpecDraftError",
)
"""Classes whose messages say what is wrong; by name, for torch's is among them. Others are shown with their name."""


@contextmanager
def one_line(command: str, interrupted: str = "interrupted") -> Iterator[None]:
    """Around a command, or as its decorator.

    Args:
        interrupted: what to say after Ctrl-C.
    """
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # a full disk or a closed pipe may show only now
    except typer.Exit:
        raise
    except KeyboardInterrupt:
        give_up(command, interrupted, INTERRUPTED)
    except BrokenPipeError:
        _let_go_of_stdout()
        raise typer.Exit(NOBODY_READS) from None  # nobody to tell
    except Exception as error:  # the last resort of a command: codes mean something, so no traceback may end with one
        _let_go_of_stdout()
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        give_up(command, described(error), FAILED)


def give_up(command: str, why: str, code: int) -> NoReturn:
    typer.echo(f"{command}: {' '.join(why.split())}", err=True)
    raise typer.Exit(code) from None


def described(error: Exception) -> str:
    if {kind.__name__ for kind in type(error).__mro__} & {*FORESEEN} and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} ({TRACEBACK}=1 shows where)"


def _let_go_of_stdout() -> None:
    """What it still holds cannot be written: the interpreter would try once more as it ends, and say so."""
    with contextlib.suppress(OSError):  # not a real file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
