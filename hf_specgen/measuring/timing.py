"""What decoding costs, timed in plain decoding itself and in the decoding loop itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import torch
from transformers.generation.streamers import BaseStreamer

from ..drafters import Drafter


class Ticks(BaseStreamer):
    """Notes when plain decoding hands over each token (on the host: the device is done by then)."""

    def __init__(self):
        self.times: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass

    @property
    def prefill_seconds(self) -> float:
        """From the prompt to the first new token."""
        return self.times[1] - self.times[0]

    @property
    def step_seconds(self) -> float | None:
        """One further token, in the median; None where there was none."""
        steps = [b - a for a, b in zip(self.times[1:], self.times[2:], strict=False)]
        return statistics.median(steps) if steps else None


class Sweep(Drafter):
    """A drafter in one call, allowed as many tokens a round as `turns` says; keeps how long rounds took.

    Attributes:
        rounds: (tokens it was allowed, seconds, seconds of them in the draft), from one proposal to the next. Without
            the call's first round, for which the draft has just read everything, and its last.
        begin_seconds: the draft's reading of the prompt.
    """

    def __init__(self, drafter: Drafter, turns: Iterator[int]):
        self.drafter, self.turns = drafter, turns
        self.rounds: list[tuple[int, float, float]] = []
        self.begin_seconds = 0.0
        self._open: tuple[int, float, float] | None = None
        self._first = True

    @property
    def forwards(self) -> int:
        return self.drafter.forwards

    def begin(self, rows, vocabulary=None) -> None:
        start = _now(rows)
        self.drafter.begin(rows, vocabulary)
        self.begin_seconds = _now(rows) - start

    def room(self, row) -> int:
        return self.drafter.room(row)

    def propose(self, rows, widths, verifier, noise):
        start = _now(rows)
        if self._open is not None:
            width, since, drafting = self._open
            self.rounds.append((width, start - since, drafting))
        width = min(widths[0], next(self.turns))
        proposal = self.drafter.propose(rows, [width], verifier, noise)
        self._open = None if self._first else (width, start, _now(rows) - start)
        self._first = False
        return proposal

    def settle(self, rows, scores, accepted) -> None:
        self.drafter.settle(rows, scores, accepted)

    def drop(self, row: int) -> None:
        self.drafter.drop(row)


def _now(rows) -> float:
    device = rows[0].ids.device
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
