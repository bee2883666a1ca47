"""How a command ends early: one line on stderr and the right exit code; no traceback unless it is asked for."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from .exit_codes import FAILED, INTERRUPTED, NOBODY_READS
from .standard_streams import let_go

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
        let_go(sys.stdout)
        let_go(sys.stderr)  # perhaps of the same pipe
        raise typer.Exit(NOBODY_READS) from None  # nobody to tell
    except Exception as error:  # the last resort of a command: codes mean something, so no traceback may end with one
        let_go(sys.stdout)
        give_up(command, described(error), FAILED)


def give_up(command: str, why: str, code: int) -> NoReturn:
    _say(f"{command}: {' '.join(why.split())}")
    raise typer.Exit(code) from None


def described(error: Exception) -> str:
    """For its one line; the traceback is printed here where it is asked for."""
    if os.environ.get(TRACEBACK):
        _say("".join(traceback.format_exception(error)).rstrip())
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    if {kind.__name__ for kind in type(error).__mro__} & {*FORESEEN} and str(error):
        return str(error)
    return f"{type(error).__name__}: {error} ({TRACEBACK}=1 shows where)"


def _say(what: str) -> None:
    try:
        typer.echo(what, err=True)
    except OSError:  # nobody can be told; the exit code still says it
        let_go(sys.stderr)
