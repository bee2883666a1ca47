"""Greedy text: every token that speculation took must be the target's best one, up to the noise of plain decoding.

Plain decoding rounds differently with other numbers of positions per forward and in batches. How far that moves the
distance between two scores, on the same texts, is its noise. A token that is further below the best one than twice the
largest noise was not taken by rounding. Whole texts are judged, each token after the text's own beginning: also what
comes after a divergence from plain's text.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .reading import Reading

WIDTHS = (2, 5, 9)
"""Positions per forward that plain decoding's one is compared with."""
FACTOR = 2.0
"""Times the noise: noise is a maximum over a sample, and another forward may round a little worse."""
SAME, TIE, FAULT = "same", "tie", "fault"


@dataclass
class Noise:
    """How far plain decoding's own distances between scores move, in logits.

    Attributes:
        spacing: distance of neighbouring numbers of the model's dtype at the largest score.
        by_way: largest movement for each other way to read: "2 positions", …, "batch of 4".
        typical: root mean square over all of them.
    """

    spacing: float = 0.0
    by_way: dict[str, float] = field(default_factory=dict)
    squares: float = field(default=0.0, repr=False)
    count: int = field(default=0, repr=False)

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

    @property
    def largest(self) -> float:
        """At least `spacing`: what cannot be written down differently cannot be told apart."""
        return max(self.spacing, *self.by_way.values())

    @property
    def typical(self) -> float:
        return (self.squares / self.count) ** 0.5 if self.count else 0.0

    @property
    def tolerance(self) -> float:
        """A token may be so far below the best one."""
        return FACTOR * self.largest

    def to_dict(self) -> dict:
        figures = {name: getattr(self, name) for name in ("largest", "typical", "spacing", "tolerance")}
        return figures | {"by_way": self.by_way}


@dataclass(frozen=True)
class TextCheck:
    """One speculative text.

    Attributes:
        prompt: index. `how`: "alone" or "batch".
        diverged_at: first token (from 0) that is not plain's; None where the texts are equal.
        gap: there, plain's score of its own token minus its score of the other one. None where one text had ended.
        token, plain_token: the two.
        others: tokens after it that are below the best one of the same beginning.
        worst, worst_at: how far a token is below the best one, at most, and which.
        why: of a fault.
    """

    prompt: int
    how: str
    tokens: int
    verdict: str
    diverged_at: int | None = None
    gap: float | None = None
    token: int | None = None
    plain_token: int | None = None
    others: int = 0
    worst: float = 0.0
    worst_at: int | None = None
    why: str | None = None


def judge(
    prompt: int, how: str, plain: list[int], text: list[int], problem: str | None, read: Reading | None, noise: Noise
) -> TextCheck:
    """
    Args:
        problem: how the text ends wrongly, or None.
        read: plain decoding's reading of `text`, if it is not plain's own.
    """
    if read is None:
        return TextCheck(prompt, how, len(text), FAULT if problem else SAME, why=problem)
    at = next((i for i, (a, b) in enumerate(zip(plain, text, strict=False)) if a != b), None)
    short = read.shortfall
    worst_at = int(short.argmax())
    worst, found = float(short[worst_at]), {}
    if at is not None:
        found = {"gap": float(short[at]), "token": text[at], "plain_token": plain[at]}
    else:
        at = min(len(plain), len(text))
    why = problem
    if beyond := (~(short <= noise.tolerance)).nonzero().flatten().tolist():  # a NaN is a fault as well
        first = f"token {beyond[0]} is {short[beyond[0]]:.3g} below the target's best one"
        more = f", {len(beyond) - 1} after it are, too" if len(beyond) > 1 else ""
        why = f"{first}{more}; rounding explains {noise.tolerance:.2g}"
    return TextCheck(
        prompt,
        how,
        len(text),
        FAULT if why else TIE,
        diverged_at=at,
        **found,
        others=int((short[at + 1 :] > 0).sum()),
        worst=worst,
        worst_at=worst_at,
        why=why,
    )
