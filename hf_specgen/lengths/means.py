"""Means that follow what changes."""

SLOW, FAST = 0.97, 0.85
"""What a value counts for, one round later: little noise, or little delay."""
FIRST = 10.0
"""Rounds that a first estimate counts for, at first."""
SLACK = 1.25
"""By how much noise may lift the slow mean above the fast one."""


class FadingMean:
    """Of values seen, newer ones counting more, around a first estimate that fades with them. Where the newest values
    are clearly lower than the rest, they are what counts: a text that has changed must not live on its past."""

    def __init__(self):
        self.sum = self.weight = 0.0
        self.first = FIRST
        self.fast: float | None = None

    def add(self, x: float) -> None:
        self.sum, self.weight, self.first = self.sum * SLOW + x, self.weight * SLOW + 1, self.first * SLOW
        if self.weight > 1 / (1 - FAST):
            self.fast = self.around(x) if self.fast is None else self.fast * FAST + x * (1 - FAST)

    def around(self, estimate: float) -> float:
        slow = (self.sum + self.first * estimate) / (self.weight + self.first)
        return slow if self.fast is None else min(slow, self.fast * SLACK)
