"""A decoding loop without models: what a rule does where costs and acceptance are told."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hf_specgen.lengths import Terms
from hf_specgen.lengths.base import Round, Seconds
from hf_specgen.lengths.knowledge import Knowledge
from hf_specgen.lengths.offer import Offer


@dataclass
class ToyRow:
    """What a rule may know of a row."""

    index: int = 0
    length: int = 10
    limit: int = 100_000
    prompt_length: int = 10


@dataclass
class Machine:
    """Seconds of forwards. A plain step of one row takes one second."""

    step: float = 0.1  # one of the draft's
    position: float = 0.05  # one more position, in either model

    def target(self, rows: int, width: int) -> float:
        return 1 + self.position * (rows * width - 1)

    def draft(self, rows: int) -> float:
        return self.step * (1 + self.position * (rows - 1))

    def time(self, rows: int, drafted: int, steps: int) -> float:
        """A round that drafts so many tokens in so many steps, in plain steps of as many rows."""
        return (self.target(rows, drafted + 1) + steps * self.draft(rows)) / self.target(rows, 1)

    def terms(self, **more) -> Terms:
        """What a rule is told of it; where it may not look at the clock, as a session would tell it."""
        if not more.get("free", True) and more.get("knowledge") is None:
            widths = [[1, width, self.target(1, width)] for width in (1, 2, 9)]
            more["knowledge"] = Knowledge({"target": widths, "draft": [[1, self.draft(1)]]})
        return Terms(target_step=1.0, draft_step=self.step, position_cost=self.position, **more)


@dataclass
class Played:
    """A call: each round's outcomes, and its length in plain steps."""

    rounds: list[list[Round]] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def tokens(self, n: int) -> float:
        """Of round n, per row."""
        return sum(r.accepted + 1 for r in self.rounds[n]) / len(self.rounds[n])

    def rate(self, first: int = 0) -> float:
        """Tokens per row and plain step from this round on: plain decoding's is 1."""
        chosen = range(first, len(self.times))
        return sum(map(self.tokens, chosen)) / sum(self.times[n] for n in chosen)

    def drafted(self, source: str = "draft") -> list[int]:
        """Tokens of each round, the rows' greatest number."""
        found = [[r.drafted for r in rs if r.drafted and r.choice.offer.source == source] for rs in self.rounds]
        return [max(drafted, default=0) for drafted in found]


Right = Callable[[int, int, int, str], bool]


def chance(alpha: float | Callable[[int], float], seed: int = 0) -> Right:
    """Tokens that are right with this probability (of each round), whatever came before."""
    dice = random.Random(seed)
    return lambda row, n, place, source: dice.random() < (alpha(n) if callable(alpha) else alpha)


def play(
    rule,
    machine: Machine,
    right: Right,
    rounds: int = 100,
    rows: int = 1,
    matches: Callable[[int, int], list[Offer]] = lambda row, n: [],
    model: bool = True,
    tops: Callable[[int, int, int], float] | None = None,
    at_most: int | None = None,
    told: Machine | None = None,
    clock: Callable[[float], float] = lambda seconds: seconds,
    **terms,
) -> Played:
    """Decode.

    Args:
        right: whether row r's token at a place (from 0) of round n is right, if all before it are.
        matches: what lookup offers row r in round n.
        model: whether there is a draft.
        tops: probability of the draft's most probable token there; None: it is not asked inside.
        at_most: tokens of the model's that it proposes of those that it was asked for, as under a threshold.
        told: what the rule is told of the machine at first, if not the truth.
        clock: what it measures for what took so many seconds.
    """
    rule.start((told or machine).terms(inside=tops is not None, **terms))
    alive, played = [ToyRow(b) for b in range(rows)], Played()
    for n in range(rounds):
        drafts = [[Offer("draft", row.limit - row.length)] if model else [] for row in alive]
        offers = [matches(b, n) + drafts[b] for b in range(rows)]
        choices = rule.choose(alive, offers)
        widths, steps = [choice.width for choice in choices], 0
        asked = [b for b, choice in enumerate(choices) if choice.width and choice.offer.costs]
        while open_ := [b for b in asked if widths[b] > steps]:
            steps += 1
            if tops is not None:
                on = rule.goes_on([alive[b] for b in open_], steps - 1, [tops(b, n, steps - 1) for b in open_])
                for b, more in zip(open_, on, strict=True):
                    widths[b] = widths[b] if more else steps
        if at_most is not None:
            steps = min(steps, at_most + 1)
            for b in asked:
                widths[b] = min(widths[b], at_most)
        outcomes = []
        for b, (row, choice, width) in enumerate(zip(alive, choices, widths, strict=True)):
            accepted = 0
            while accepted < width and right(b, n, accepted, choice.offer.source):
                accepted += 1
            row.length += accepted + 1
            outcomes.append(Round(b, choice, width, accepted))
        target, draft = machine.target(rows, max(widths) + 1), steps * machine.draft(rows)
        rule.learn(outcomes, Seconds(rows, max(widths) + 1, clock(target), clock(draft), steps))
        played.rounds.append(outcomes)
        played.times.append((target + draft) / machine.target(rows, 1))
    return played


def best_constant(machine: Machine, alpha: float, longest: int, rows: int = 1) -> float:
    """The highest rate of any constant number of tokens, 0 among them."""
    expected, rates = 1.0, [1.0]
    for k in range(1, longest + 1):
        expected += alpha**k
        rates.append(expected / machine.time(rows, k, k))
    return max(rates)
