"""What commands that decode share: lists among their options, quiet models, their own command line."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

MOST = 1000
"""Numbers that a range may stand for: each of them is measured."""

T = TypeVar("T", int, float)


@contextmanager
def quiet() -> Iterator[None]:
    """Without what transformers, and packages that are behind it, say at every call, and without what commands tell
    of drafts that wait."""
    from transformers.utils import logging

    from ..lengths.planner import WAITING

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.filterwarnings("ignore", f".*{re.escape(WAITING)}")
        yield


def command_line() -> str:
    """As it was typed, for what is to be made again."""
    from . import NAME

    return shlex.join([NAME, *sys.argv[1:]])


def words(text: str | None) -> tuple[str, ...] | None:
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
