"""The account of what drafting may lose."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hf_specgen.lengths.budget import ALLOWANCE, FIRST_WAIT, SHARE, TOGETHER, Budget


def rest(budget: Budget, rounds: int) -> None:
    for _ in range(rounds):
        budget.book(1.0, 1.0, drafted=False, tried=False)


def rounds_until_due(budget: Budget, cost: float = 0.0) -> int:
    """Plain rounds until a trial is due."""
    for n in range(1000):
        if budget.trial_due(cost):
            return n
        rest(budget, 1)
    raise AssertionError("never")


def test_it_begins_with_its_allowance_and_gets_a_share_of_the_time():
    budget = Budget()
    assert budget.allows(ALLOWANCE) and not budget.allows(ALLOWANCE + 0.01)
    rest(budget, 100)
    assert budget.allows(ALLOWANCE + 99 * SHARE) and not budget.allows(ALLOWANCE + 101 * SHARE)


def test_a_round_that_loses_is_charged_and_one_that_gains_is_credited():
    budget = Budget()
    budget.book(2.0, 1.0, drafted=True, tried=True)
    assert budget.allows(ALLOWANCE - 1) and not budget.allows(ALLOWANCE - 0.9)
    budget.book(1.5, 3.0, drafted=True, tried=True)
    assert budget.allows(ALLOWANCE)


def test_trials_come_at_growing_distances_and_in_rounds_that_rows_share():
    budget, distances = Budget(), []
    for _ in range(5):
        distances.append(rounds_until_due(budget))
        assert budget.rounds % TOGETHER == 0
        budget.book(1.01, 1.0, drafted=True, tried=True)
    assert distances[0] >= FIRST_WAIT and all(b >= 1.5 * a for a, b in pairwise(distances))


def test_a_trial_that_pays_lets_the_next_come_soon():
    budget = Budget()
    for tokens in (1.0, 1.0, 1.0, 3.0):
        rounds_until_due(budget)
        budget.book(1.2, tokens, drafted=True, tried=True)
    assert rounds_until_due(budget) <= FIRST_WAIT + TOGETHER


def test_no_trial_is_due_that_cannot_be_afforded():
    budget = Budget()
    budget.book(1 + ALLOWANCE, 1.0, drafted=True, tried=True)
    rest(budget, 2 * FIRST_WAIT + TOGETHER)
    assert not budget.trial_due(1.0)
    assert rounds_until_due(budget, 0.5) > 20, "until the share allows it"


def test_other_drafts_do_not_put_trials_off():
    """Matches that are copied all the time must not keep the model from ever being tried again."""
    budget = Budget()
    for _ in range(FIRST_WAIT + TOGETHER):
        budget.book(1.0, 1.0, drafted=True, tried=False)
    assert any(budget.trial_due(0.5) or budget.book(1.0, 1.0, True, False) for _ in range(TOGETHER))
    budget.book(1.0, 1.0, drafted=True, tried=True)
    assert not budget.trial_due(0.5)


@given(st.lists(st.tuples(st.floats(1.0, 3.0), st.integers(1, 4))))
def test_rounds_are_allowed_only_while_less_was_lost_than_may_be(rounds):
    """Each drafting round only where the budget allows its cost: it is kept."""
    budget, lost, taken = Budget(), 0.0, 0.0
    for time, tokens in rounds:
        drafted = budget.allows(time - 1)
        time, tokens = (time, tokens) if drafted else (1.0, 1)
        budget.book(time, tokens, drafted, tried=drafted)
        lost, taken = lost + time - tokens, taken + time
        assert lost <= ALLOWANCE + SHARE * taken + 1e-9
