"""Why a speed-up is what it is, and what to change: rules over the statistics of a call."""

from ..stats import SpecStats
from .rule import Advice, AdviceList, Rule
from .rules import RULES


def advice(stats: SpecStats) -> AdviceList:
    """What there is to say of a call, or of the calls collected in `stats`; the most decisive first."""
    return AdviceList(said for rule in RULES if (said := rule.of(stats)) is not None)


__all__ = ["RULES", "Advice", "AdviceList", "Rule", "advice"]
