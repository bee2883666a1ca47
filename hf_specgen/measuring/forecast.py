"""What to expect of K drafted tokens a round, from how far a draft agrees with texts of its target. Pure arithmetic.

A lossless round leaves the target's text as it is, so each text can be walked with any K: a round begins where the last
one ended. Greedy decoding makes the walk a certain one, sampling gives every step its probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..stats import AcceptanceByPosition


@dataclass(frozen=True)
class Agreement:
    """How far a draft agrees with one text. Index t is the t-th new token; token 0 comes of the prefill, undrafted.

    Attributes:
        kept: probability that what is drafted at t stays, given the text. Greedy: 1 where the draft's argmax is the
            text's token, else 0. Sampling: min(1, q(x)/p(x)), since min(p, q)(x) of the p(x) comes of the draft.
        overlap: the same for any text: 1 − TV(p, q) = Σ min(p, q), the mean of `kept` over the target's tokens. None
            for token 0, and where the text is beyond the draft's context.
        ends: probability that a drafted token which does not stay is an EOS, after which its round drafts no more.
        eos: whether the text's own token is one of those.
        room: most tokens that a round may draft that begins at t.
    """

    kept: Sequence[float]
    overlap: Sequence[float | None]
    ends: Sequence[float]
    eos: Sequence[bool]
    room: Sequence[int]


@dataclass
class Forecast:
    """Expected counts of texts decoded with K = `k`, by the definitions of `hf_specgen.SpecStats`.

    What a draft writes after its first mistake in a round is not known to `forecast`. It is taken not to end early, so
    `drafted` may be a little too high where a draft often writes EOS.

    Attributes:
        texts, emitted: how many, and their tokens.
        rounds: prefills included.
        by_width: rounds after the prefill by how many tokens they were allowed to draft, index 0 to k.
        hits, reached, asked: per place in a round: tokens accepted there; rounds that drafted there after accepting all
            before; rounds that drafted there.
    """

    k: int
    texts: int = 0
    emitted: int = 0
    rounds: float = 0.0
    drafted: float = 0.0
    by_width: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)

    def __post_init__(self):
        self.by_width = self.by_width or [0.0] * (self.k + 1)
        for name in ("hits", "reached", "asked"):
            setattr(self, name, getattr(self, name) or [0.0] * self.k)

    @property
    def accepted(self) -> float:
        return sum(self.hits)

    @property
    def acceptance_rate(self) -> float | None:
        return _ratio(self.accepted, self.drafted)

    @property
    def tokens_per_target_forward(self) -> float | None:
        """emitted / rounds, prefills included."""
        return _ratio(self.emitted, self.rounds)

    @property
    def tokens_per_round(self) -> float | None:
        """The same without the prefills: what a round gives, its own token included."""
        return _ratio(self.emitted - self.texts, sum(self.by_width))

    @property
    def acceptance_by_position(self) -> AcceptanceByPosition:
        conditional = [_ratio(h, r) for h, r in zip(self.hits, self.reached, strict=True)]
        return AcceptanceByPosition(conditional, [_ratio(h, a) for h, a in zip(self.hits, self.asked, strict=True)])

    def add_round(self, width: int, drafted: int, accepted: int) -> None:
        """Count one round after the prefill, which was allowed to draft `width` tokens."""
        self.rounds += 1
        self.by_width[width] += 1
        self.drafted += drafted
        for i in range(drafted):
            self.asked[i] += 1
            self.reached[i] += i <= accepted
            self.hits[i] += i < accepted

    def cost(self, round_costs: Sequence[float]) -> float:
        """The rounds after the prefill, when one that may draft w tokens costs `round_costs[w]`."""
        return sum(rounds * cost for rounds, cost in zip(self.by_width, round_costs, strict=False))


@dataclass(frozen=True)
class Outlook:
    """What to expect of a draft on one text.

    Attributes:
        forecasts: for K = 1, 2, …
        overlap: how likely each token is kept that is drafted behind nothing but the text's own, see `Agreement`.
        teacher_forced: from one reading of the text; else the draft has written against it with each K.
    """

    forecasts: Sequence[Forecast]
    overlap: Sequence[float]
    teacher_forced: bool = True


def outlook(text: Agreement, largest: int) -> Outlook:
    """Walk one text with K = 1 … `largest`."""
    return Outlook([forecast(text, k) for k in range(1, largest + 1)], [x for x in text.overlap if x is not None])


def forecast(text: Agreement, k: int) -> Forecast:
    """Walk one text with K = `k`."""
    found = Forecast(k, texts=1, emitted=len(text.kept), rounds=1.0)
    end = found.emitted
    begins = [0.0] * (end + 1)  # expected number of rounds that begin at t
    begins[min(1, end)] = 1.0
    for start in range(1, end):
        if begins[start]:
            width = min(k, text.room[start])
            found.rounds += begins[start]
            found.by_width[width] += begins[start]
            _walk_round(text, start, width, begins, found)
    return found


def _walk_round(text: Agreement, start: int, width: int, begins: list[float], found: Forecast) -> None:
    """Add what rounds beginning at `start` do to `found`, and where the next ones begin to `begins`."""
    end = found.emitted
    right, wrong = begins[start], 0.0  # rounds that have accepted all so far; that have not, and draft on
    for i in range(width):
        t = start + i
        if t >= end or (i > 0 and text.eos[t - 1]):  # what was accepted last ends the drafting, or the text
            found.drafted += right * i
            begins[min(t + 1, end)] += right
            right = 0.0
        found.asked[i] += right + wrong
        found.reached[i] += right
        if not right:
            continue
        hit = right * text.kept[t]
        missed, right = right - hit, hit
        found.hits[i] += hit
        begins[t + 1] += missed
        found.drafted += missed * text.ends[t] * (i + 1)
        wrong += missed * (1 - text.ends[t])
    found.drafted += (right + wrong) * width
    begins[min(start + width + 1, end)] += right


def total(forecasts: Sequence[Forecast]) -> Forecast:
    """The sum of forecasts with the same K."""
    columns = {n: [getattr(f, n) for f in forecasts] for n in ("texts", "emitted", "rounds", "drafted")}
    places = {n: [getattr(f, n) for f in forecasts] for n in ("by_width", "hits", "reached", "asked")}
    return Forecast(
        forecasts[0].k,
        **{name: sum(values) for name, values in columns.items()},
        **{name: [sum(x) for x in zip(*lists, strict=True)] for name, lists in places.items()},
    )


def break_even(k: int, round_cost: float) -> float | None:
    """The acceptance α, alike at every place, at which K = `k` gives as many tokens a round as it costs plain steps:
    (1 − α^(K+1)) / (1 − α) = cost. None if even α = 1 does not."""
    if round_cost > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        if sum(middle**i for i in range(k + 1)) < round_cost:
            low = middle
        else:
            high = middle
    return high


def _ratio(a: float, b: float) -> float | None:
    return a / b if b else None
