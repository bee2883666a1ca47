"""Sampled tokens: does the real loop, draft and all, draw from the target's own law?

Many continuations are drawn after a few contexts (`drawing`). How many of their tokens fall into a set is compared with
the sum of their probabilities under the target's law after the very tokens that were drawn before them (`table`), in
groups that a wrong rule, or a part of the loop that is wrong, would show in. Whether a token belongs to a group is
decided before it is drawn:

- "first": tokens of the prefill. "drafted": those after it, where the model drafts and rounding does not hide anything.
- "after": those of them that follow a token which the draft finds likelier. It was accepted, at less than full weight:
  where the weights of block verification matter.
- "bonus": of each continuation the first token that follows a draft of which all was accepted. What is accepted is
  decided without the token that follows, under any of the rules.
- "copying": tokens after the first, where lookup had something to copy; for the set "copied" alone.
- each way to draw by itself: "draft", "hybrid, top-p 0.9, …", …
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ..benchmarking.calls import Models
from ..errors import SpecUnsupportedError
from .contexts import Context
from .drawing import Continuation, draw
from .statistics import Draws, holm, pooled, tails, visible_shift
from .table import MOVED, Rounding, Table, read
from .ways import WAYS

LEVEL, POWER = 1e-4, 0.9
"""Chance that a lossless pair is called a fault, over all tests of all strategies; and that a visible rule is seen."""
FIRST, LATER, AFTER, BONUS, COPYING = "first", "drafted", "after", "bonus", "copying"
SHOWN_BY = dict(zip(MOVED, ((LATER, "draft"), (LATER, "left"), (LATER, "left")), strict=True))
"""Where each wrong rule shows best: group and set."""
BONUS_OF_DRAFT = "the draft's law for the bonus"


@dataclass(frozen=True)
class SetTest:
    """
    Attributes:
        set, group: see `table` and the module.
        draws, observed, expected: tokens, how many of them are in the set, and how many should be.
        p_value: by itself. `adjusted`: for the number of tests (Holm).
        visible_shift: probability that a wrong rule has to move across the set to be seen with probability `POWER`.
    """

    set: str
    group: str
    draws: int
    observed: int
    expected: float
    p_value: float
    adjusted: float
    visible_shift: float


@dataclass(frozen=True)
class WrongRule:
    """One that was not there: would it have been seen?

    Attributes:
        moves: probability that it would have moved, in the mean over the tokens that were drawn.
        visible: what it has to move in order to be seen with probability `POWER`; 1 without draws.
    """

    name: str
    moves: float
    visible: float

    @property
    def would_show(self) -> bool:
        return self.moves >= self.visible


@dataclass(frozen=True)
class Law:
    """What became of one strategy.

    Attributes:
        samples: continuations. `draws`: of each context, in the order of `contexts`.
        drafted, accepted: tokens; `copied`: those drafted by lookup among them. rejections, bonuses: rounds that ended
            with a token in place of a rejected one, and with one after a draft that was accepted whole.
        unread: why the draft's law is not known; None where it is.
        disagreement: mean total variation between the draft's law and the target's where tokens were drafted.
        wrong_rules: empty where the draft's law is not known.
        problems: of texts that end wrongly.
        level: a p-value below it is a fault.
    """

    strategy: str
    temperature: float
    samples: int
    drafted: int
    accepted: int
    copied: int
    rejections: int
    bonuses: int
    contexts: list[Context]
    draws: list[int]
    unread: str | None
    disagreement: float | None
    tests: list[SetTest]
    wrong_rules: list[WrongRule]
    problems: list[str]
    level: float
    power: float = POWER

    @property
    def worst(self) -> SetTest:
        """The least likely one."""
        return min(self.tests, key=lambda test: (test.adjusted, test.p_value))

    @property
    def p_value(self) -> float:
        """The smallest adjusted one."""
        return self.worst.adjusted

    @property
    def unlikely(self) -> bool:
        """Whether the target's law would not give such tokens."""
        return self.p_value < self.level

    @property
    def passed(self) -> bool:
        return not (self.unlikely or self.problems)

    @property
    def visible_shifts(self) -> dict[str, float]:
        """Of the tests over all drafted tokens, by set."""
        return {test.set: test.visible_shift for test in self.tests if test.group == LATER}

    @property
    def never(self) -> list[str]:
        """What did not happen, so that nothing is known of it."""
        counts = {
            "acceptance": self.accepted,
            "rejection": self.rejections,
            "bonus token": self.bonuses,
            "draft copied from the text": self.copied,
        }
        return [what for what, count in counts.items() if not count]


@torch.no_grad()
def check_law(
    models: Models,
    contexts: Sequence[Context],
    strategy: str,
    *,
    temperature: float,
    samples: int,
    k: int,
    rounding: Rounding,
    unread: str | None = None,
    level: float = LEVEL,
    seed: int = 0,
    listener: Callable[[], None] = lambda: None,
) -> Law:
    """
    Args:
        samples: continuations, over all contexts.
        k: tokens drafted in a round.
        unread: see `contexts.unread`.
        level: chance that a lossless rule is called a fault.
        listener: told of each batch that is drawn.

    Raises:
        SpecUnsupportedError: nothing was drafted.
    """
    drawn, stats = draw(models, contexts, strategy, temperature, samples, k, seed, listener)
    if not stats.drafted:
        raise SpecUnsupportedError(
            f"With {strategy} at temperature {temperature:g} nothing was drafted, so that there is nothing to verify: "
            "ask for other prompts, or leave sampling out (temperature 0)."
        )
    table = read(models, drawn, temperature, rounding, reads_draft=unread is None)
    rounds = [entry for entry in stats.history if entry[0]]
    counts = Counter(one.context for one in drawn)
    tests = _tests(table, level, seed)
    known = bool(table.moved)
    return Law(
        strategy,
        temperature,
        samples,
        stats.drafted,
        stats.accepted,
        stats.by_source["lookup"].drafted if "lookup" in stats.by_source else 0,
        rejections=sum(accepted < drafted for drafted, accepted in rounds),
        bonuses=sum(accepted == drafted for drafted, accepted in rounds),
        contexts=list(contexts),
        draws=[counts[context] for context in contexts],
        unread=unread,
        disagreement=_mean(table.moved[MOVED[0]][table.modelled]) if known else None,
        tests=tests,
        wrong_rules=_wrong_rules(table, tests) if known else [],
        problems=_problems(drawn),
        level=level,
    )


def _problems(drawn: Sequence[Continuation]) -> list[str]:
    counts = Counter(one.problem for one in drawn if one.problem is not None)
    return [f"{count} of {len(drawn)} continuations: {problem}" for problem, count in counts.items()]


def _groups(table: Table) -> Iterator[tuple[str, str, list[torch.Tensor]]]:
    """Set, group, and its tokens of each position that has some, bool `[tokens]`."""

    def by_position(mask: torch.Tensor) -> list[torch.Tensor]:
        return [mask & (table.position == at) for at in table.position[mask].unique().tolist()]

    later, bonus = _later(table), table.bonus & table.clear
    for name in table.sets:
        if name == "copied":
            yield name, COPYING, by_position((table.position > 0) & table.matched)
            continue
        yield name, FIRST, by_position(table.position == 0)
        yield name, LATER, by_position(later)
        if "draft" in table.sets:
            liked = table.sets["draft"].inside.roll(1)  # the token before
            yield name, AFTER, by_position(later & liked & (table.position > 1))
        yield name, BONUS, [bonus] if bonus.any() else []  # one of each continuation: independent of others
        for i, way in enumerate(WAYS):
            yield name, way.name, by_position(table.way == i)


def _later(table: Table) -> torch.Tensor:
    """Bool `[tokens]`: after the first, where the model drafts and no cut is near."""
    return (table.position > 0) & table.clear & torch.tensor([way.source == "draft" for way in WAYS])[table.way]


def _tests(table: Table, level: float, seed: int) -> list[SetTest]:
    uniform = torch.Generator().manual_seed(seed)
    plan: list[tuple[str, str, list[Draws]]] = []
    for name, group, masks in _groups(table):
        if masks:
            plan.append((name, group, [table.sets[name].where(mask) for mask in masks]))
    p_values = [
        pooled([tails(d, float(torch.rand((), generator=uniform, dtype=torch.float64))) for d in draws]).p_value
        for *_, draws in plan
    ]
    return [
        SetTest(
            name,
            group,
            draws=sum(map(len, draws)),
            observed=sum(int(d.inside.sum()) for d in draws),
            expected=sum(float(d.chance.sum()) for d in draws),
            p_value=p_value,
            adjusted=adjusted,
            visible_shift=visible_shift(draws, level / len(plan), POWER),
        )
        for (name, group, draws), p_value, adjusted in zip(plan, p_values, holm(p_values), strict=True)
    ]


def _wrong_rules(table: Table, tests: Sequence[SetTest]) -> list[WrongRule]:
    visible = {(test.group, test.set): test.visible_shift for test in tests}
    later = _later(table)
    found = [
        WrongRule(name, _mean((table.moved[name] * table.modelled)[later]), visible.get(SHOWN_BY[name], 1.0))
        for name in MOVED
    ]
    apart = table.moved[MOVED[0]][table.bonus & table.clear]
    return [*found, WrongRule(BONUS_OF_DRAFT, _mean(apart), visible.get((BONUS, "draft"), 1.0))]


def _mean(values: torch.Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0
