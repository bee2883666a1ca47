"""How often draws fall into a set, against the probability that each of them had: exact tests, and what they can see.

Given the text before them, the draws of one position are independent, and draw i falls into its set with a known
probability π_i. Their number then follows the Poisson binomial law, whatever the π are: no cell has to be large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

CHUNK = 256  # draws whose factors are multiplied at once


@dataclass(frozen=True)
class Draws:
    """Draws of one position, and one set for each.

    Attributes:
        inside: bool `[n]`, whether the draw fell into its set.
        chance: float64 `[n]`, π_i under the target's law as plain decoding reads it.
        slack: float64 `[n]`, how far rounding may have moved π_i.
    """

    inside: torch.Tensor
    chance: torch.Tensor
    slack: torch.Tensor

    def __len__(self) -> int:
        return len(self.inside)

    def where(self, mask: torch.Tensor) -> Draws:
        """Those of a bool `[n]`."""
        return Draws(self.inside[mask], self.chance[mask], self.slack[mask])

    @property
    def deviation(self) -> float:
        """Standard deviation of the number inside; of at least one draw, as the number is whole."""
        return max(1.0, float((self.chance * (1 - self.chance)).sum()) ** 0.5)


@dataclass(frozen=True)
class Tails:
    """One-sided p-values: of as many inside or more, of as many or fewer."""

    more: float
    fewer: float

    @property
    def p_value(self) -> float:
        """Two-sided."""
        return min(1.0, 2 * min(self.more, self.fewer))


def poisson_binomial(chance: torch.Tensor) -> torch.Tensor:
    """The law of the number of successes, float64 `[n + 1]`, by the discrete Fourier transform of its characteristic
    function (Hong 2013, "On computing the distribution function for the Poisson binomial distribution"); to 1e-15."""
    n = len(chance)
    angle = 2 * math.pi * torch.arange(n + 1, dtype=torch.float64) / (n + 1)
    turn = torch.polar(torch.ones_like(angle), angle) - 1
    product = torch.ones_like(turn)
    for part in chance.double().cpu().split(CHUNK):
        product = product * (1 + part[:, None] * turn).prod(0)
    return (torch.fft.fft(product).real / (n + 1)).clamp(min=0)


def tails(draws: Draws, u: float) -> Tails:
    """Of one position. Each side is judged by the law within rounding that is closest to what was seen.

    Args:
        u: uniform in (0, 1). It decides how much of the probability of the very number seen counts, so that p-values
            are uniform, not only bounded, under the law.
    """
    seen = int(draws.inside.sum())
    high = poisson_binomial((draws.chance + draws.slack).clamp(0, 1))
    low = poisson_binomial((draws.chance - draws.slack).clamp(0, 1))
    more = float(high[seen + 1 :].sum() + u * high[seen])
    fewer = float(low[:seen].sum() + (1 - u) * low[seen])
    return Tails(min(1.0, more), min(1.0, fewer))


def pooled(found: Sequence[Tails]) -> Tails:
    """Of several positions of the same texts (Stouffer). A position's p-value is uniform given the tokens before it, so
    the sum of normal quantiles is exact although later positions depend on earlier tokens."""

    def side(values: list[float]) -> float:
        p = torch.tensor(values, dtype=torch.float64).clamp(1e-300, 1 - 1e-16)
        return float(torch.special.ndtr(torch.special.ndtri(p).sum() / len(values) ** 0.5))

    return Tails(side([t.more for t in found]), side([t.fewer for t in found]))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted for their number (Holm 1979): those below a level have a chance of at most this level to be wrong."""
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = largest
    return adjusted


def visible_shift(positions: Sequence[Draws], level: float, power: float) -> float:
    """The probability that a wrong rule must move into the sets, or out of them, at every draw, for `pooled` (or, of
    one position, `tails`) to fall below `level` with this power. Normal approximation; 1 without draws."""
    positions = [draws for draws in positions if len(draws)]
    if not positions:
        return 1.0
    wanted = _quantile(1 - level / 2) + _quantile(power)
    slack = sum(float(draws.slack.sum()) / draws.deviation for draws in positions)
    return min(1.0, (wanted * len(positions) ** 0.5 + slack) / sum(len(d) / d.deviation for d in positions))


def _quantile(p: float) -> float:
    return float(torch.special.ndtri(torch.tensor(p, dtype=torch.float64)))
