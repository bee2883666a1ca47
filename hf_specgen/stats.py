"""What happened in a call, counted and timed. Every figure has its one definition here.

A round is one reading of a row by the target. Round 0 is the prefill: it drafts nothing and emits one token.
    emitted = accepted + rounds − trimmed
holds per row and in sum. What was not measured is None.
"""

import contextlib
import contextvars
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from .advice import AdviceList


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None


def _show(value: float | None, form: str = ".2f", unit: str = "") -> str:
    return "not measured" if value is None else f"{value:{form}}{unit}"


@dataclass(frozen=True)
class AcceptanceByPosition:
    """Index i is the i-th drafted token of a round (from 0); None where no round came that far.

    unconditional[i]: accepted at i / rounds that drafted a token at i.
    conditional[i]: accepted at i / rounds that drafted a token at i and accepted all before it.
    """

    conditional: list[float | None]
    unconditional: list[float | None]

    @property
    def reached(self) -> list[float | None]:
        """`conditional` up to the last place that any round came to."""
        last = max((i for i, rate in enumerate(self.conditional, 1) if rate is not None), default=0)
        return self.conditional[:last]


@dataclass(frozen=True)
class SourceFigures:
    """The rounds whose drafted tokens came from one source."""

    rounds: int
    drafted: int
    accepted: int

    @property
    def acceptance_rate(self) -> float | None:
        return _ratio(self.accepted, self.drafted)


class _Figures:
    """What a row and a whole call have in common, from `history`: one (drafted, accepted) per round; and `emitted`."""

    history: list[tuple[int, int]]
    origins: list[str | None]
    emitted: int

    @property
    def rounds(self) -> int:
        """Readings by the target, the prefill among them (a batch: summed over its rows)."""
        return len(self.history)

    @property
    def drafted(self) -> int:
        """Tokens proposed and checked, one for each place: alternatives to them are not counted."""
        return sum(d for d, _ in self.history)

    @property
    def accepted(self) -> int:
        """Places where the verifier kept the drafted token, or an alternative (before a stop cut the block)."""
        return sum(a for _, a in self.history)

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def mean_accepted_tokens(self) -> float | None:
        """Accepted tokens per round in which something was drafted (without the target's own token)."""
        return _ratio(self.accepted, sum(d > 0 for d, _ in self.history))

    @property
    def tokens_per_target_forward(self) -> float | None:
        """emitted / rounds: what a row gains each time the target reads it. Plain decoding: 1."""
        return _ratio(self.emitted, self.rounds)

    @property
    def by_source(self) -> dict[str, SourceFigures]:
        """The rounds with drafts by where these came from."""
        found: dict[str, list[tuple[int, int]]] = {}
        for source, entry in zip(self.origins, self.history, strict=True):
            if source is not None:
                found.setdefault(source, []).append(entry)
        return {s: SourceFigures(len(e), sum(d for d, _ in e), sum(a for _, a in e)) for s, e in found.items()}

    @property
    def acceptance_by_position(self) -> AcceptanceByPosition:
        depth = max((d for d, _ in self.history), default=0)
        conditional, unconditional = [], []
        for i in range(depth):
            hits = sum(a > i for _, a in self.history)
            unconditional.append(_ratio(hits, sum(d > i for d, _ in self.history)))
            conditional.append(_ratio(hits, sum(d > i and a >= i for d, a in self.history)))
        return AcceptanceByPosition(conditional, unconditional)


@dataclass
class RowStats(_Figures):
    """One row of a batch. Seconds are the call's.

    Attributes:
        emitted: new tokens.
        trimmed: tokens cut off because a stop came before them.
        draft_forwards: draft forwards of the rounds in which this row could draft.
        fallback_reason: why this row was decoded without drafts, or None.
        trace: (drafted, accepted) of each round.
        sources: where the drafted tokens of each round came from ("draft", "lookup", …), None where there were none.
        alternatives: accepted tokens that were not the draft's first choice at their place.
    """

    emitted: int = 0
    trimmed: int = 0
    draft_forwards: int = 0
    fallback_reason: str | None = None
    trace: list[tuple[int, int]] = field(default_factory=list)
    sources: list[str | None] = field(default_factory=list)
    alternatives: int = 0

    @property
    def history(self):
        return self.trace

    @property
    def origins(self):
        return self.sources

    def count(self, round_) -> None:
        """Take in what became of a round (`lengths.base.Round`)."""
        self.trace.append((round_.drafted, round_.accepted))
        self.sources.append(round_.choice.offer.source if round_.drafted else None)
        self.alternatives += round_.alternative

    @property
    def target_forwards(self) -> int:
        """Target forwards that this row took part in."""
        return self.rounds

    @property
    def token_sources(self) -> list[str | None]:
        """What drafted each new token ("draft", "lookup", …); None: the target's own."""
        rounds = zip(self.trace, self.sources, strict=True)
        found = [s for (_, accepted), source in rounds for s in (*[source] * accepted, None)]
        return found[: self.emitted]


@dataclass
class SpecStats(_Figures):
    """One call to `generate()`, or all calls inside `collect_stats()`.

    Attributes:
        strategy, lossless: of the (last) call; None before any.
        fallback_reason: why a call was decoded without its draft; None if none was.
        off_reason: why the length rule never used the draft; None if it did.
        temperature: of the (last) call; 0 without sampling, None before any.
        target_forwards, draft_forwards: forwards run, prefills included (and one more of the target's where a cache is
            returned and rows ended before others: it reads their last tokens).
        prefill_seconds: both models' reading of the prompts.
        draft_seconds, verify_seconds: in the draft's and the target's forwards after the prefill.
        rest_seconds: everything else after the prefill: acceptance, stops, streams, caches.
        verify_forwards, drafting_forwards: of the target and the draft after the prefill.
        plain_steps: target forwards that plain decoding would have taken after the prefill.
        target_step_seconds: one target forward of one position per row, median of those seen in the call. None if none
            was; set it (from a plain run of the same batch) to make `actual_speedup` known.
    """

    rows: list[RowStats] = field(default_factory=list)
    strategy: str | None = None
    lossless: bool | None = None
    fallback_reason: str | None = None
    off_reason: str | None = None
    temperature: float | None = None
    calls: int = 0
    target_forwards: int = 0
    draft_forwards: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    rest_seconds: float = 0.0
    target_step_seconds: float | None = None
    verify_forwards: int = 0
    drafting_forwards: int = 0
    plain_steps: int = 0

    @property
    def history(self):
        return [entry for row in self.rows for entry in row.trace]

    @property
    def origins(self):
        return [source for row in self.rows for source in row.sources]

    @property
    def emitted(self) -> int:  # type: ignore[override]  # a row counts, a call adds up
        return sum(row.emitted for row in self.rows)

    @property
    def trimmed(self) -> int:
        return sum(row.trimmed for row in self.rows)

    @property
    def alternatives(self) -> int:
        """Accepted tokens that were not the draft's first choice at their place."""
        return sum(row.alternatives for row in self.rows)

    @property
    def decode_seconds(self) -> float:
        """All time after the prefill."""
        return self.draft_seconds + self.verify_seconds + self.rest_seconds

    @property
    def theoretical_speedup(self) -> float | None:
        """E / (1 + c·k): E = tokens per round after the prefill, k = draft forwards per target forward, c = time of a
        draft forward / time of a verifying one (Leviathan et al. 2023, Theorem 3.8, with the acceptance seen here and
        a verifying forward taken to cost one plain step)."""
        rounds = self.rounds - len(self.rows)
        if not (rounds and self.drafting_forwards and self.verify_forwards and self.verify_seconds):
            return None
        gained = (self.emitted - len(self.rows)) / rounds
        cost = (self.draft_seconds / self.drafting_forwards) / (self.verify_seconds / self.verify_forwards)
        return gained / (1 + cost * self.drafting_forwards / self.verify_forwards)

    @property
    def actual_speedup(self) -> float | None:
        """Plain decoding's time after the prefill (its steps × `target_step_seconds`) / the time it took here."""
        if self.target_step_seconds is None or not self.decode_seconds:
            return None
        return self.plain_steps * self.target_step_seconds / self.decode_seconds

    def advice(self) -> "AdviceList":
        """Why the speed-up is what it is, and what to change: see `hf_specgen.advice`."""
        from .advice import advice  # which reads these statistics

        return advice(self)

    def add(self, other: "SpecStats") -> None:
        """Take another call's counts in."""
        self.rows.extend(other.rows)
        self.strategy, self.lossless = other.strategy, other.lossless
        self.temperature = other.temperature
        self.fallback_reason = other.fallback_reason or self.fallback_reason
        self.off_reason = other.off_reason or self.off_reason
        if other.target_step_seconds is not None:
            self.target_step_seconds = other.target_step_seconds
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    @property
    def title(self) -> str:
        """How many tokens, in how many rounds, under which strategy."""
        if not self.calls:
            return "no speculative call"
        where = f"{self.emitted} tokens in {self.rounds} rounds over {len(self.rows)} row(s)"
        return f"{where}, strategy {self.strategy} ({'lossless' if self.lossless else 'LOSSY'})"

    def figures(self) -> list[tuple[str, str]]:
        """The other figures as (name, value), for people; none before any call."""
        if not self.calls:
            return []
        by_position = " ".join(_show(rate, ".0%") for rate in self.acceptance_by_position.reached) or "-"
        sources = [
            (f"  from {source}", f"{seen.accepted} of {seen.drafted} ({_show(seen.acceptance_rate, '.0%')})")
            for source, seen in self.by_source.items()
        ]
        reasons = dict.fromkeys(
            r for r in (self.fallback_reason, self.off_reason, *(row.fallback_reason for row in self.rows)) if r
        )
        return [
            ("accepted", f"{self.accepted} of {self.drafted} drafted ({_show(self.acceptance_rate, '.0%')})"),
            *sources,
            *([("  alternatives", f"{self.alternatives} of those accepted")] if self.alternatives else []),
            ("by position", by_position),
            ("tokens per forward", _show(self.tokens_per_target_forward)),
            ("forwards", f"{self.target_forwards} target, {self.draft_forwards} draft"),
            (
                "seconds",
                f"{self.prefill_seconds:.2f} prefill, {self.draft_seconds:.2f} draft, "
                f"{self.verify_seconds:.2f} verify, {self.rest_seconds:.2f} rest",
            ),
            (
                "speed-up",
                f"{_show(self.actual_speedup, '.2f', '×')} (in theory {_show(self.theoretical_speedup, '.2f', '×')})",
            ),
            *(("without drafts", reason) for reason in reasons),
        ]

    def __str__(self) -> str:
        return "\n".join([self.title, *(f"  {name:20}{value}" for name, value in self.figures())])

    def _repr_html_(self) -> str:
        from .display.stats import html_of

        return html_of(self)


_SUMMED = [
    "calls",
    "target_forwards",
    "draft_forwards",
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "rest_seconds",
    "verify_forwards",
    "drafting_forwards",
    "plain_steps",
]

_collectors: contextvars.ContextVar[tuple[SpecStats, ...]] = contextvars.ContextVar("hf_specgen_collectors", default=())


@contextlib.contextmanager
def collect_stats() -> Iterator[SpecStats]:
    """`with collect_stats() as stats:` sums the speculative calls made inside (by this thread) into one `SpecStats`."""
    stats = SpecStats()
    token = _collectors.set((*_collectors.get(), stats))
    try:
        yield stats
    finally:
        _collectors.reset(token)


def publish(stats: SpecStats) -> None:
    """Hand a finished call's statistics to whoever collects them."""
    for collector in _collectors.get():
        collector.add(stats)


class Clock:
    """Laps by name. On a GPU the laps are CUDA events, so that timing never makes the host wait."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.laps: dict[str, list] = {}
        self.restart()

    def restart(self) -> None:
        """From here on, what no lap covers counts as rest."""
        self.started = time.perf_counter()

    def _now(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def lap(self, name: str):
        begin = self._now()
        yield
        self.laps.setdefault(name, []).append((begin, self._now()))

    def seconds(self, name: str) -> list[float]:
        """Length of each lap of this name."""
        laps = self.laps.get(name, [])
        if self.cuda:
            torch.cuda.synchronize()
            return [begin.elapsed_time(end) / 1000 for begin, end in laps]
        return [end - begin for begin, end in laps]

    def last(self, name: str) -> float:
        """Length of the last lap of this name. On a GPU, ask once the host has waited for it."""
        begin, end = self.laps[name][-1]
        return begin.elapsed_time(end) / 1000 if self.cuda else end - begin

    def fill(self, stats: SpecStats) -> None:
        total = time.perf_counter() - self.started
        names = ("prefill", "draft prefill", "draft", "verify", "step")
        prefill, draft_prefill, draft, verify, step = (self.seconds(name) for name in names)
        stats.prefill_seconds = sum(prefill) + sum(draft_prefill)
        stats.draft_seconds = sum(draft)
        stats.verify_seconds = sum(verify) + sum(step)
        stats.verify_forwards = len(verify) + len(step)
        covered = sum(draft_prefill) + stats.draft_seconds + stats.verify_seconds
        stats.rest_seconds = max(0.0, total - covered)
        stats.target_step_seconds = statistics.median(step) if step else None
