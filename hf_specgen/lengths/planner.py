"""The best use of a round, for rows that are planned together. Time is counted in plain steps of those rows.

With a_k = Π_{i≤k} α_i, a round that drafts K tokens gives a row E_K = 1 + Σ_{k≤K} a_k tokens and takes
T_K = t_target(K+1) + Σ_{k≤K} c_k (Leviathan et al. 2023, section 3.3, with acceptance by position and measured steps).
Tokens per time are highest under the rule that maximises tokens − R·time in every round, where R is the rate that this
rule reaches (renewal reward; Dinkelbach 1967). R is never below 1, plain decoding's.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from .acceptance import Acceptance, Count
from .base import NOTHING, Choice, Round, Terms
from .budget import ALLOWANCE, Budget
from .costs import Costs
from .means import FadingMean
from .offer import Offer

LONGEST = 16
"""Tokens that a model drafts in a round, at most."""
MARGIN = 0.01
"""Tokens per row that drafting must be expected to gain over a plain step: below it, noise decides."""
BEST_CASE = 0.95
"""Acceptance that no draft is taken to exceed: one that could not pay even so is not begun."""
DRAFT = "draft"
"""The source whose drafts can be stopped inside: a model."""
BLIND_EVIDENCE = 5
"""Where costs are only estimated and neighbours may not be looked at, a match has to be longer (see
`drafters.lookup.evidence`): the others pay for what it drafts."""
BLIND_WIDTH = 0.06
"""And the model drafts no more tokens than cost so much of a step: in a forward that is shared, all pay for the longest
draft. On a GPU this leaves six. On a CPU it leaves one, and nothing is drafted: rows that judge the same draft by their
own texts come to different ends, and those that draft would hold up the others by more than they gain."""
WAITING = (
    "sampled rows are planned apart, and without known costs those that draft could hold up others by more than they "
    "gain"
)
REMEDY = 'pass spec_session=SpecSession(), a tuned spec_config, or spec_strategy="coupled"'
BLIND = f"{WAITING}: {REMEDY}"
READING = 0.05
"""So much of a batch's time the draft may take to read the prompts, before it is known whether it is any good. A single
row has more to gain from a draft, and less to read."""
FAMILIAR, UNKNOWN = 4.0, 16.0
"""Tokens that the acceptance to start from counts for: what a session or a file knows, and the first guess, which texts
of a fitting pair stray from by 0.1 to 0.15. A draft that does not fit at all is left to the budget."""
BET = 2 / 3
"""So much of what may be lost is risked in one round: an answer may begin with a token that nobody would guess."""
SAVED = 0.5
"""First guess: where the model's token is rejected, an alternative was read and is right so often."""
SURE = 1.3
"""An expected rate from which on plain decoding need not be timed to know that drafting pays."""


@dataclass
class Prospect:
    """What a row may expect: `found[w]` tokens if it drafts w of its match, `model` tokens if the model drafts."""

    row: object
    lookup: Offer | None
    draft: Offer | None
    found: list[float]
    weight: float
    model: float = 1.0


class Planner:
    """Chooses for some rows together: all of a batch, or one.

    Args:
        known: acceptance to start from.
        longest: tokens that a model drafts in a round, at most.
    """

    def __init__(self, terms: Terms, costs: Costs, known: Acceptance, longest: int):
        self.terms, self.costs = terms, costs
        self.blind = not terms.free and not costs.measured
        position = terms.position_cost + terms.second_cost
        bearable = BLIND_WIDTH / position if self.blind and position else float("inf")  # tokens of one row, for others
        self.harmful = bearable < 2
        self.longest = longest if bearable >= longest else round(bearable)
        # Rows that a forward is taken to have where neighbours may not be looked at (there, costs do not change).
        self.usual_rows = costs.usual_rows
        self.together = Acceptance(known, strength=FAMILIAR if known.classes else UNKNOWN)
        self.apart: dict[int, Acceptance] = {}
        self.paces: dict[int, FadingMean] = {}  # by the row's index: tokens of a round
        self.gains: dict[int, FadingMean] = {}  # and of one in which the model drafted
        self.times = FadingMean()  # of such rounds
        self.saved = Count()  # rejected tokens of the model, and those with an alternative that was right
        self.budget = Budget(ALLOWANCE / 2 if self.blind else ALLOWANCE)  # neighbours pay for this row's trials
        self.several = False  # whether there was ever more than one row
        self.begun = False  # whether the model has drafted
        self.modelling = False  # whether it could in this round
        self.rate = 1.0  # R
        # Of this round: the part of a step that each row takes for itself; and, by the row's index, tokens to its
        # limit, what a token is worth, the tops of its drafted tokens' distributions, the chance that all of those are
        # accepted.
        self.own = 0.0
        self.rests: dict[int, int] = {}
        self.worth: dict[int, float] = {}
        self.tops: dict[int, list[float]] = {}
        self.chances: dict[int, float] = {}
        self.why_off: str | None = None

    def choose(self, rows: list, offers: list[list[Offer]]) -> list[Choice]:
        self.size = len(rows)
        self.sharing = self.size if self.terms.free else self.usual_rows
        if self.size > 1 and not self.several:
            self.several = True
            # Many rows learn at once, and none of them can make good a loss alone.
            self.budget.allowance = ALLOWANCE / 2
        self.tops, self.chances = {row.index: [] for row in rows}, {row.index: 1.0 for row in rows}
        self.worth = self._worth(rows)
        prospects = [self._prospect(row, found) for row, found in zip(rows, offers, strict=True)]
        model_time = self._ask_model(prospects)
        self.modelling = model_time is not None
        with_model, width = self._best(prospects, model_time if self.rate > 1 + MARGIN else None)
        if not with_model and not width:
            drafting = model_time is not None
            if self.budget.trial_due(self.time(1, int(drafting)) - 1):
                return [self._trial(p, drafting) for p in prospects]
        elif self._plain_is_known():
            return [self._choice(p, with_model, width) for p in prospects]
        elif not self.terms.second_cost:
            self.width = 1
            return [self._choice(p, with_model, min(width, 1)) for p in prospects]
        return [NOTHING] * self.size

    def goes_on(self, rows: list, step: int, tops: list[float]) -> bool:
        """Whether these rows' model should draft one more token after its `step`-th: while what that adds is worth the
        time, a_{K+1} > R·(c + t_target(K+2) − t_target(K+1)) in sum over the rows."""
        worth, saving = 0.0, self._saving()
        for row, top in zip(rows, tops, strict=True):
            self.chances[row.index] *= self._confidence(row, step, top)
            self.tops[row.index].append(top)
            after = self._acceptance(row.index).rate(DRAFT, 0, step + 1)
            worth += self.worth[row.index] * self.chances[row.index] * (after + (1 - after) * saving)
        return worth > self.rate * (self._place_time() + self._draft_time())

    def alternative_pays(self, rows: list, step: int, tops: list[float], shares: list[float]) -> list[bool]:
        """Whether a place in the target's forward is worth what each row's alternative may bring: a token, if all
        before are accepted and it is right in place of the drafted one. A place costs all rows one."""
        price = self.rate * self._place_time()
        found = []
        for row, top, share in zip(rows, tops, shares, strict=True):
            right = (1 - self._confidence(row, step, top)) * min(1.0, share / max(1 - top, 1e-6))
            found.append(self.worth[row.index] * self.chances[row.index] * right > price)
        return found

    def _saving(self) -> float:
        """How often an alternative is read and right where the model's token is not."""
        return self.saved.near(SAVED, FAMILIAR) if self.terms.alternatives else 0.0

    def _with_alternatives(self, chain: list[float]) -> list[float]:
        """E_w with the tokens that alternatives bring: one where a draft is not accepted whole."""
        saved = self._saving()
        return [1.0] + [x + saved * (1 - (x - before)) for before, x in itertools.pairwise(chain)]

    def _confidence(self, row, step: int, top: float) -> float:
        acceptance = self._acceptance(row.index)
        guess = min(0.98, top) if self.terms.greedy else acceptance.rate(DRAFT, 0, step)
        return acceptance.confident(top, guess)

    def learn(self, rounds: list[Round], time: float) -> None:
        """`time`: of the round, in plain steps."""
        modelled = False
        for r in rounds:
            self.paces.setdefault(r.index, FadingMean()).add(r.accepted + 1)
            offer = r.choice.offer
            if offer is None:
                continue
            if self.several:
                self._acceptance(r.index).learn(
                    offer.source, offer.evidence, r.drafted, r.first_choices, self.tops[r.index]
                )
            self.together.learn(offer.source, offer.evidence, r.drafted, r.first_choices, self.tops[r.index])
            if offer.costs:
                self.gains.setdefault(r.index, FadingMean()).add(r.accepted + 1)
                modelled = True
                if r.first_choices < r.drafted:
                    self.saved.add(r.alternative, 1)
        if modelled:
            self.begun = True
            self.times.add(time)
        drafted = max(max(r.drafted, 1) if r.choice.width else 0 for r in rounds)
        most = 1 + drafted  # no draft that was begun takes longer: what did was a disturbance
        drafting = any(r.choice.width for r in rounds)
        self.budget.book(min(time, most), self._progress(rounds), drafting, modelled if self.modelling else drafting)

    def _progress(self, rounds: list[Round]) -> float:
        """How many plain steps a round has brought the end nearer, if all that follows were plain: the longest rest,
        whichever row has it then. What rows ahead of the others gain is not time that a batch has gained."""
        before = max(self.rests[r.index] for r in rounds)
        after = max(self.rests[r.index] - r.accepted - 1 for r in rounds)
        return (1 - self.own * len(rounds)) * (before - after) + self.own * sum(r.accepted + 1 for r in rounds)

    def time(self, drafted: int, steps: int) -> float:
        """A round that drafts so many tokens in so many forwards of the draft, in plain steps."""
        plain = self.costs.target(self.sharing, 1)
        return self.costs.target(self.sharing, drafted + 1) / plain + steps * self._draft_time()

    def _place_time(self) -> float:
        return self.costs.position(self.sharing) / self.costs.target(self.sharing, 1)

    def _draft_time(self) -> float:
        return self.costs.draft(self.sharing) / self.costs.target(self.sharing, 1)

    def _acceptance(self, index: int) -> Acceptance:
        if not self.several:  # what was seen of the only row must not count twice
            return self.together
        if index not in self.apart:
            self.apart[index] = Acceptance(self.together, strength=4.0)
        return self.apart[index]

    def _worth(self, rows: list) -> dict[int, float]:
        """What a token of each row (by its index) is worth, in sum 1. A step of a batch is a reading of the weights,
        which only ends with the last row, and a part for each row, which ends with it. Which row will be the last is
        not certain: the rounds that its rest takes at its pace stray by about their root."""
        own = self.costs.position(self.size) / self.size / self.costs.target(self.size, 1)
        own = self.own = min(1 / self.size, own)
        self.rests = {row.index: row.limit - row.length for row in rows}
        left = [self.rests[row.index] / self._pace(row.index) for row in rows]
        longest = max(left)
        last = [math.exp((n - longest) / (1 + math.sqrt(longest) / 2)) for n in left]
        rest = (1 - own * self.size) / sum(last)
        return {row.index: own + rest * x for row, x in zip(rows, last, strict=True)}

    def _pace(self, index: int) -> float:
        return self.paces[index].around(1.0) if index in self.paces else 1.0

    def _prospect(self, row, offers: list[Offer]) -> Prospect:
        least = BLIND_EVIDENCE if self.blind else 0
        lookup = next((o for o in offers if not o.costs and o.evidence >= least), None)
        draft = next((o for o in offers if o.costs), None)
        found = [1.0]
        if lookup is not None:
            most = self._affordable(lookup.most, with_model=False)
            found = self._acceptance(row.index).chain(lookup.source, lookup.evidence, most)
        return Prospect(row, lookup, draft, found, self.worth[row.index])

    def _ask_model(self, prospects: list[Prospect]) -> float | None:
        """Fill in what the model would bring, and how many tokens it should draft (where it stops by itself, at most).

        Returns:
            The time of such a round; None if the model is out of the question. R is set.
        """
        asked = [p for p in prospects if p.draft is not None]
        self.rate = 1.0
        if not asked or (not self.begun and self._out_of_the_question(asked)):
            return None
        most = self._affordable(min(self.longest, max(p.draft.most for p in asked)), with_model=True)
        if not most:
            return None
        chains = [
            self._with_alternatives(
                self._acceptance(p.row.index).chain(p.draft.source, p.draft.evidence, min(most, p.draft.most))
            )
            for p in asked
        ]
        idle, best = 1 - sum(p.weight for p in asked), (0.0, 1)
        for k in range(1, most + 1):
            tokens = idle + sum(p.weight * x[min(k, len(x) - 1)] for p, x in zip(asked, chains, strict=True))
            best = max(best, (tokens / self.time(k, k), k))
        self.width = self.usual = best[1]
        for p, chain in zip(asked, chains, strict=True):
            p.model = chain[min(self.width, len(chain) - 1)]
        time = self.time(self.width, self.width)
        if self.terms.inside:  # what it brings is seen: later places are only reached when it is sure
            self.width = most
            time = self.times.around(time)
            for p in asked:
                if p.row.index in self.gains:
                    p.model = self.gains[p.row.index].around(p.model)
        self.rate = max(1.0, sum(p.weight * p.model for p in prospects) / time)
        return time

    def _affordable(self, most: int, with_model: bool) -> int:
        """So many tokens that the round stays within the budget even if all of them are rejected, and more than one
        only if that leaves a chance for another try. A part of what may be lost is the model's: wrong matches must not
        take its chance from it."""
        kept = 0.0 if with_model else self.budget.allowance / 4
        while most:
            loss = self.time(most, most if with_model else 0) - 1
            if self.budget.allows(loss + kept) and (most == 1 or loss <= self.budget.left * BET):
                break
            most -= 1
        return most

    def _out_of_the_question(self, asked: list[Prospect]) -> bool:
        """Whether the draft need not even read the prompt. The first reason why is kept for the statistics."""
        reason = self._objection(asked)
        self.why_off = reason and (self.why_off or reason)
        return reason is not None

    def _objection(self, asked: list[Prospect]) -> str | None:
        """With the best acceptance it would not pay, or not in the tokens that are left; others would pay for it (see
        `BLIND_WIDTH`); or a batch's prompts take too long to read (see `READING`)."""
        if self.harmful:
            return BLIND
        draft, all_kept, tokens, best = self._draft_time(), 1.0, 1.0, 0.0
        for k in range(1, self.longest + 1):
            all_kept *= BEST_CASE
            tokens += all_kept
            best = max(best, tokens / (max(1.0, self.time(k, 0)) + k * draft))
        left = max(p.row.limit - p.row.length for p in asked)
        reading = draft * (1 + self.terms.position_cost * max(p.row.length for p in asked))
        if best < 1 + 2 * MARGIN:
            return f"a draft step takes {draft:.2f} of a plain step: no acceptance makes it pay"
        if left * (1 - 1 / best) < reading:
            return f"the draft would have to read the prompt (about {reading:.1f} plain steps) for {left} tokens"
        if (share := self._reading_share(left)) > READING:
            return f"the draft would have to read the prompts, {share:.0%} of the time that plain decoding takes"
        return None

    def _reading_share(self, left: int) -> float:
        """What the draft's reading of the prompts takes of a batch's plain call. To read is to compute, whatever the
        rows: it takes the two models' times in proportion to their sizes."""
        if self.size == 1 or not self.terms.free or self.terms.prefill is None or self.terms.draft_step is None:
            return 0.0
        reading = self.terms.prefill * self.terms.draft_step / self.terms.target_step
        return reading / (self.terms.prefill + left * self.costs.target(self.size, 1))

    def _best(self, prospects: list[Prospect], model_time: float | None) -> tuple[bool, int]:
        """Whether the model drafts, and how many tokens of their matches rows do; (False, 0) for a plain step."""
        price = self.rate
        best = (1 + MARGIN - price, False, 0)
        for width in range(max(len(p.found) for p in prospects)):
            found = [p.found[min(width, len(p.found) - 1)] for p in prospects]
            if width:
                tokens = sum(p.weight * x for p, x in zip(prospects, found, strict=True))
                best = max(best, (tokens - price * self.time(width, 0), False, width))
            if model_time is not None and any(p.model > x for p, x in zip(prospects, found, strict=True)):
                wider = max(0.0, self.time(width, 0) - self.time(self.usual, 0))
                tokens = sum(p.weight * max(p.model, x) for p, x in zip(prospects, found, strict=True))
                best = max(best, (tokens - price * (model_time + wider), True, width))
        return best[1:]

    def _plain_is_known(self) -> bool:
        """Whether it is known what a plain step takes, by which drafting is judged: where the gain is small, it should
        be timed first. A step of two positions tells as much, where a second one costs no more than the next ones."""
        if not self.terms.free or self.rate > SURE:
            return True
        near, widths = range((self.size + 1) // 2, 2 * self.size + 1), (1,) if self.terms.second_cost else (1, 2)
        return any(self.costs.knows(rows, width) for rows in near for width in widths)

    def _choice(self, p: Prospect, with_model: bool, width: int) -> Choice:
        if p.lookup is not None and width and (not with_model or p.found[min(width, len(p.found) - 1)] >= p.model):
            return Choice(p.lookup, min(width, len(p.found) - 1))
        if with_model and p.draft is not None:
            return Choice(p.draft, min(self.width, p.draft.most))
        return NOTHING

    def _trial(self, p: Prospect, drafting: bool) -> Choice:
        offer = p.draft if drafting else p.lookup
        return Choice(offer, 1) if offer is not None else NOTHING
