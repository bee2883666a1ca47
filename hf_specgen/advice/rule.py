"""What a rule is, and what it says."""

import operator
from collections.abc import Callable
from dataclasses import dataclass

from ..stats import SpecStats

SIGNS = {operator.lt: "under", operator.gt: "over", operator.ge: "from"}


@dataclass(frozen=True)
class Advice:
    """What one rule says of a call.

    Attributes:
        rule: its name.
        figure, threshold: what was seen, and the value at which the rule begins to speak.
        source: where the threshold comes from.
        seen, means, do: the figure in words, what it means, what to do about it: a sentence each.
    """

    rule: str
    figure: float
    threshold: float
    source: str
    seen: str
    means: str
    do: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}\n  {self.means}\n  -> {self.do}\n  ({self.source})"


class AdviceList(list[Advice]):
    """The most decisive first; `print` shows sentences."""

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or "no advice: nothing stands out"


@dataclass(frozen=True)
class Rule:
    """Speaks where `speaks(figure, threshold)`.

    Attributes:
        figure: of a call; None where it was not measured.
        speaks: one of `SIGNS`.
        source: of the threshold: a place in a paper, or the command that measures it; or what it was chosen by.
        seen: a sentence for a call and its figure.
    """

    name: str
    figure: Callable[[SpecStats], float | None]
    speaks: Callable[[float, float], bool]
    threshold: float
    source: str
    seen: Callable[[SpecStats, float], str]
    means: str
    do: str

    def of(self, stats: SpecStats) -> Advice | None:
        """None: not measured, or nothing to say."""
        figure = self.figure(stats)
        if figure is None or not self.speaks(figure, self.threshold):
            return None
        source = f"{SIGNS[self.speaks]} {self.threshold:g}: {self.source}"
        return Advice(self.name, figure, self.threshold, source, self.seen(stats, figure), self.means, self.do)
