"""Who wins, given what was measured."""

import pytest

from hf_specgen.benchmarking import Cell, Record
from hf_specgen.tuning.choosing import LEAST, Scope, choose, choose_apart, noise, rates_of, survivors


def measured(calls: int = 8, plain: float = 10.0, **speedups) -> dict:
    """Rates in calls of different speed; a speed-up is one number, or one per call."""
    slow = [plain * (1 + call / 4) for call in range(calls)]
    rates = {"plain": dict(enumerate(slow))}
    for name, factor in speedups.items():
        factors = factor if isinstance(factor, list) else [factor] * calls
        rates[name] = {call: slow[call] * f for call, f in enumerate(factors) if f is not None}
    return rates


def test_the_fastest_wins():
    found = choose(measured(hybrid=1.5, draft=1.6, lookup=1.2), "hybrid")
    assert found.winner == "draft" and found.speedup == pytest.approx(1.6)
    assert "1.60× ±0.00 (8 calls) plain decoding's" in found.why and "1.07×" in found.why


def test_ties_go_to_the_default():
    found = choose(measured(hybrid=1.5, draft=1.52), "hybrid")
    assert found.winner == "hybrid" and found.speedup == pytest.approx(1.5)
    assert "the fastest, draft, is not faster by more than noise: 1.01×" in found.why
    assert choose(measured(hybrid=1.5, draft=1.52), "draft").winner == "draft"


def test_noise_grows_with_the_spread_and_shrinks_with_the_calls():
    unsteady = [1.2, 2.4] * 4  # 1.2 in the median, 0.8 to 1.6
    assert choose(measured(hybrid=1.5, draft=unsteady), "hybrid").winner == "hybrid"
    assert choose(measured(calls=64, hybrid=1.5, draft=[1.5, 1.9] * 32), "hybrid").winner == "draft"


def test_few_calls_decide_nothing():
    few = LEAST - 1
    found = choose(measured(calls=few, hybrid=1.5, draft=3.0), "hybrid")
    assert found.winner == "hybrid" and f"{few} calls in common, and at least {LEAST}" in found.why
    assert choose(measured(calls=few, hybrid=0.5), "hybrid").winner == "hybrid"


def test_nothing_pays():
    found = choose(measured(hybrid=0.97, draft=0.7, lookup=1.01), "hybrid")
    assert found.winner == "plain" and found.speedup == 1.0
    assert found.why.startswith("nothing pays: the best, lookup, reached 1.01×")


def test_candidates_are_compared_on_the_calls_that_both_have_made():
    """The later one was run on the slow prompts only, on which the default is as fast."""
    hybrid = [3.0] * 5 + [1.2] * 5
    late = [None] * 5 + [1.2] * 5
    assert choose(measured(calls=10, hybrid=hybrid, late=late), "hybrid").winner == "hybrid"
    assert choose(measured(calls=10, hybrid=hybrid, late=[None] * 5 + [2.8] * 5), "hybrid").winner == "late"


def test_one_that_left_early_does_not_win_by_its_easy_calls():
    """In the first five the default was as fast as it."""
    found = choose(measured(calls=10, hybrid=[3.0] * 5 + [1.2] * 5, early=[3.0] * 5 + [None] * 5), "hybrid")
    assert found.winner == "hybrid" and found.speedup == pytest.approx(2.1)


def test_nothing_to_compare_with():
    with pytest.raises(ValueError, match="'hybrid' have no call in common"):
        choose({"plain": {0: 1.0}, "hybrid": {1: 2.0}}, "hybrid")


def test_a_task_has_settings_of_its_own_only_where_they_are_better_by_more_than_noise():
    assert choose_apart(measured(hybrid=1.5, lookup=2.5), "hybrid").winner == "lookup"
    assert choose_apart(measured(hybrid=1.5, lookup=1.52), "hybrid") is None
    assert choose_apart(measured(hybrid=1.5, lookup=1.2), "hybrid") is None
    off = choose_apart(measured(hybrid=0.8, lookup=0.9), "hybrid")
    assert off.winner == "plain" and "nothing pays here" in off.why
    assert choose_apart(measured(hybrid=1.4), "plain").winner == "hybrid"  # though nothing pays in general


def test_those_far_behind_leave():
    rates = measured(hybrid=1.0, draft=2.0, lookup=1.85, other=1.7)
    assert survivors(rates, ["plain", "hybrid"]) == {"plain", "hybrid", "draft", "lookup"}


def test_rates_are_those_of_the_decode_phase_of_calls_that_did_not_fail():
    def record(prompt, **figures):
        return Record(Cell("plain", "a" if prompt < 3 else "b", prompt, batch=1 + prompt % 2), 0, **figures)

    whole = {"new_tokens": 11, "seconds": 9.0, "decode_seconds": 2.0}
    records = [
        record(0, **whole),
        record(1, error="no"),
        record(2, new_tokens=1, decode_seconds=0.0),
        record(3, **whole),
    ]
    assert [*rates_of(records)["plain"].values()] == [5.0, 4.5]
    for scope in (Scope(task="a"), Scope(batch=1), Scope("a", 1)):
        assert [*rates_of(records, scope)["plain"].values()] == [5.0]
    assert rates_of(records, Scope(task="c")) == rates_of(records, Scope("a", 2)) == {}


def test_noise_of_equal_ratios_is_the_margin():
    from hf_specgen.benchmarking.summary import Spread

    assert noise(Spread.of([1.3] * 9)) == 0.02
    assert noise(Spread.of([1.0, 1.4] * 8)) == pytest.approx(1.25 * 0.4 / 1.35 / 4)
