"""Keeps the acceptance rate near a wanted one: longer drafts while more is accepted, shorter ones while less is."""

from ..errors import SpecUnsupportedError
from .base import PerRow


class TargetRateLength(PerRow):
    """The adaptive scheduler of published tables ("+8 %"). It looks at acceptance alone, not at what things cost: where
    a draft cannot pay it goes on drafting `minimum` tokens. `goodput` looks at both.

    Args:
        initial, minimum, maximum: tokens to draft.
        rate: acceptance rate (accepted / drafted) that is aimed at.
        interval: rounds of a row after which its number is adjusted by one.
    """

    def __init__(self, initial: int = 5, minimum: int = 1, maximum: int = 16, rate: float = 0.7, interval: int = 4):
        super().__init__(initial)
        self.minimum, self.maximum, self.rate, self.interval = minimum, maximum, rate, interval
        if not 1 <= minimum <= initial <= maximum:
            raise SpecUnsupportedError(
                f"target-rate: minimum={minimum}, initial={initial}, maximum={maximum}: they must rise, from 1."
            )
        if not 0 < rate < 1 or interval < 1:
            raise SpecUnsupportedError(
                f"target-rate: rate={rate} must lie between 0 and 1, interval={interval} must be at least 1."
            )
        self._by_row: dict[int, int] = {}
        self._seen: dict[int, list[tuple[int, int]]] = {}

    def next(self, row: int) -> int:
        return self._by_row.get(row, self.initial)

    def learn_row(self, row: int, drafted: int, accepted: int) -> None:
        seen = self._seen.setdefault(row, [])
        seen.append((drafted, accepted))
        if len(seen) < self.interval:
            return
        rate = sum(a for _, a in seen) / sum(d for d, _ in seen)
        step = 1 if rate > self.rate else -1 if rate < self.rate else 0
        self._by_row[row] = min(self.maximum, max(self.minimum, self.next(row) + step))
        seen.clear()
