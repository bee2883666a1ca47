"""How likely drafted tokens are accepted: by source, evidence and position, and by the draft's own confidence."""

from __future__ import annotations

from bisect import bisect_left

MEMORY = 24.0
"""Tokens that an estimate remembers: texts change (code, then prose)."""
NEWEST = 0.8
"""What a trial counts for among the newest, one trial later."""
DEPTH = 16
"""Positions that are told apart."""
APART = 20.0
"""Tokens that the rate of all positions counts for in that of one. With fewer, what was seen in short rounds counts
twice: there the first position is nearly all that there is."""

DRAFT = 0.7
"""First guess for a model: healthy pairs accept 60 to 90 % (Leviathan et al. 2023, Table 3; Spec-Bench)."""
LOOKUP = (0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9)
"""First guess for a match, by its evidence from 0 on: the longer, the better."""

_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.96, 0.99)


def first_guess(source: str, evidence: int) -> float:
    return LOOKUP[min(evidence, len(LOOKUP) - 1)] if source == "lookup" else DRAFT


class Count:
    """Hits among trials, the old ones fading, and with them what was expected before.

    Where the newest are clearly worse than the rest, those count.
    """

    __slots__ = ("hits", "leaning", "newest", "trials")

    def __init__(self, hits: float = 0.0, trials: float = 0.0, newest: float = 1.0):
        self.hits, self.trials, self.newest = float(hits), float(trials), float(newest)
        self.leaning = 1.0  # the part that is left of a prior's weight

    def add(self, hits: float, trials: float) -> None:
        if not trials:
            return
        self.hits, self.trials = self.hits + hits, self.trials + trials
        past = NEWEST**trials
        self.newest = self.newest * past + (hits / trials) * (1 - past)
        if self.trials > MEMORY:
            left = MEMORY / self.trials
            self.hits, self.trials, self.leaning = self.hits * left, MEMORY, self.leaning * left

    def near(self, prior: float, strength: float) -> float:
        """Mean of the Beta posterior for a prior that counts as much as `strength` trials, at first."""
        strength *= self.leaning
        return min((self.hits + strength * prior) / (self.trials + strength), self.newest * 1.25 + 0.1)


class Acceptance:
    """Conditional acceptance: of a token, given that all before it in the round were accepted.

    Estimates lean on a parent (those of all rows, of the session, the first guess) as long as little was seen here,
    and positions lean on each other.
    """

    def __init__(self, parent: Acceptance | None = None, strength: float = 2.0):
        self.parent, self.strength = parent, strength
        self.classes: dict[tuple[str, int], Count] = {}
        self.places: dict[tuple[str, int, int], Count] = {}
        self.bins: dict[int, Count] = {}

    def rate(self, source: str, evidence: int, place: int) -> float:
        """Probability that the token at `place` (from 0) is accepted, before its distribution is known."""
        place = min(place, DEPTH - 1)
        parent = self.parent
        guess = first_guess(source, evidence) if parent is None else parent.rate(source, evidence, place)
        whole = self.classes.get((source, evidence))
        if whole is None:
            return guess
        guess = whole.near(guess, self.strength)
        here = self.places.get((source, evidence, place))
        return guess if here is None else here.near(guess, APART)

    def chain(self, source: str, evidence: int, most: int) -> list[float]:
        """E_w for w = 0 … `most`: expected tokens of a round that drafts w, 1 + Σ_{k≤w} Π_{i≤k} α_i."""
        expected, all_so_far, found = 1.0, 1.0, [1.0]
        for place in range(most):
            all_so_far *= self.rate(source, evidence, place)
            expected += all_so_far
            found.append(expected)
        return found

    def confident(self, top: float, guess: float) -> float:
        """Probability that a model's token is accepted whose distribution gives its most probable token `top`; `guess`
        as long as nothing was seen."""
        bin_ = bisect_left(_EDGES, top)
        if self.parent is not None:
            guess = self.parent.confident(top, guess)
        here = self.bins.get(bin_)
        return guess if here is None else here.near(guess, 4.0)

    def learn(self, source: str, evidence: int, drafted: int, accepted: int, tops: list[float]) -> None:
        """Count a round; `tops`: of the drafted tokens' distributions, where known."""
        reached = min(drafted, accepted + 1)
        self.classes.setdefault((source, evidence), Count()).add(accepted, reached)
        for place in range(reached):
            key = (source, evidence, min(place, DEPTH - 1))
            self.places.setdefault(key, Count()).add(place < accepted, 1)
        for place, top in enumerate(tops[:reached]):
            self.bins.setdefault(bisect_left(_EDGES, top), Count()).add(place < accepted, 1)

    def add(self, other: Acceptance) -> None:
        """Take another's counts in."""
        for name in ("classes", "places", "bins"):
            mine = getattr(self, name)
            for key, count in getattr(other, name).items():
                mine.setdefault(key, Count()).add(count.hits, count.trials)

    def to_dict(self) -> dict:
        return {
            "classes": [[*key, c.hits, c.trials, c.newest] for key, c in sorted(self.classes.items())],
            "places": [[*key, c.hits, c.trials, c.newest] for key, c in sorted(self.places.items())],
            "bins": [[key, c.hits, c.trials, c.newest] for key, c in sorted(self.bins.items())],
        }

    @classmethod
    def from_dict(cls, data: dict) -> Acceptance:
        found = cls()
        for name in ("classes", "places"):
            for *key, hits, trials, newest in data[name]:
                getattr(found, name)[tuple(key)] = Count(hits, trials, newest)
        found.bins = {int(key): Count(*counts) for key, *counts in data["bins"]}
        return found
