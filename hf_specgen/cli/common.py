"""What commands that measure share: lists among their options, quiet models, errors of one line, the code of Ctrl-C."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, TypeVar

import typer

INTERRUPTED = 130
"""What a shell gives a command that Ctrl-C has ended."""

MOST = 1000
"""Numbers that a range may stand for: each of them is measured."""

T = TypeVar("T", int, float)


@contextmanager
def one_line(command: str, code: int = 2) -> Iterator[None]:
    """What a user can mend (a missing folder or package, a wrong value, a full disk) ends the command with one line."""
    try:
        yield
    except BrokenPipeError:  # nobody reads on: nobody to tell
        raise
    except (OSError, ValueError, ImportError) as error:
        give_up(command, str(error), code)


def give_up(command: str, why: str, code: int) -> NoReturn:
    typer.echo(f"{command}: {' '.join(why.split())}", err=True)
    raise typer.Exit(code) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers, and packages that are behind it, say at every call."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def words(text: str) -> tuple[str, ...] | None:
    return tuple(word.strip() for word in text.split(",") if word.strip()) if text else None


def numbers(option: str, text: str, kind: Callable[[str], T]) -> tuple[T, ...]:
    """ "1,2,4", and of whole numbers "1-4", too."""
    found: list[T] = []
    for word in words(text) or ():
        ends = re.fullmatch(r"(\d+)-(\d+)", word) if kind is int else None
        if ends is None:
            try:
                found.append(kind(word))
            except ValueError:
                raise ValueError(f"{option} {text!r}: {word!r} is no number that can be taken here.") from None
            continue
        first, last = map(int, ends.groups())
        if first > last:
            raise ValueError(f"{option} {text!r}: {word!r} goes down; write {last}-{first}.")
        if last - first >= MOST:
            raise ValueError(f"{option} {text!r}: {word!r} are more than {MOST} numbers.")
        found += range(first, last + 1)
    return tuple(found)
