"""The choice of one round against all that could be chosen."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_toys import Machine, ToyRow, best_constant

from hf_specgen.lengths.acceptance import Acceptance, Count
from hf_specgen.lengths.base import NOTHING, Choice, Round
from hf_specgen.lengths.costs import Costs
from hf_specgen.lengths.knowledge import Knowledge
from hf_specgen.lengths.offer import Offer
from hf_specgen.lengths.planner import LONGEST, MARGIN, SURE, Planner

SURELY = 1e9  # trials that no first guess can argue with
ALPHAS = st.floats(0.0, 0.99)


def sure_of(alphas: dict) -> Acceptance:
    """Acceptance by (source, evidence), the same at every place."""
    found = Acceptance()
    found.classes = {key: Count(alpha * SURELY, SURELY) for key, alpha in alphas.items()}
    return found


def planner(machine: Machine, alphas: list[dict], longest: int = LONGEST) -> Planner:
    """One that knows each row's acceptance and what things cost, and has begun: a plain step was timed."""
    costs = Costs(1.0, machine.step, machine.position)
    for width in range(1, longest + 2):
        for _ in range(9):
            costs.observe_target(len(alphas), width, machine.target(len(alphas), width))
    costs.observe_draft(len(alphas), machine.draft(len(alphas)), 1, machine.target(len(alphas), 1))
    found = Planner(machine.terms(), costs, Acceptance(), longest)
    found.begun, found.budget.lost = True, -1e9  # it may try whatever it likes
    for index, each in enumerate(alphas):
        found.apart[index] = found.together = sure_of(each)  # a single row is all together
    return found


def expected(alpha: float, k: int) -> float:
    return sum(alpha**i for i in range(k + 1))


def tokens(rows: list[tuple[float, int]], k: int) -> float:
    """Σ E_b of a draft of k tokens, or as many as a row (acceptance, room) has room for."""
    return sum(expected(alpha, min(k, room)) for alpha, room in rows)


def choose(plan: Planner, offers: list[list[Offer]]):
    return plan.choose([ToyRow(b) for b in range(len(offers))], offers)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(ALPHAS, st.integers(0, 20)), min_size=1, max_size=4),
    st.floats(0.01, 0.9),
    st.floats(0.0, 0.2),
    st.integers(1, LONGEST),
)
def test_the_model_drafts_as_much_as_brings_the_most_per_time(rows, step, position, longest):
    """argmax of Σ E_b / T over all widths, whose acceptance and room differ from row to row; or nothing."""
    plan = planner(Machine(step, position), [{("draft", 0): alpha} for alpha, _ in rows], longest)
    choices = choose(plan, [[Offer("draft", room)] if room else [] for _, room in rows])
    most = min(longest, max(room for _, room in rows))
    rates = [tokens(rows, k) / (len(rows) * plan.time(k, k)) for k in range(most + 1)]
    width = max(choice.width for choice in choices)
    if width:
        assert rates[width] >= max(rates) - 1e-6 and max(rates) > 1
        assert all(choice.width == min(width, room) for choice, (_, room) in zip(choices, rows, strict=True))
    else:
        assert choices == [NOTHING] * len(rows) and max(rates) < 1 + 2 * MARGIN


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(ALPHAS, st.integers(1, 16)), min_size=1, max_size=4), st.floats(0.0, 0.3))
def test_matches_are_copied_as_far_as_each_further_token_is_worth_its_place(rows, position):
    """Without a model: argmax of Σ E_b − B·T, for a plain step's rate is what every other round has."""
    plan = planner(Machine(position=position), [{("lookup", 7): alpha} for alpha, _ in rows])
    choices = choose(plan, [[Offer("lookup", room, 7, costs=False)] for _, room in rows])
    most = max(room for _, room in rows)
    gains = [tokens(rows, k) - len(rows) * plan.time(k, 0) for k in range(most + 1)]
    width = max(choice.width for choice in choices)
    if width:
        assert gains[width] >= max(gains) - 1e-6 and max(gains) > 0
        assert all(choice.width == min(width, room) for choice, (_, room) in zip(choices, rows, strict=True))
    else:
        assert choices == [NOTHING] * len(rows) and max(gains) < 2 * MARGIN * len(rows)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(ALPHAS, ALPHAS, st.booleans()), min_size=1, max_size=3), st.floats(0.01, 0.4))
def test_of_both_sources_each_row_takes_the_one_that_brings_it_more(rows, step):
    """argmax of Σ E_b − R·T over how much of the matches is copied, with and without the model."""
    alphas = [{("draft", 0): a, ("lookup", 7): b} for a, b, _ in rows]
    offers = [[*([Offer("lookup", 8, 7, costs=False)] if match else []), Offer("draft", 50)] for *_, match in rows]
    plan = planner(Machine(step, 0.03), alphas)
    choices = choose(plan, offers)

    def brings(found: int, k: int) -> list[tuple[float, float]]:
        """Of each row, tokens of its match and of the model."""
        return [(expected(lookup, found if match else 0), expected(draft, k)) for draft, lookup, match in rows]

    def gain(found: int, k: int) -> float:
        return sum(map(max, brings(found, k))) / len(rows) - plan.rate * plan.time(max(found, k), k)

    found = max((choice.width for choice in choices if choice.width and not choice.offer.costs), default=0)
    k = max((choice.width for choice in choices if choice.width and choice.offer.costs), default=0)
    best = max(gain(*each) for each in product(range(9), (0, plan.usual) if plan.rate > 1 + MARGIN else (0,)))
    assert gain(found, k) >= best - 1e-6 or (not found and not k and best < gain(0, 0) + 2 * MARGIN)
    for (lookup, draft), choice, (*_, match) in zip(brings(found, k), choices, rows, strict=True):
        if found and match and abs(lookup - draft) < 1e-6:
            assert choice.width, "either will do"
        elif found and match and lookup >= draft:
            assert choice == (Offer("lookup", 8, 7, costs=False), found)
        else:
            assert choice == ((Offer("draft", 50), k) if k else NOTHING)


def test_a_row_that_is_right_carries_neighbours_that_are_not():
    """Two rows: one alone pays for the draft's steps, and the other drafts with it at no further cost in steps."""
    machine, offers = Machine(0.1, 0.0), [[Offer("draft", 50)]] * 2
    carried, left = ([{("draft", 0): alpha}, {("draft", 0): 0.0}] for alpha in (0.95, 0.4))
    assert choose(planner(machine, carried), offers)[0].width > 3
    assert choose(planner(machine, left), offers)[0].width <= 1


def test_costs_by_width_decide_where_they_rise_in_steps():
    """A target that reads up to four positions for the price of one, and takes twice as long from five on."""
    costs = Costs(1.0, 0.05, 0.0)
    for width in range(1, 10):
        for _ in range(9):
            costs.observe_target(1, width, 1.0 if width <= 4 else 2.5)
    plan = Planner(Machine(0.05, 0.0).terms(), costs, sure_of({("draft", 0): 0.8}), 8)
    plan.begun = True
    assert choose(plan, [[Offer("draft", 50)]])[0].width == 3


def test_a_plain_step_is_timed_before_a_draft_of_small_gain_is_judged():
    """Or one of two positions, where that tells as much: not where any second one costs more than the next ones."""
    machine = Machine(0.4, 0.02)
    alphas = sure_of({("draft", 0): 0.78})
    assert 1 < best_constant(machine, 0.78, 8) < SURE
    small = Planner(machine.terms(second_cost=0.05), Costs(1.0, 0.4, 0.02, 0.05), alphas, LONGEST)
    for width, seconds in ((2, 1.07), (3, 1.09)):
        assert choose(small, [[Offer("draft", 50)]]) == [NOTHING]
        small.costs.observe_target(1, width, seconds)
    small.costs.observe_target(1, 1, 1.0)
    assert choose(small, [[Offer("draft", 50)]])[0].width > 1
    level = Planner(machine.terms(), Costs(1.0, 0.4, 0.02), alphas, LONGEST)
    assert choose(level, [[Offer("draft", 50)]])[0].width == 1
    level.costs.observe_target(1, 2, 1.0)
    assert choose(level, [[Offer("draft", 50)]])[0].width > 1
    costs = Costs(1.0, 0.4, 0.02)
    costs.observe_target(1, 9, machine.target(1, 9))
    for free, widths in ((True, {1}), (False, {2, 3})):
        plan = Planner(machine.terms(free=free), costs, alphas, LONGEST)
        assert choose(plan, [[Offer("draft", 50)]])[0].width in widths, "where clocks are not looked at, none is timed"


@pytest.mark.parametrize("position, most", [(0.03, 2), (0.01, 6), (0.0, LONGEST)])
def test_planned_blindly_a_draft_is_no_longer_than_neighbours_may_pay_for(position, most):
    terms = Machine(0.02, position).terms(free=False, knowledge=Knowledge())
    blind = Planner(terms, Costs(1.0, 0.02, position), sure_of({("draft", 0): 0.98}), LONGEST)
    blind.begun = True
    assert 0 < choose(blind, [[Offer("draft", 50)]])[0].width <= most == blind.longest


@pytest.mark.parametrize("position, second", [(0.06, 0.0), (0.02, 0.3), (0.12, 0.0)])
def test_planned_blindly_nothing_is_drafted_where_one_token_holds_the_others_up(position, second):
    terms = Machine(0.02, position).terms(free=False, second_cost=second, knowledge=Knowledge())
    costs, sure = Costs(1.0, 0.02, position, second), sure_of({("draft", 0): 0.98})
    blind = Planner(terms, costs, sure, LONGEST)
    assert choose(blind, [[Offer("draft", 50)]] * 3) == [NOTHING] * 3 and "spec_session" in blind.why_off
    costs.observe_target(1, 1, 1.0)
    assert choose(Planner(terms, costs, sure, LONGEST), [[Offer("draft", 50)]])[0].width > 0


@pytest.mark.parametrize("most", [1, 2, 7])
def test_room_is_never_exceeded(most):
    plan = planner(Machine(0.01, 0.0), [{("draft", 0): 0.99, ("lookup", 7): 0.99}])
    for offer in (Offer("draft", most), Offer("lookup", most, 7, costs=False)):
        (choice,) = choose(plan, [[offer]])
        assert 0 < choice.width <= most
    assert choose(plan, [[]]) == [NOTHING]


def with_alternatives(plan: Planner) -> Planner:
    plan.terms = replace(plan.terms, alternatives=True)
    return plan


@pytest.mark.parametrize(
    "position, top, share, pays",
    [(0.05, 0.5, 0.3, True), (0.5, 0.5, 0.3, False), (0.05, 0.5, 0.01, False), (0.05, 0.98, 0.02, False)],
    ids=["likely", "dear", "improbable", "needless"],
)
def test_an_alternative_is_read_where_it_promises_more_than_its_place_costs(position, top, share, pays):
    plan = with_alternatives(planner(Machine(0.2, position), [{("draft", 0): 0.7}]))
    choose(plan, [[Offer("draft", 50)]])
    assert plan.alternative_pays([ToyRow()], 0, [top], [share]) == [pays]


def test_behind_a_doubtful_token_alternatives_are_worth_less():
    plan = with_alternatives(planner(Machine(0.1, 0.05), [{("draft", 0): 0.9}]))
    choose(plan, [[Offer("draft", 50)]])
    assert plan.alternative_pays([ToyRow()], 0, [0.5], [0.3]) == [True]
    plan.goes_on([ToyRow()], 0, [0.15])
    assert plan.alternative_pays([ToyRow()], 1, [0.5], [0.3]) == [False]


def test_a_place_that_all_rows_pay_for_has_to_bring_more():
    """A row that holds nobody up gains the batch nothing."""
    plan = with_alternatives(planner(Machine(0.1, 0.05), [{("draft", 0): 0.7}] * 4))
    rows = [ToyRow(b, limit=limit) for b, limit in enumerate((20, 20, 20, 400))]
    plan.choose(rows, [[Offer("draft", 9)] for _ in rows])
    assert plan.alternative_pays(rows, 0, [0.5] * 4, [0.4] * 4) == [False, False, False, True]


def test_with_alternatives_a_draft_pays_that_would_not_without():
    rejected = [Round(0, Choice(Offer("draft", 50), 1), 1, 0, alternative=False)]
    plan = planner(Machine(0.42, 0.03), [{("draft", 0): 0.4}])
    assert choose(plan, [[Offer("draft", 50)]]) == [NOTHING]
    with_alternatives(plan)
    assert choose(plan, [[Offer("draft", 50)]])[0].width == 1
    for _ in range(30):  # none of them was right
        plan.learn(rejected, plan.time(1, 1))
    plan.together = sure_of({("draft", 0): 0.4})
    assert choose(plan, [[Offer("draft", 50)]]) == [NOTHING]


def test_what_an_alternative_brought_is_not_counted_for_the_draft():
    plan = with_alternatives(planner(Machine(0.2, 0.03), [{}]))
    plan.together = Acceptance()
    for _ in range(20):
        choose(plan, [[Offer("draft", 50)]])
        plan.learn([Round(0, Choice(Offer("draft", 50), 2), 2, 1, alternative=True)], plan.time(2, 2))
    assert plan.together.rate("draft", 0, 0) < 0.2 and plan._saving() > 0.9
    assert plan.gains[0].around(0) > 1.3, "it did bring a token"
