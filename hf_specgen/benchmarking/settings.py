"""What a bench is asked to measure, checked before anything is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """
    Attributes:
        against: contenders by name (see `names.KNOWN`); None: plain, stock, ours, and other packages that are here;
            without a draft plain and lookup.
        tasks: names; None for all that the prompts have.
        per_task: prompts of each, spread over them.
        temperatures: 0 is greedy.
        ks: constant numbers of drafted tokens, for "stock-k" and "ours-k".
        strategies: acceptance rules of ours. Greedy decoding knows but one: the first stands for all.
        batch_sizes: rows decoded together, consecutive prompts of a task.
        contexts: tokens that prompts are filled up to with other text; 0: as they are.
        concurrency: N prompts of all tasks in one batch, the throughput of a busy server; takes the place of
            `batch_sizes`.
        top_k, top_p: of sampling; 0 and 1 leave all tokens.
        repeats: interleaved repetitions.
        ideal: also time bare forwards, for `ideal_seconds` (of calls with one row).

    Raises:
        ValueError: a value that cannot be, by its name.
    """

    against: tuple[str, ...] | None = None
    tasks: tuple[str, ...] | None = None
    per_task: int = 2
    temperatures: tuple[float, ...] = (0.0,)
    ks: tuple[int, ...] = ()
    strategies: tuple[str, ...] = ("rejection",)
    batch_sizes: tuple[int, ...] = (1,)
    contexts: tuple[int, ...] = (0,)
    concurrency: int | None = None
    max_new_tokens: int = 128
    top_k: int = 0
    top_p: float = 1.0
    repeats: int = 3
    ideal: bool = False

    def __post_init__(self):
        from ..verifiers import STRATEGIES

        for name, least in (("per_task", 1), ("max_new_tokens", 2), ("repeats", 1), ("top_k", 0)):
            _whole(name, getattr(self, name), least)
        for name, least in (("ks", 1), ("batch_sizes", 1), ("contexts", 0)):
            for value in _list(name, getattr(self, name), may_be_empty=name == "ks"):
                _whole(name, value, least)
        for value in _list("temperatures", self.temperatures):
            if not _is_number(value) or value < 0:
                raise ValueError(f"temperatures={value!r}: pass numbers from 0 (greedy) on.")
        for value in _list("strategies", self.strategies):
            if value not in STRATEGIES:
                raise ValueError(f"strategies={value!r}: choose among {', '.join(STRATEGIES)}.")
        for name in ("against", "tasks"):
            if getattr(self, name) is not None:
                _list(name, getattr(self, name))
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r}: pass a share above 0 and up to 1.")
        if self.concurrency is not None:
            _whole("concurrency", self.concurrency, 1)
            if self.batch_sizes != (1,):
                raise ValueError("concurrency and batch_sizes both say how many rows a batch has: pass one of them.")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={value!r}: pass whole numbers of at least {least}.")


def _list(name: str, values: Sequence[Any], may_be_empty: bool = False) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, (tuple, list)):
        raise ValueError(f"{name}={values!r}: pass a list.")
    if not values and not may_be_empty:
        raise ValueError(f"{name} is empty: pass at least one.")
    if len(set(values)) < len(values):
        raise ValueError(f"{name} holds something twice: {', '.join(map(str, values))}.")
    return values
