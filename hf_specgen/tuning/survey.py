"""What a pair's forwards cost and what of its drafts is accepted: rounds of every width in turn, before anything is
chosen by it."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Iterator

from ..lengths import Knowledge
from ..lengths.acceptance import MEMORY, Acceptance, Count
from ..lengths.base import NOTHING, Choice, Length

WIDTHS = (4, 0, 2, 8, 1, 6, 3, 5, 7)
"""Tokens drafted in a round, in turn; 0 is a plain step. Mixed, so that short answers see wide and narrow ones."""


class Survey(Length):
    """Drafts so many tokens as the turn says, all rows alike (they share a forward), from the text and from the model
    alternately where both can.

    Each call decodes with a copy. It is kept in `calls` and holds what was seen: `target` and `draft`, seconds of
    forwards by (rows, width) and by rows, and `seen`.
    """

    def __init__(self, turns: Iterator[int] | None = None):
        self.turns = turns or itertools.cycle(WIDTHS)
        self.calls: list[Survey] = []
        self.target: dict[tuple[int, int], list[float]] = {}
        self.draft: dict[int, list[float]] = {}
        self.seen = Acceptance()
        self.tops: dict[int, list[float]] = {}
        self.looks_up = False

    def __deepcopy__(self, memo) -> Survey:
        copy = Survey(self.turns)
        self.calls.append(copy)
        return copy

    def choose(self, rows, offers):
        self.tops = {row.index: [] for row in rows}
        self.looks_up, width = not self.looks_up, next(self.turns)
        return [self._choice(found, width) for found in offers]

    def _choice(self, offers, width: int) -> Choice:
        offer = next((o for o in offers if o.costs != self.looks_up), next(iter(offers), None))
        return Choice(offer, min(width, offer.most)) if offer is not None and width else NOTHING

    def goes_on(self, rows, step, tops):
        for row, top in zip(rows, tops, strict=True):
            self.tops[row.index].append(top)
        return [True] * len(rows)

    def learn(self, rounds, seconds):
        self.target.setdefault((seconds.rows, seconds.width), []).append(seconds.target)
        if seconds.steps:
            self.draft.setdefault(seconds.rows, []).append(seconds.draft / seconds.steps)
        for index, (offer, _), drafted, accepted, _ in rounds:
            if offer is not None:
                self.seen.learn(offer.source, offer.evidence, drafted, accepted, self.tops[index])


def knowledge_of(calls: Iterable[Survey]) -> Knowledge:
    """Of some calls together, each counting as much as it has seen."""
    calls = list(calls)
    target, draft = _medians(call.target for call in calls), _medians(call.draft for call in calls)
    costs = {"target": [[*key, seconds] for key, seconds in target], "draft": [list(pair) for pair in draft]}
    return Knowledge(costs, pooled([call.seen for call in calls]))


def with_draft_costs(knowledge: Knowledge, calls: Iterable[Survey]) -> Knowledge:
    """The same of a draft that steps as fast as in these calls."""
    draft = [list(pair) for pair in _medians(call.draft for call in calls)]
    return Knowledge({**knowledge.costs, "draft": draft}, knowledge.acceptance)


def pooled(parts: list[Acceptance]) -> Acceptance:
    """All counts together, scaled to what an estimate remembers: added one after the other, the last would win."""
    found = Acceptance()
    for name in ("classes", "places", "bins"):
        together: dict = getattr(found, name)
        for key in sorted({key for part in parts for key in getattr(part, name)}):
            counts = [count for part in parts if (count := getattr(part, name).get(key)) is not None]
            hits, trials = sum(c.hits for c in counts), sum(c.trials for c in counts)
            scale = min(1.0, MEMORY / trials) if trials else 1.0
            together[key] = Count(hits * scale, trials * scale)
    return found


def _medians(tables: Iterable[dict]) -> list[tuple]:
    together: dict = {}
    for table in tables:
        for key, seconds in table.items():
            together.setdefault(key, []).extend(seconds)
    return [(key, statistics.median(seconds)) for key, seconds in sorted(together.items())]
