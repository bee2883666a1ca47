"""What decoding costs, timed in plain decoding itself and in the decoding loop itself."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from transformers.generation.streamers import BaseStreamer

from ..drafters import Drafter


class Watch(BaseStreamer):
    """Notes when `generate` hands over new tokens: plain decoding, stock assisted decoding and ours, of one row or
    several. On the host: the device is done by then.

    Attributes:
        start: when it was made.
        seen: (time, tokens) of each hand-over, without those of prompts.
    """

    def __init__(self, rows: int = 1):
        self.rows = rows
        self.start = time.perf_counter()
        self.seen: list[tuple[float, int]] = []
        self._begun: set[int | None] = set()

    def put(self, value: torch.Tensor) -> None:
        """All rows together, as transformers does it."""
        self.put_row(None, value)

    def put_row(self, row: int | None, ids: torch.Tensor) -> None:
        """A row alone, as ours does it."""
        if row in self._begun:  # what comes first is the prompt
            self.seen.append((time.perf_counter(), ids.numel()))
        self._begun.add(row)

    def end(self) -> None:
        pass

    @property
    def first_token_seconds(self) -> float | None:
        """From `start` to the first new token."""
        return self.seen[0][0] - self.start if self.seen else None

    @property
    def step_seconds(self) -> float | None:
        """From one hand-over to the next, in the median; None where there was but one."""
        times = [at for at, _ in self.seen]
        return statistics.median(b - a for a, b in pairwise(times)) if len(times) > 1 else None

    @property
    def decode_seconds(self) -> float | None:
        """After the first token of each row. A first hand-over of more tokens (stock assisted decoding drafts before
        it reads the prompt) leaves fewer to time: at their rate."""
        begun, left = 0, list(self.seen)
        while left and begun < self.rows:
            start, count = left.pop(0)
            begun += count
        timed = sum(count for _, count in left)
        if begun < self.rows:
            return None
        return (left[-1][0] - start) * (timed + begun - self.rows) / timed if timed else 0.0


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
