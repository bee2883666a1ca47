"""What drafting may lose: the reason why a call is never much slower than plain decoding, whatever the draft."""

ALLOWANCE = 1.5
"""Plain steps that trying a draft may cost in a call."""
SHARE = 0.01
"""And so much more of the time that the call has taken."""
FIRST_WAIT = 6
"""Rounds without drafts before one is tried again. Doubled after every trial in vain: a text may change."""
TOGETHER = 8
"""Trials are made in rounds that this number divides: rows that are planned apart then pay for one forward."""


class Budget:
    """Keeps account, in plain steps: `lost` is the time that the rounds took beyond what plain decoding would have
    taken for their tokens (negative: gained)."""

    def __init__(self, allowance: float = ALLOWANCE):
        self.allowance = allowance
        self.taken = self.lost = 0.0
        self.rounds, self.idle, self.wait = 0, 0, FIRST_WAIT

    @property
    def left(self) -> float:
        """What may still be lost."""
        return self.allowance + SHARE * self.taken - self.lost

    def allows(self, cost: float) -> bool:
        return cost <= self.left

    def trial_due(self, cost: float) -> bool:
        return self.idle >= self.wait and self.rounds % TOGETHER == 0 and self.allows(cost)

    def book(self, time: float, tokens: float, drafted: bool, tried: bool) -> None:
        """Count a round of so many plain steps and tokens per row. `tried`: with the source that trials are made of."""
        self.taken += time
        self.rounds += 1
        if drafted:
            self.lost += time - tokens
        if not tried:
            self.idle += 1
            return
        if tokens > time:
            self.wait = FIRST_WAIT
        elif self.idle >= self.wait:
            self.wait *= 2
        self.idle = 0
