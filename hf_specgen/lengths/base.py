"""The interface of a rule for how much to draft, and from which source. It lives in one call."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

from .knowledge import Knowledge
from .offer import Offer


class Choice(NamedTuple):
    """What a row drafts in one round: `width` tokens at most of one of its offers; None and 0 for nothing."""

    offer: Offer | None
    width: int

    @property
    def costs(self) -> bool:
        """Whether the draft model is asked."""
        return self.width > 0 and self.offer is not None and self.offer.costs


NOTHING = Choice(None, 0)


class Round(NamedTuple):
    """What became of a row's choice: how much of it was drafted and accepted, and whether the last accepted token was
    an alternative to what was drafted."""

    index: int  # type: ignore[assignment]  # in place of tuple.index, which nobody asks of a round
    choice: Choice
    drafted: int
    accepted: int
    alternative: bool = False

    @property
    def first_choices(self) -> int:
        """Accepted first choices."""
        return self.accepted - self.alternative


class Seconds(NamedTuple):
    """What a round took: `target` for one forward of `width` positions in `rows` rows, `draft` for `steps` forwards of
    the draft."""

    rows: int
    width: int
    target: float
    draft: float
    steps: int


@dataclass(frozen=True)
class Terms:
    """What a rule may know of a call.

    Attributes:
        free: the ids do not depend on how much is drafted, so that clocks and neighbours may be looked at. Otherwise
            (sampling with a rule whose ids do) a row's choices follow from its own text and what was known before the
            call: equal seeds give equal ids, alone or in any batch.
        greedy: nothing is drawn: a draft's token is as likely accepted as the draft is sure of it. Of a drawn one,
            accepted with Σ min(p, q), its distribution's height tells little.
        inside: the drafter asks `goes_on` between its tokens.
        alternatives: and `alternative_pays`: the target can read some beside the drafted tokens.
        target_step, draft_step: estimated seconds of one forward of one row (see `costs.expected_step`); of their
            ratio much is made, of themselves little. None: not known.
        position_cost, second_cost: what one more position costs the target in a forward, and what any forward of
            several positions costs besides, as parts of `target_step`.
        prefill: seconds in which the target has read the prompts; None: not known.
        knowledge: from a session or a configuration, see `Knowledge`; or None.
    """

    free: bool = True
    greedy: bool = True
    inside: bool = False
    alternatives: bool = False
    target_step: float = 1.0
    draft_step: float | None = None
    position_cost: float = 0.05
    second_cost: float = 0.0
    prefill: float | None = None
    knowledge: Knowledge | None = None


class Length(ABC):
    """A rule. Objects are prototypes: each call decodes with a copy, to which `start` is said first."""

    def start(self, terms: Terms) -> None:  # noqa: B027 (a rule may need nothing of it)
        """A call begins."""

    @abstractmethod
    def choose(self, rows: list, offers: list[list[Offer]]) -> list[Choice]:
        """What each row drafts in the coming round, of what it is offered (nothing, if it has no room left).

        Args:
            rows: those alive, with `index`, `length`, `limit` and `prompt_length`.
        """

    def goes_on(self, rows: list, step: int, tops: list[float]) -> list[bool]:
        """Whether each row drafts another token after its `step`-th (from 0), whose distribution gave its most probable
        token the probability `tops[b]`. Only asked of drafters that can stop, where the host may be asked."""
        return [True] * len(rows)

    def alternative_pays(self, rows: list, step: int, tops: list[float], shares: list[float]) -> list[bool]:
        """Whether the target should read an alternative to each row's `step`-th token too, where the draft's
        distribution gave the most probable token `tops[b]` and the alternative `shares[b]`. Asked before `goes_on`, of
        drafters that can stop (see there), where the terms allow it; of the better alternative first."""
        return [False] * len(rows)

    @abstractmethod
    def learn(self, rounds: list[Round], seconds: Seconds) -> None:
        """What became of the last round. `seconds` may only decide anything if the terms are free."""

    def teach(self, knowledge: Knowledge) -> None:  # noqa: B027
        """The call has ended: add what it has seen, for the next."""

    @property
    def why_off(self) -> str | None:
        """Why the draft was never used, where it was decided so."""
        return None


class PerRow(Length):
    """A rule with one number per row. The source: a match of at least two tokens comes before the model.

    Args:
        initial: of tokens, before anything is known.
    """

    MATCH = 2  # evidence of a lookup, see `drafters.lookup`

    def __init__(self, initial: int = 5):
        self.initial = initial

    @abstractmethod
    def next(self, row: int) -> int:
        """Tokens to draft for the row of this index."""

    @abstractmethod
    def learn_row(self, row: int, drafted: int, accepted: int) -> None:
        """What became of them; not said of rounds without drafts."""

    def choose(self, rows, offers):
        return [self._choice(row, found) if found else NOTHING for row, found in zip(rows, offers, strict=True)]

    def _choice(self, row, offers: list[Offer]) -> Choice:
        free = [offer for offer in offers if not offer.costs and offer.evidence >= self.MATCH]
        offer = free[0] if free else next((offer for offer in offers if offer.costs), offers[0])
        return Choice(offer, min(self.next(row.index), offer.most))

    def learn(self, rounds, seconds):
        for round_ in rounds:
            if round_.drafted:
                self.learn_row(round_.index, round_.drafted, round_.accepted)
