"""What commands show: consoles, bars and spinners on a terminal; plain text, whole lines and no bars elsewhere."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

Listener = Callable[..., None]
"""Told (what comes next), or (what comes next, steps done, steps expected)."""


class PipedConsole(Console):
    """One whose reader may go: the command ends as `one_line` says, not as rich does."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """Soft: a line piped into a file stays one line."""
    return PipedConsole(stderr=stderr, highlight=False, soft_wrap=True)


def print_json(content: Any, indent: int | None = 2) -> None:
    """
    Raises:
        ValueError: a figure is NaN or infinite.
    """
    typer.echo(json.dumps(content, indent=indent, allow_nan=False))


@contextmanager
def bar(on: Console, expected: int | None = None) -> Iterator[Listener]:
    """A bar while something is measured: redrawn when it is told of a step, for a thread of its own would take time.

    What packages print meanwhile goes to stderr: stdout is the command's own.
    """
    columns = (_description(), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=on, transient=True, disable=not on.is_terminal, auto_refresh=False)
    with redirect_stdout(sys.stderr), progress:
        task = progress.add_task("loading", total=expected)

        def listen(what: str, done: int | None = None, expected: int | None = None) -> None:
            advance = 1 if done is None else None
            progress.update(task, advance=advance, completed=done, total=expected, description=what, refresh=True)

        yield listen


@contextmanager
def spinner(what: str) -> Iterator[None]:
    """While something takes long whose steps are not known. What packages print meanwhile goes to stderr, as above."""
    on = console(stderr=True)
    columns = (SpinnerColumn(), _description(), TimeElapsedColumn())
    progress = Progress(*columns, console=on, transient=True, disable=not on.is_terminal)
    with redirect_stdout(sys.stderr), progress:
        progress.add_task(what, total=None)
        yield


def _description() -> TextColumn:
    """Names of tasks are the user's: "[/x]" in one is no markup."""
    return TextColumn("{task.description}", markup=False)
