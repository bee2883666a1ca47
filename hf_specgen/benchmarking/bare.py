"""Bare forwards: what decoding would take if there were nothing to it but the two models."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

import torch
from transformers import DynamicCache

from .. import compat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from .calls import Answer, Models

T = TypeVar("T")


def timed(function: Callable[[], T]) -> tuple[float, T]:
    """(seconds, result); the device is done when it returns."""
    _synchronize()
    start = time.perf_counter()
    result = function()
    _synchronize()
    return time.perf_counter() - start, result


@torch.no_grad()
def bare_steps(model: PreTrainedModel, ids: torch.Tensor, widths: list[int], repeats: int = 5) -> dict[int, float]:
    """Median seconds of a bare forward of each width after `ids` `[rows, context]`, on a stock DynamicCache."""
    cache = DynamicCache(config=model.config)
    name = compat.cache_argument(model)
    model(input_ids=ids, use_cache=True, logits_to_keep=1, **{name: cache})
    cache.activate_past_recording()
    taken: dict[int, list[float]] = {w: [] for w in widths}
    for _ in range(repeats):
        for width in widths:
            seconds, _ = timed(lambda w=width: model(input_ids=ids[:, :w], use_cache=True, **{name: cache}))
            cache.crop(-width)
            taken[width].append(seconds)
    return {width: statistics.median(seconds) for width, seconds in taken.items()}


@torch.no_grad()
def bare_prefill(model: PreTrainedModel, ids: torch.Tensor) -> float:
    """Seconds of reading `ids` `[rows, context]`."""
    cache = {compat.cache_argument(model): DynamicCache(config=model.config)}
    return timed(lambda: model(input_ids=ids, use_cache=True, logits_to_keep=1, **cache))[0]


class Ideal:
    """What the forwards of one prompt's answers take, timed in the minutes in which they were decoded.

    Step times are those in the middle of an answer; a width is timed once, whoever asks.
    """

    REPEATS = 3

    def __init__(self, models: Models, ids: torch.Tensor):
        """`ids`: the prompt, `[1, tokens]`."""
        self.models, self.ids = models, ids
        self.steps: dict[tuple[str, int], float] = {}
        self.prefills: dict[str, float] = {}

    def seconds(self, answer: Answer) -> float | None:
        """Of both prefills, of the target's forwards and the draft's steps; None where their number is not known."""
        if answer.stats is None:  # plain
            widths, drafting = [1] * (len(answer.ids[0]) - 1), 0
        elif answer.draft_forwards is None:
            return None
        else:
            widths = [drafted + 1 for drafted, _ in answer.stats.history[1:]]
            drafting = answer.draft_forwards
        middle = torch.tensor([answer.ids[0][: len(answer.ids[0]) // 2]], device=self.ids.device)
        middle = torch.cat([self.ids, middle], dim=1)
        self._time("target", widths, middle)
        total = self.prefills["target"] + sum(self.steps["target", width] for width in widths)
        if drafting:
            self._time("draft", [1], middle)
            total += self.prefills["draft"] + drafting * self.steps["draft", 1]
        return total

    def _time(self, role: str, widths: Iterable[int], middle: torch.Tensor) -> None:
        model = getattr(self.models, role)
        if role not in self.prefills:
            self.prefills[role] = bare_prefill(model, self.ids)
        if missing := sorted({width for width in widths if (role, width) not in self.steps}):
            steps = bare_steps(model, middle, missing, self.REPEATS)
            self.steps |= {(role, width): seconds for width, seconds in steps.items()}


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
