"""Means that follow what changes."""

FADING = 0.97
"""What a value counts for, one round later."""
FIRST = 10.0
"""Rounds that a first estimate counts for, at first."""


class FadingMean:
    """Of values seen, newer ones counting more, around a first estimate that fades with them."""

    def __init__(self):
        self.sum = self.weight = 0.0
        self.first = FIRST

    def add(self, x: float) -> None:
        self.sum, self.weight, self.first = self.sum * FADING + x, self.weight * FADING + 1, self.first * FADING

    def around(self, estimate: float) -> float:
        return (self.sum + self.first * estimate) / (self.weight + self.first)
