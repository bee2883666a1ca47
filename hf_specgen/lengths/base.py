"""The interface of a draft-length rule: it lives in one call, rows do not share it. Registered in `SCHEDULES`."""

from abc import ABC, abstractmethod


class Length(ABC):
    def __init__(self, initial: int):
        self.initial = initial

    @abstractmethod
    def next(self, row: int) -> int:
        """Tokens to draft for this row (its index in the batch) in the coming round."""

    @abstractmethod
    def learn(self, row: int, drafted: int, accepted: int) -> None:
        """What became of the row's last round."""
