"""Every rule on both sides of its threshold, on statistics made by hand; none on what was not measured."""

import math

import pytest

from hf_specgen import RowStats, SpecStats
from hf_specgen.advice import RULES, advice
from hf_specgen.lengths.planner import BLIND

K = 4


def made(rounds: list[tuple[int, int]] = (), source: str = "draft", new: int | None = None, **figures) -> SpecStats:
    """A call of one row: a prefill, then these rounds, which emit accepted + 1 each unless told otherwise."""
    trace = [(0, 0), *rounds]
    emitted = sum(accepted + 1 for _, accepted in trace) if new is None else new
    row = RowStats(emitted=emitted, trace=trace, sources=[source if drafted else None for drafted, _ in trace])
    return SpecStats(rows=[row], calls=1, **figures)


def said(stats: SpecStats, rule: str):
    """What this rule says, or None."""
    return next((one for one in advice(stats) if one.rule == rule), None)


def timed(rounds, draft: float, verify: float = 1.0, step: float | None = None, k: int = K) -> SpecStats:
    """Rounds of `k` draft forwards and one target forward of so many seconds each."""
    n = len(rounds)
    return made(
        rounds,
        draft_seconds=draft * k * n,
        drafting_forwards=k * n,
        verify_seconds=verify * n,
        verify_forwards=n,
        target_step_seconds=step,
    )


def accepting(share: float, rounds: int = 100) -> list[tuple[int, int]]:
    """Drafts of one token, of which this share is accepted."""
    return [(1, int(i < round(share * rounds))) for i in range(rounds)]


# -- each rule ---------------------------------------------------------------------------------------------------------

SIDES = {
    "first token": (made(accepting(0.39)), made(accepting(0.40))),
    "low acceptance": (made(accepting(0.59)), made(accepting(0.60))),
    "healthy acceptance": (made(accepting(0.70)), made(accepting(0.69))),
    "draft too large": (timed(accepting(0.5), 0.5, step=1.0, k=1), timed(accepting(0.5), 0.49, step=1.0, k=1)),
    "temperature": (made(temperature=1.01), made(temperature=1.0)),
    "batch": (
        made(verify_seconds=15.1, verify_forwards=10, target_step_seconds=1.0),
        made(verify_seconds=15.0, verify_forwards=10, target_step_seconds=1.0),
    ),
    "overhead": (made(rest_seconds=6, verify_seconds=94), made(rest_seconds=5, verify_seconds=95)),
    "short answers": (
        made(new=31, prefill_seconds=1, verify_seconds=1),
        made(new=31, prefill_seconds=0.99, verify_seconds=1),
    ),
    "long prompts": (
        made(new=32, prefill_seconds=1, verify_seconds=1),
        made(new=32, prefill_seconds=0.99, verify_seconds=1),
    ),
    "slower than plain": (
        made(plain_steps=96, target_step_seconds=1.0, verify_seconds=100),
        made(plain_steps=97, target_step_seconds=1.0, verify_seconds=100),
    ),
    "fallback": (made(fallback_reason="no room"), made()),
    "off": (made(off_reason="it cannot win"), made(off_reason=BLIND)),
    "costs not known": (made(off_reason=BLIND), made(off_reason="it cannot win")),
}


@pytest.mark.parametrize("rule", SIDES)
def test_a_rule_speaks_on_one_side_of_its_threshold(rule):
    speaks, silent = SIDES[rule]
    one = said(speaks, rule)
    assert one is not None and said(silent, rule) is None
    (threshold,) = {known.threshold for known in RULES if known.name == rule}
    assert one.threshold == threshold and one.figure == pytest.approx(threshold, abs=1.001 if threshold == 0 else 0.11)


def test_every_rule_is_tested_here_and_has_a_name_of_its_own():
    names = [rule.name for rule in RULES]
    assert len(set(names)) == len(names) and set(names) == {*SIDES, "drafts too long"}


# -- the draft's length: acceptance that falls by position -------------------------------------------------------------


def falling(*accepted: int) -> list[tuple[int, int]]:
    """100 drafts of `K` tokens; accepted[i] of them keep the i-th."""
    return [(K, sum(i < n for n in accepted)) for i in range(100)]


def test_a_token_that_stays_less_often_than_its_forward_costs_is_too_many():
    """E = 2.7 tokens in 1 + 4 · 0.1 target forwards: 1.93 a forward, so that a draft forward costs 0.193 tokens."""
    steep, long_enough = timed(falling(80, 50, 25, 15), 0.1), timed(falling(80, 40, 25, 25), 0.1)
    one = said(steep, "drafts too long")
    assert one.figure == pytest.approx(0.15 / (0.1 * 2.7 / 1.4))
    assert "drafted token 4 is accepted in 15% of its rounds, 0.78 of" in one.seen
    assert said(long_enough, "drafts too long") is None
    assert said(timed(falling(80, 50, 25, 15), 0.07), "drafts too long") is None, "a cheaper draft"


def test_a_position_that_was_seldom_drafted_is_not_judged():
    rounds = [(2, 2)] * 60
    assert said(timed(rounds + [(4, 2)] * 19, 0.1), "drafts too long") is None
    assert said(timed(rounds + [(4, 2)] * 20, 0.1), "drafts too long") is not None


# -- what is judged ----------------------------------------------------------------------------------------------------


def test_a_draft_larger_than_its_acceptance_pays_for_is_judged_on_the_tokens_the_target_came_to():
    """4 drafted, 1 accepted, 1 rejected, 2 never judged: half of them agree."""
    rounds = [(4, 1)] * 30
    assert said(timed(rounds, 0.49, step=1.0), "draft too large") is None
    one = said(timed(rounds, 0.6, step=1.0), "draft too large")
    assert one.figure == pytest.approx(1.2) and "0.60 of a target's" in one.seen and "50% are accepted" in one.seen


def test_without_a_step_of_one_position_a_verifying_one_is_the_least_the_draft_costs():
    rounds = [(4, 1)] * 30
    assert said(timed(rounds, 1.2, verify=2.0), "draft too large").figure == pytest.approx(1.2)
    assert said(timed(rounds, 1.2, verify=2.0, step=4.0), "draft too large") is None


def test_a_draft_that_is_always_wrong_is_too_large_at_any_size():
    one = said(timed([(4, 0)] * 30, 0.001, step=1.0), "draft too large")
    assert one.figure == math.inf and str(one)


def test_acceptance_is_judged_alike_whatever_the_draft_length():
    """Of 295 tokens that the target comes to, 236 stay: α = 0.8. Drafts of four hold 400, so that 0.59 are accepted."""
    long = made([(4, 4)] * 41 + [(4, 3)] * 10 + [(4, 2)] * 13 + [(4, 1)] * 16 + [(4, 0)] * 20)
    assert long.acceptance_rate < 0.6 and said(long, "low acceptance") is None
    assert said(long, "healthy acceptance").figure == pytest.approx(0.8, abs=0.005)


def test_every_source_is_a_place_or_a_command():
    for rule in RULES:
        assert rule.source == "by definition" or any(mark in rule.source for mark in ("arXiv ", "`python ", "Amdahl"))


@pytest.mark.parametrize("rule", ["first token", "low acceptance"])
def test_few_rounds_say_nothing_of_acceptance(rule):
    assert said(made([(4, 0)] * 19), rule) is None
    assert said(made([(4, 0)] * 20), rule) is not None


def test_what_lookup_found_says_nothing_of_the_draft():
    found = made([(4, 0)] * 50, source="lookup")
    assert advice(found) == []
    both = SpecStats(rows=[*found.rows, *made(accepting(0.8)).rows], calls=1)
    assert said(both, "healthy acceptance").figure == pytest.approx(0.8) and said(both, "low acceptance") is None


def test_rows_without_drafts_are_counted_and_one_reason_named():
    stats = made()
    stats.rows += [RowStats(fallback_reason="row 1: too long"), RowStats(fallback_reason="row 2: too long")]
    stats.fallback_reason = "row 1: too long"
    one = said(stats, "fallback")
    assert one.figure == 2 and one.seen == "2 of 3 row(s) without drafts: row 1: too long (and 1 more)."
    stats = made(fallback_reason="out of memory")
    assert said(stats, "fallback").seen == "1 of 1 row(s) without drafts: out of memory."


def test_a_call_that_was_decoded_plainly_says_why():
    stats = SpecStats(fallback_reason="num_beams=2 is not supported")
    assert said(stats, "fallback").seen == "1 of 1 row(s) without drafts: num_beams=2 is not supported."


# -- silence and print -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "stats",
    [SpecStats(), made(), made([(0, 0)] * 40), made([(4, 3)] * 40 + [(0, 0)] * 40, temperature=None)],
    ids=["no call", "one token", "nothing drafted", "nothing timed"],
)
def test_what_was_not_measured_is_not_spoken_of(stats):
    assert {one.rule for one in advice(stats)} <= {"healthy acceptance"}


def test_print_gives_the_figure_its_meaning_what_to_do_and_the_source():
    assert str(said(made(temperature=1.3), "temperature")).splitlines() == [
        "temperature: sampled at temperature 1.3.",
        "  The flatter the distributions, the less they agree: gains shrink, and can turn into losses.",
        "  -> Sample at 1 or below if the task allows; else leave out num_assistant_tokens, so that drafting can stop "
        "(`hf-specgen bench --temperatures 0,1,1.3`).",
        "  (over 1: chosen here; Li et al. 2025, arXiv 2503.01840, Table 1: a draft model for Vicuna-13B makes it "
        "1.92× as fast at temperature 0 and 1.60× at 1, and none is higher there)",
    ]


def test_the_order_is_the_causes_first():
    stats = timed([(4, 0)] * 30, 2.0, step=1.0)
    stats.temperature, stats.plain_steps, stats.rest_seconds = 1.3, 30, 100.0
    assert [one.rule for one in advice(stats)] == [
        "slower than plain",
        "draft too large",
        "first token",
        "low acceptance",
        "drafts too long",
        "temperature",
        "overhead",
    ]


def test_a_list_of_advice_reads_as_sentences():
    found = made(off_reason=BLIND).advice()
    assert str(found) == "\n".join(map(str, found)) and "-> To draft, pass spec_session" in str(found)
    assert str(SpecStats().advice()) == "no advice: nothing stands out"
