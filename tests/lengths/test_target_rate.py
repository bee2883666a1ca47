"""The rules with one number per row, by hand."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_toys import Machine, chance, play

from hf_specgen import SpecUnsupportedError
from hf_specgen.lengths import SCHEDULES, Length, TargetRateLength
from hf_specgen.lengths.offer import Offer


def numbers(rule: TargetRateLength, outcomes, row: int = 0) -> list[int]:
    """What the rule says after each of these (drafted, accepted)."""
    found = []
    for drafted, accepted in outcomes:
        rule.learn_row(row, drafted, accepted)
        found.append(rule.next(row))
    return found


def test_more_accepted_than_aimed_at_lengthens_and_less_shortens_once_per_interval():
    rule = TargetRateLength(5, rate=0.6, interval=2)
    assert rule.next(0) == 5
    assert numbers(rule, [(5, 5), (5, 5)]) == [5, 6]
    assert numbers(rule, [(6, 4), (6, 6)]) == [6, 7], "10 of 12"
    assert numbers(rule, [(7, 0), (7, 7)]) == [7, 6], "7 of 14"
    assert numbers(rule, [(5, 3), (5, 3)]) == [6, 6], "just as aimed at"


def test_it_stays_within_its_limits():
    rule = TargetRateLength(3, minimum=2, maximum=4, interval=1)
    assert numbers(rule, [(3, 3), (4, 4), (4, 4)]) == [4, 4, 4]
    assert numbers(rule, [(4, 0), (3, 0), (2, 0)]) == [3, 2, 2]


def test_rows_are_kept_apart():
    rule = TargetRateLength(5, interval=1)
    assert numbers(rule, [(5, 5)], row=0) == [6] and numbers(rule, [(5, 0)], row=1) == [4]
    assert (rule.next(0), rule.next(1), rule.next(2)) == (6, 4, 5)


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 5),
    st.integers(0, 5),
    st.integers(0, 5),
    st.floats(0.01, 0.99),
    st.integers(1, 6),
    st.integers(0, 99),
)
def test_whatever_comes_it_moves_by_one_at_most_and_within_its_limits(minimum, more, most, rate, interval, seed):
    rule, dice = TargetRateLength(minimum + more, minimum, minimum + more + most, rate, interval), random.Random(seed)
    said = [rule.next(0)]
    for _ in range(60):
        said += numbers(rule, [(said[-1], dice.randint(0, said[-1]))])
    assert minimum <= min(said) and max(said) <= minimum + more + most
    assert all(abs(a - b) <= 1 for a, b in pairwise(said))


@pytest.mark.parametrize("aim", [0.5, 0.8])
def test_the_acceptance_rate_comes_near_what_is_aimed_at(aim):
    """i.i.d. acceptance α: the rate of a draft of K tokens is Σ_{k≤K} α^k / K, which falls in K."""
    played = play(TargetRateLength(5, rate=aim, interval=8), Machine(), chance(0.85, 1), 1500)
    drafted = [r for rs in played.rounds[300:] for r in rs]
    assert sum(r.accepted for r in drafted) / sum(r.drafted for r in drafted) == pytest.approx(aim, abs=0.08)


@pytest.mark.parametrize(
    "arguments, named",
    [
        ({"minimum": 0}, "minimum=0"),
        ({"initial": 20}, "initial=20, maximum=16"),
        ({"initial": 2, "minimum": 3}, "minimum=3, initial=2"),
        ({"rate": 1.0}, "rate=1.0"),
        ({"rate": 0.0}, "rate=0.0"),
        ({"interval": 0}, "interval=0"),
    ],
)
def test_limits_that_make_no_sense_are_refused(arguments, named):
    with pytest.raises(SpecUnsupportedError, match=named):
        TargetRateLength(**arguments)


# ---- all that have one number per row --------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["constant", "heuristic", "target-rate"])
def test_a_match_of_two_tokens_comes_before_the_model_and_a_shorter_one_after(name):
    rule = SCHEDULES[name](4)
    rule.start(Machine().terms())
    draft, short, long = Offer("draft", 9), Offer("lookup", 9, 1, costs=False), Offer("lookup", 3, 2, costs=False)

    class Row:
        index = 0

    for offers, chosen, width in (
        ([draft], draft, 4),
        ([short, draft], draft, 4),
        ([long, draft], long, 3),
        ([short], short, 4),
    ):
        assert rule.choose([Row], [offers]) == [(chosen, width)]
    assert rule.choose([Row], [[]]) == [(None, 0)]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_rule_takes_the_number_of_tokens_first_and_can_be_played(name):
    rule = SCHEDULES[name](3)
    assert isinstance(rule, Length)
    played = play(rule, Machine(0.05), chance(0.9), 60, rows=2)
    assert max(played.drafted()) >= 3 and played.rate() > 1.2
    assert rule.why_off is None
