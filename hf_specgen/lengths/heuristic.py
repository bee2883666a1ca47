"""transformers' heuristic: two more after a round accepted whole, one less (at least one) after any other."""

from .base import PerRow


class HeuristicLength(PerRow):
    def __init__(self, initial: int = 5):
        super().__init__(initial)
        self._by_row: dict[int, int] = {}

    def next(self, row: int) -> int:
        return self._by_row.get(row, self.initial)

    def learn_row(self, row: int, drafted: int, accepted: int) -> None:
        now = self.next(row)
        self._by_row[row] = now + 2 if accepted == drafted else max(1, now - 1)
