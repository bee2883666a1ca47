"""The default: draft what brings the most tokens per second, and nothing where nothing pays.

What drafting brings and costs is learned in the call (and from a session's or a configuration's `Knowledge`). Where the
ids would depend on it, with sampling and a rule such as rejection, each row is planned by itself, with costs that are
fixed before the call: estimated from the models' sizes, or known from before.
"""

from __future__ import annotations

from .acceptance import Acceptance
from .base import Length, Round, Seconds, Terms
from .costs import Costs
from .knowledge import Knowledge
from .planner import LONGEST, Planner

SHARED = 3.0
"""What a position counts for where costs are only estimated and neighbours may not be looked at: a row's forwards may
be shared by others, and in a batch a CPU pays for every position (8 rows: 0.3 of a step for one more each)."""
TOGETHER = -1
"""In place of a row's index: all rows."""


class GoodputLength(Length):
    """Args:
    longest: tokens that a model drafts in a round, at most.
    """

    def __init__(self, longest: int = LONGEST):
        self.longest = longest

    def start(self, terms: Terms) -> None:
        self.terms = terms
        knowledge = terms.knowledge or Knowledge()
        self.known, self.seen = knowledge.acceptance, Acceptance()
        known = knowledge.costs is not None
        self.costs = self._expected(1.0 if terms.free or known else SHARED)
        self.measured = self.costs if terms.free else self._expected()
        if knowledge.costs is not None:
            self.costs.take(knowledge.costs)
        self.planners: dict[int, Planner] = {}

    def _expected(self, shared: float = 1.0) -> Costs:
        terms = self.terms
        return Costs(terms.target_step, terms.draft_step, shared * terms.position_cost, terms.second_cost)

    def _planner(self, index: int) -> Planner:
        """Of the row of this index; one for all rows, where they may be planned together."""
        index = TOGETHER if self.terms.free else index
        if index not in self.planners:
            self.planners[index] = Planner(self.terms, self.costs, self.known, self.longest)
        return self.planners[index]

    def choose(self, rows, offers):
        if self.terms.free:
            return self._planner(TOGETHER).choose(rows, offers)
        return [self._planner(row.index).choose([row], [found])[0] for row, found in zip(rows, offers, strict=True)]

    def goes_on(self, rows, step, tops):
        if self.terms.free:
            return [self._planner(TOGETHER).goes_on(rows, step, tops)] * len(rows)
        return [self._planner(row.index).goes_on([row], step, [top]) for row, top in zip(rows, tops, strict=True)]

    def alternative_pays(self, rows, step, tops, shares):
        return self._planner(TOGETHER).alternative_pays(rows, step, tops, shares)

    def learn(self, rounds: list[Round], seconds: Seconds) -> None:
        self.measured.observe_target(seconds.rows, seconds.width, seconds.target)
        if seconds.steps:
            draft = seconds.draft / seconds.steps
            self.measured.observe_draft(seconds.rows, draft, seconds.width, seconds.target)
        for r in rounds:
            if (offer := r.choice.offer) is not None:
                self.seen.learn(
                    offer.source, offer.evidence, r.drafted, r.first_choices, self._planner(r.index).tops[r.index]
                )
        if self.terms.free:
            planner = self._planner(TOGETHER)
            planner.learn(rounds, planner.time(seconds.width - 1, seconds.steps))
            return
        for one in rounds:
            planner = self._planner(one.index)
            steps = max(one.drafted, 1) if one.choice.costs else 0
            planner.learn([one], planner.time(one.drafted, steps))

    def teach(self, knowledge: Knowledge) -> None:
        """Add what this call has seen."""
        knowledge.acceptance.add(self.seen)
        if self.measured.measured:
            knowledge.costs = self.measured.to_dict()

    @property
    def why_off(self) -> str | None:
        """Why no row was ever given to the draft; None if one was, or none was asked."""
        reasons = [planner.why_off for planner in self.planners.values()]
        return reasons[0] if reasons and all(reasons) else None
