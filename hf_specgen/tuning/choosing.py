"""Which candidate wins, from decode tokens per second that were measured in turns. Arithmetic only.

Candidates are compared on the calls that both have made, call by call; the median of the ratios decides. Its standard
error is 1.25·σ/√n, with σ from the distance between the quartiles (1.35·σ, normal), but noise is never taken to be less
than `MARGIN`, and fewer than `LEAST` calls decide nothing. The default wins unless another one beats it by more than
noise.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from ..benchmarking.record import Record
from ..benchmarking.summary import PLAIN, Spread, call_of, decode_tokens_per_second

MARGIN = 0.02
"""A gain that noise may always be."""
LEAST = 5
"""Calls from which on the quartiles mean something."""
BEHIND = 0.9
"""A candidate that is so far behind the best is not run again."""

Rates = dict[str, dict[Hashable, float]]
"""Candidate → call → decode tokens per second. "plain" is always among them."""


class Scope(NamedTuple):
    """The calls that a decision is about: of a task, of a batch size; None: of all."""

    task: str | None = None
    batch: int | None = None

    def holds(self, record: Record) -> bool:
        return self.task in (None, record.cell.task) and self.batch in (None, record.cell.batch)

    def __str__(self) -> str:
        return ", ".join([self.task] * (self.task is not None) + [f"batch {self.batch}"] * (self.batch is not None))


EVERYTHING = Scope()


@dataclass(frozen=True)
class Decision:
    """
    Attributes:
        winner: "plain" where nothing pays.
        speedup: of the winner over plain.
        why: in words.
    """

    winner: str
    speedup: float
    why: str


def rates_of(records: Iterable[Record], scope: Scope = EVERYTHING) -> Rates:
    """Of the calls that did not fail."""
    found: Rates = {}
    for record in records:
        rate = decode_tokens_per_second(record) if record.error is None else None
        if rate is not None and scope.holds(record):
            found.setdefault(record.cell.contender, {})[call_of(record)] = rate
    return found


def gain(rates: Rates, one: str, other: str) -> Spread | None:
    """Of the ratios one / other; None without a call that both have made."""
    ours, theirs = rates.get(one, {}), rates.get(other, {})
    return Spread.of(rate / theirs[call] for call, rate in ours.items() if call in theirs)


def noise(ratios: Spread) -> float:
    """What a median of these ratios may be off by; infinite for too few of them."""
    if ratios.count < LEAST:
        return math.inf
    return max(MARGIN, 1.25 * (ratios.high - ratios.low) / 1.35 / math.sqrt(ratios.count))


def fastest(rates: Rates, among: Iterable[str], than: str = PLAIN) -> str | None:
    """By the median over another one (not all have made the same calls); None if nobody can be compared with it."""
    known = {name: spread.median for name in among if (spread := gain(rates, name, than)) is not None}
    return max(known, key=known.get, default=None)


def choose(rates: Rates, default: str) -> Decision:
    """The winner on these calls.

    Raises:
        ValueError: the default, or plain, has not decoded anything that both have.
    """
    usual = gain(rates, default, PLAIN)
    if usual is None:
        raise ValueError(f"plain decoding and {default!r} have no call in common: there is nothing to choose by.")
    best = fastest(rates, (name for name in rates if name != PLAIN), default)
    over_plain, beaten = gain(rates, best, PLAIN), gain(rates, best, default)
    told = f"{_told(over_plain)} plain decoding's tokens per second"
    if max(over_plain.median, usual.median) <= 1 + MARGIN and over_plain.count >= LEAST:
        return Decision(PLAIN, 1.0, f"nothing pays: the best, {best}, reached {told}")
    if best == default:
        return Decision(default, usual.median, f"the default is the fastest: {told}")
    if beaten.median > 1 + noise(beaten):
        why = f"{told}, and {_told(beaten)} the default's, {default} (noise {noise(beaten):.2f})"
        return Decision(best, over_plain.median, why)
    close = f"{_told(beaten)} the default's, noise {noise(beaten):.2f}"
    if beaten.count < LEAST:
        close = f"{beaten.count} calls in common, and at least {LEAST} decide"
    why = f"the default; the fastest, {best}, is not faster by more than noise: {close}"
    return Decision(default, usual.median, why)


def choose_apart(rates: Rates, general: str) -> Decision | None:
    """Who beats the general winner (or plain, where nothing pays in general) by more than noise on the calls of a task
    or a batch size; else None."""
    best = fastest(rates, rates, general)
    beaten = gain(rates, best, general) if best is not None else None
    if beaten is None or best == general or beaten.median <= 1 + noise(beaten):
        return None
    speedup = gain(rates, best, PLAIN).median
    what = "nothing pays here: plain decoding reached" if best == PLAIN else "here"
    return Decision(best, speedup, f"{what} {_told(beaten)} the tokens per second of {general}")


def survivors(rates: Rates, always: Iterable[str]) -> set[str]:
    """Those that are worth another round: those named, and whoever is not far behind the fastest."""
    best = fastest(rates, rates)
    kept = {*always}
    for name in rates:
        behind = gain(rates, name, best) if best is not None else None
        if behind is not None and behind.median >= BEHIND:
            kept.add(name)
    return kept


def _told(ratios: Spread) -> str:
    return f"{ratios.median:.2f}× ±{(ratios.high - ratios.low) / 2:.2f} ({ratios.count} calls)"
