"""The length rule of a call that is to be decoded token by token."""

from .base import NOTHING, Length


class Undrafted(Length):
    """Drafts nothing, and says why.

    Args:
        reason: for the statistics' `off_reason`.
    """

    def __init__(self, reason: str):
        self.reason = reason

    def choose(self, rows, offers):
        return [NOTHING] * len(rows)

    def learn(self, rounds, seconds):
        pass

    @property
    def why_off(self):
        return self.reason
