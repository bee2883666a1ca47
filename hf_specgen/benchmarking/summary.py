"""The figures of a bench, from its records. Arithmetic only; every figure is defined here, once.

A call's tokens per second are its new tokens (of all rows) / `seconds`; those of its decode phase are its new tokens
without each row's first, which the prefill gives, / `decode_seconds`. Answers of different lengths can so be compared.

A call's *speed-up* is its tokens per second / those of plain's call of the same prompt, setting and repetition (its
*pair*): what slows the machine down for a while slows both. The speed-up of many calls is the median of theirs.

Calls that failed count as errors and in nothing else. What no call measured is None.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from .record import Record

PLAIN = "plain"


class Setting(NamedTuple):
    """Where contenders are compared with each other."""

    temperature: float
    batch: int
    context: int

    @classmethod
    def of(cls, record: Record) -> Setting:
        return cls(record.cell.temperature, record.cell.batch, record.cell.context)

    def __str__(self) -> str:
        context = f", context {self.context}" if self.context else ""
        return f"temperature {self.temperature:g}, batch {self.batch}{context}"


class Contender(NamedTuple):
    """Who decoded, and how."""

    name: str
    k: int | None
    strategy: str | None

    @classmethod
    def of(cls, record: Record) -> Contender:
        return cls(record.cell.contender, record.cell.k, record.cell.strategy)

    @property
    def family(self) -> str:
        """The name without its K: "ours" for "ours-k4"."""
        return self.name.removesuffix(f"-k{self.k}")


class Spread(NamedTuple):
    """Median and quartiles (linear between neighbours) of `count` values."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        known = [value for value in values if value is not None]
        if not known:
            return None
        low, median, high = statistics.quantiles(known, n=4, method="inclusive") if known[1:] else known * 3
        return cls(median, low, high, len(known))


class Parting(NamedTuple):
    """Where a greedy answer left plain's: the first other token, and plain's logit gap between the two there."""

    task: str
    prompt: int
    at: int | None
    gap: float | None


class Split(NamedTuple):
    """Seconds of the decode phase per token of it, by what they went into."""

    draft: float
    verify: float
    rest: float

    @property
    def rest_share(self) -> float | None:
        """What neither drafting nor verifying takes, of it all."""
        return _ratio(self.rest, sum(self))


@dataclass(frozen=True)
class Summary:
    """One contender in one setting, on one task or on all.

    Attributes:
        task: None for all tasks, each call counting the same.
        calls: those that did not fail.
        speedup, decode_speedup: over plain, of the calls whose pair did not fail either.
        tokens_per_second: of whole calls.
        acceptance_rate: Σ accepted / Σ drafted tokens.
        tokens_per_forward: Σ new tokens / Σ rounds: what a row gains each time the target reads it.
        by_position: index i, the mean of the calls' conditional acceptance of the i-th drafted token (from 0).
        first_token_seconds: time to first token.
        peak_bytes: the largest of the calls.
        over_ideal: a call's seconds / those of its models' bare forwards.
        decode_seconds_per_token: Σ decode seconds / Σ tokens of the decode phase.
        split: what `decode_seconds_per_token` is made of, over the calls that measured its parts.
        compared, same: calls whose ids were compared with plain's, and those whose ids were equal.
        partings: of the others; one that every repetition shows is listed once.
        errors: reason → calls.
    """

    contender: Contender
    setting: Setting
    task: str | None
    calls: int
    speedup: Spread | None
    decode_speedup: Spread | None
    tokens_per_second: Spread | None
    acceptance_rate: float | None
    tokens_per_forward: float | None
    by_position: tuple[float | None, ...]
    first_token_seconds: Spread | None
    peak_bytes: int | None
    over_ideal: Spread | None
    decode_seconds_per_token: float | None
    split: Split | None
    compared: int
    same: int
    partings: tuple[Parting, ...]
    errors: dict[str, int]


def summarize(records: Iterable[Record], *, by_task: bool = True) -> list[Summary]:
    """A summary per contender, setting and (unless `by_task=False`) task, in the order of the records."""
    records = list(records)
    plain = {call_of(record): record for record in records if record.cell.contender == PLAIN and record.error is None}
    groups: dict[tuple[Contender, Setting, str | None], list[Record]] = {}
    for record in records:
        key = (Contender.of(record), Setting.of(record), record.cell.task if by_task else None)
        groups.setdefault(key, []).append(record)
    return [_summary(*key, group, plain) for key, group in groups.items()]


def call_of(record: Record) -> tuple:
    """What a call and its pair have in common."""
    return (*Setting.of(record), record.cell.task, record.cell.prompt, record.repeat)


def tokens_per_second(record: Record) -> float | None:
    """Of the whole call, in sum over its rows."""
    return _ratio(record.new_tokens, record.seconds)


def decode_tokens_per_second(record: Record) -> float | None:
    """Of the decode phase; None where no row had a second token."""
    return _ratio(_decoded(record), record.decode_seconds) or None


def labels(contenders: Iterable[Contender]) -> dict[Contender, str]:
    """A name for each: with its K or strategy where the name alone does not tell it from the others."""
    contenders = list(dict.fromkeys(contenders))

    def label(one: Contender) -> str:
        namesakes = [other for other in contenders if other.name == one.name]
        k = f" K={one.k}" if one.k is not None and len({other.k for other in namesakes}) > 1 else ""
        strategy = f" {one.strategy}" if one.strategy and len({other.strategy for other in namesakes}) > 1 else ""
        return f"{one.name}{k}{strategy}"

    return {one: label(one) for one in contenders}


def _summary(contender: Contender, setting: Setting, task: str | None, group: list[Record], plain: dict) -> Summary:
    done = [record for record in group if record.error is None]
    pairs = [(record, plain[call_of(record)]) for record in done if call_of(record) in plain]
    compared = [record for record in done if record.same_ids is not None]
    parted = [record for record in compared if not record.same_ids]
    return Summary(
        contender=contender,
        setting=setting,
        task=task,
        calls=len(done),
        speedup=_speedup(pairs, tokens_per_second),
        decode_speedup=_speedup(pairs, decode_tokens_per_second),
        tokens_per_second=Spread.of(map(tokens_per_second, done)),
        acceptance_rate=_sums(done, lambda record: record.accepted, lambda record: record.drafted),
        tokens_per_forward=_sums(done, lambda record: record.new_tokens, lambda record: record.rounds),
        by_position=_by_position(done),
        first_token_seconds=Spread.of(record.first_token_seconds for record in done),
        peak_bytes=max((record.peak_bytes for record in done if record.peak_bytes is not None), default=None),
        over_ideal=Spread.of(_ratio(record.seconds, record.ideal_seconds) for record in done),
        decode_seconds_per_token=_sums(done, lambda record: record.decode_seconds, _decoded),
        split=_split(done),
        compared=len(compared),
        same=len(compared) - len(parted),
        partings=tuple(dict.fromkeys(Parting(r.cell.task, r.cell.prompt, r.diverged_at, r.gap) for r in parted)),
        errors=dict(Counter(record.error for record in group if record.error is not None)),
    )


def _decoded(record: Record) -> int:
    return max(record.new_tokens - record.cell.batch, 0)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or not below else above / below


def _speedup(pairs: list[tuple[Record, Record]], speed: Callable[[Record], float | None]) -> Spread | None:
    return Spread.of(_ratio(speed(record), speed(plain)) for record, plain in pairs)


def _sums(done: list[Record], above: Callable, below: Callable) -> float | None:
    """Σ above / Σ below, over the calls that measured both."""
    both = [(above(record), below(record)) for record in done]
    both = [pair for pair in both if None not in pair]
    return _ratio(sum(a for a, _ in both), sum(b for _, b in both))


def _by_position(done: list[Record]) -> tuple[float | None, ...]:
    columns: dict[int, list[float]] = {}
    for record in done:
        for position, rate in enumerate(record.by_position or ()):
            columns.setdefault(position, []).extend([] if rate is None else [rate])
    return tuple(statistics.fmean(columns[i]) if columns[i] else None for i in range(len(columns)))


def _split(done: list[Record]) -> Split | None:
    parts = [(_decoded(r), (r.draft_seconds, r.verify_seconds, r.rest_seconds)) for r in done]
    parts = [(tokens, seconds) for tokens, seconds in parts if tokens and None not in seconds]
    if not parts:
        return None
    tokens = sum(tokens for tokens, _ in parts)
    return Split(*(sum(seconds) / tokens for seconds in zip(*(seconds for _, seconds in parts), strict=True)))
