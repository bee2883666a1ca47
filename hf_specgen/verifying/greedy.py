"""Greedy text: every token that speculation took must be the target's best one, up to the noise of plain decoding.

Plain decoding rounds differently with other numbers of positions per forward and in batches. How far that moves the
distance between two scores, on the same texts, is its noise. Two things are faults:

- a token that is further below the best one than twice the largest noise of the way its text was decoded in;
- more tokens below the best one, however little, than plain decoding takes itself when it reads another way: what a
  rule that is merely lenient does.

Whole texts are judged, each token after the text's own beginning: also what comes after a divergence from plain's text.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch

from .reading import Reading

if TYPE_CHECKING:
    from .texts import Text

FACTOR = 2.0
"""Times the noise: noise is a maximum over a sample, and another forward may round a little worse."""
LEVEL = 1e-4
"""Chance that the number of tokens that rounding alone puts below the best one is called a fault."""
SAME, TIE, FAULT = "same", "tie", "fault"


@dataclass
class Noise:
    """How far plain decoding's own distances between scores move, in logits.

    Attributes:
        beside: noise of other ways that occur here, too: the last rows of a batch decode alone.
        spacing: distance of neighbouring numbers of the model's dtype at the largest score.
        by_way: largest movement for each other way to read: "2 positions", …, "batch of 4, 6 positions".
        typical: root mean square over all of them.
        positions, flips: that were read another way; at which another token was the best one there.
        leads: of plain's own texts, see `Reading.lead`.
    """

    beside: Noise | None = field(default=None, repr=False)
    spacing: float = 0.0
    by_way: dict[str, float] = field(default_factory=dict)
    squares: float = field(default=0.0, repr=False)
    count: int = field(default=0, repr=False)
    positions: int = 0
    flips: int = 0
    leads: list[torch.Tensor] = field(default_factory=list, repr=False)

    def add(self, way: str, plain: Reading, other: Reading, dtype: torch.dtype) -> None:
        """Take in another reading of the ids of `plain`."""
        distances = [r.scores[:, 1:].double() - r.scores[:, 1:2].double() for r in (plain, other)]
        moved = (distances[1] - distances[0])[:, 1:]
        moved = moved[moved.isfinite()].abs()
        largest = plain.scores[plain.scores.isfinite()].abs().max()
        self.spacing = max(self.spacing, float(torch.finfo(dtype).eps * largest))
        self.by_way[way] = max(self.by_way.get(way, 0.0), float(moved.max()) if len(moved) else 0.0)
        self.squares += float((moved**2).sum())
        self.count += len(moved)
        self.positions += len(plain.scores)
        self.flips += int((distances[1][:, 1:] > 0).any(1).sum())

    @property
    def largest(self) -> float:
        """At least `spacing`: what cannot be written down differently cannot be told apart."""
        return max(self.spacing, *self.by_way.values(), self.beside.largest if self.beside else 0.0)

    @property
    def typical(self) -> float:
        return (self.squares / self.count) ** 0.5 if self.count else 0.0

    @property
    def tolerance(self) -> float:
        """A token may be so far below the best one."""
        return FACTOR * self.largest

    @property
    def decided(self) -> float:
        """Share of the positions of plain's texts at which no other token than the best one would pass."""
        return float((torch.cat(self.leads) > self.tolerance).double().mean())

    def to_dict(self) -> dict:
        names = ("largest", "typical", "spacing", "tolerance", "decided", "positions", "flips", "by_way")
        return {name: getattr(self, name) for name in names}


class Counts(NamedTuple):
    """Tokens below the best one, of all tokens: ours, and those of plain decoding when it reads another way."""

    ours: int
    tokens: int
    plain: int
    positions: int

    @property
    def p_value(self) -> float:
        """Of so many of ours, or more, if ours were as frequent as plain's; given how many there are of both (Fisher's
        exact test, one-sided)."""
        both = self.ours + self.plain
        ours = range(self.ours, min(both, self.tokens) + 1)
        tables = sum(math.comb(self.tokens, x) * math.comb(self.positions, both - x) for x in ours)
        return tables / math.comb(self.tokens + self.positions, both)

    def visible(self, level: float) -> float:
        """Share of our tokens that would have to be below the best one for a p-value below `level`; 1 where none is."""
        counts = range(self.tokens + 1)
        least = bisect.bisect_left(counts, True, key=lambda ours: self._replace(ours=ours).p_value < level)
        return min(1.0, least / self.tokens) if self.tokens else 1.0


@dataclass(frozen=True)
class Flips:
    """Whether speculation takes other tokens than the best more often than rounding does.

    Attributes:
        ways: counts by the way that texts were decoded in: one may round worse than another, and excuses nothing there.
    """

    ways: dict[str, Counts]

    @property
    def p_value(self) -> float:
        """The smallest, adjusted for their number (Bonferroni)."""
        return min(1.0, len(self.ways) * min(counts.p_value for counts in self.ways.values()))

    @property
    def passed(self) -> bool:
        return self.p_value >= LEVEL

    @property
    def visible(self) -> float:
        """Share of our tokens that would have to be below the best one to be a fault, in the way that shows the least;
        1 where nothing would be."""
        return max(counts.visible(LEVEL / len(self.ways)) for counts in self.ways.values())

    def __str__(self) -> str:
        told = (
            f"{how} {counts.ours} of {counts.tokens} tokens are below the best one, and {counts.plain} of "
            f"{counts.positions} where plain decoding reads another way"
            for how, counts in self.ways.items()
        )
        return f"{'; '.join(told)} (p = {self.p_value:.2g})"

    def to_dict(self) -> dict:
        told = {name: getattr(self, name) for name in ("p_value", "passed", "visible")}
        return told | {"level": LEVEL, "ways": {how: counts._asdict() for how, counts in self.ways.items()}}


@dataclass(frozen=True)
class TextCheck:
    """One speculative text.

    Attributes:
        prompt: index. `how`: "alone", "batch", or "default" (settings that `generate` chooses by itself).
        drafted, accepted: tokens.
        flips: tokens below the best one of the same beginning.
        diverged_at: first token (from 0) that is not plain's; None where the texts are equal.
        gap: there, plain's score of its own token minus its score of the other one. None where one text had ended.
        token, plain_token: the two.
        others: those of `flips` that come after it.
        worst, worst_at: how far a token is below the best one, at most, and which.
        why: of a fault.
    """

    prompt: int
    how: str
    tokens: int
    verdict: str
    drafted: int = 0
    accepted: int = 0
    flips: int = 0
    diverged_at: int | None = None
    gap: float | None = None
    token: int | None = None
    plain_token: int | None = None
    others: int = 0
    worst: float = 0.0
    worst_at: int | None = None
    why: str | None = None


def judge(text: Text, plain: Sequence[int], read: Reading | None, tolerance: float) -> TextCheck:
    """
    Args:
        plain: plain decoding's text.
        read: plain decoding's reading of our text, if that is another one.
        tolerance: of the way that it was decoded in.
    """
    known = {"drafted": text.drafted, "accepted": text.accepted}
    if read is None:
        verdict = FAULT if text.problem else SAME
        return TextCheck(text.prompt, text.how, len(text.ids), verdict, why=text.problem, **known)
    at = next((i for i, (a, b) in enumerate(zip(plain, text.ids, strict=False)) if a != b), None)
    short, why = read.shortfall, text.problem
    if at is not None:
        known |= {"gap": float(short[at]), "token": text.ids[at], "plain_token": plain[at]}
    else:
        at = min(len(plain), len(text.ids))
    if beyond := (~(short <= tolerance)).nonzero().flatten().tolist():  # a NaN is a fault as well
        first = f"token {beyond[0]} is {short[beyond[0]]:.3g} below the target's best one"
        more = f", {len(beyond) - 1} after it are, too" if len(beyond) > 1 else ""
        why = f"{first}{more}; rounding explains {tolerance:.2g}"
    worst_at = int(short.argmax())
    return TextCheck(
        text.prompt,
        text.how,
        len(text.ids),
        FAULT if why else TIE,
        **known,
        flips=int((short > 0).sum()),
        diverged_at=at,
        others=int((short[at + 1 :] > 0).sum()),
        worst=float(short[worst_at]),
        worst_at=worst_at,
        why=why,
    )
