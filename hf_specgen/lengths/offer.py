"""What a drafter and a length rule speak about."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """What one source could draft for one row in the coming round.

    Attributes:
        source: "draft", "lookup", …: statistics and acceptance are kept apart by it.
        most: tokens it can give, at least 1.
        evidence: a small number for how well founded it is; acceptance is learned apart for each (lookup: the length
            of the match).
        costs: whether each token takes a forward of the draft.
    """

    source: str
    most: int
    evidence: int = 0
    costs: bool = True
