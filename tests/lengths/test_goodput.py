"""What the default rule decides, on machines and texts that are told: off where nothing pays, long where much does."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from length_toys import Machine, ToyRow, best_constant, chance, play

from hf_specgen.lengths import GoodputLength, Knowledge
from hf_specgen.lengths.budget import ALLOWANCE, SHARE, TOGETHER
from hf_specgen.lengths.offer import Offer
from hf_specgen.lengths.planner import LONGEST

TERMS = [pytest.param(True, id="free"), pytest.param(False, id="fixed")]


def lost(played, n: int | None = None) -> float:
    """Plain steps beyond plain decoding's, up to and with round n."""
    until = len(played.times) if n is None else n + 1
    return sum(played.times[:until]) - sum(map(played.tokens, range(until)))


# ---- off where nothing pays ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("alpha", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("free", TERMS)
def test_a_draft_nearly_as_slow_as_its_target_is_never_begun(free, rows, alpha):
    rule = GoodputLength()
    played = play(rule, Machine(step=0.9), chance(alpha), free=free, rows=rows)
    assert not any(played.drafted()) and played.rate() == 1
    assert rule.why_off.startswith("a draft step takes 0.9") and rule.why_off.endswith("no acceptance makes it pay")


@pytest.mark.parametrize("free", TERMS)
def test_a_draft_is_not_begun_for_a_few_tokens_after_a_long_prompt(free):
    """A prompt of 800 costs the draft 0.1 · (1 + 0.05 · 800) plain steps."""
    for left, begun in ((4, False), (200, True)):
        rule = GoodputLength()
        rule.start(Machine(step=0.1, position=0.05).terms(free=free))
        row = ToyRow(length=800, prompt_length=800, limit=800 + left)
        (choice,) = rule.choose([row], [[Offer("draft", left)]])
        assert bool(choice.width) == begun
        why = None if begun else "the draft would have to read the prompt (about 4.1 plain steps) for 4 tokens"
        assert rule.why_off == why


@pytest.mark.parametrize("rows, prefill, begun", [(4, 30.0, False), (4, 10.0, True), (1, 30.0, True), (4, None, True)])
def test_a_draft_does_not_begin_with_a_large_part_of_a_batch(rows, prefill, begun):
    """Plain decoding takes 40 steps of a batch here; the draft reads in a fifth of the target's time."""
    rule = GoodputLength()
    rule.start(Machine(step=0.2, position=0.02).terms(prefill=prefill))
    batch = [ToyRow(b, limit=50) for b in range(rows)]
    choices = rule.choose(batch, [[Offer("draft", 39)]] * rows)
    assert any(choice.width for choice in choices) == begun
    assert begun or rule.why_off == "the draft would have to read the prompts, 8% of the time that plain decoding takes"


@pytest.mark.parametrize("free", TERMS)
def test_without_a_draft_nothing_is_chosen_and_nothing_is_said(free):
    rule = GoodputLength()
    played = play(rule, Machine(), chance(1.0), 30, model=False, free=free)
    assert played.rate() == 1 and rule.why_off is None


# ---- on where it pays ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("step, alpha", [(0.05, 0.9), (0.05, 0.7), (0.15, 0.8), (0.3, 0.9), (0.02, 0.97)])
@pytest.mark.parametrize("free", TERMS)
def test_it_is_nearly_as_good_as_the_best_constant_length(free, step, alpha):
    machine = Machine(step, position=0.03)
    best = best_constant(machine, alpha, LONGEST)
    rates = [play(GoodputLength(), machine, chance(alpha, seed), 300, free=free).rate(20) for seed in range(3)]
    assert best > 1.3 and sum(rates) / 3 > 0.92 * best


@pytest.mark.parametrize("free", TERMS)
def test_a_cheap_draft_that_is_mostly_right_drafts_long(free):
    drafted = play(GoodputLength(), Machine(0.05, 0.02), chance(0.92), 200, free=free).drafted()[20:]
    assert sum(drafted) / len(drafted) > 7 and max(drafted) <= LONGEST


@pytest.mark.parametrize("free", TERMS)
def test_the_longest_draft_is_what_was_asked_for(free):
    drafted = play(GoodputLength(3), Machine(0.02, 0.01), chance(1.0), 50, free=free).drafted()
    assert max(drafted) == 3


def test_a_batch_ends_with_its_slowest_rows():
    """Half of the rows all right, half all wrong: nothing ends earlier for it. Some more right than others: all do."""
    machine = Machine(0.05, 0.01)
    half = play(GoodputLength(), machine, lambda row, n, place, _: row % 2 == 0, 200, rows=4)
    assert sum(half.times) < 200 * (1 + SHARE) + ALLOWANCE
    better, worse = chance(0.9, 1), chance(0.6, 2)
    uneven = play(
        GoodputLength(),
        machine,
        lambda row, n, place, source: (worse if row % 2 else better)(row, n, place, source),
        200,
        rows=4,
    )
    slowest = min(sum(rs[b].accepted + 1 for rs in uneven.rounds) for b in range(4))
    assert slowest / sum(uneven.times) > 0.9 * best_constant(machine, 0.6, LONGEST, rows=4) > 1.5


def test_rows_that_are_planned_apart_are_judged_by_themselves():
    machine = Machine(0.05, 0.01)
    apart = play(GoodputLength(), machine, lambda row, n, place, _: row % 2 == 0, 200, rows=4, free=False)
    outcomes = [[rs[b].drafted for rs in apart.rounds[30:]] for b in range(4)]
    assert min(outcomes[0]) > 8 and sum(map(bool, outcomes[1])) < 20, "apart, the wrong rows rest"


# ---- inside a draft --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("free", TERMS)
def test_drafts_end_where_the_draft_becomes_unsure(free):
    """Its confidence tells where it errs: sure and right for 1, 5, 9 tokens in turn, then neither."""
    sure = (1, 5, 9)

    def right(row, n, place, source):
        return place < sure[n % 3]

    def tops(row, n, place):
        return 0.995 if place < sure[n % 3] else 0.15

    machine = Machine(0.1, 0.02)
    asked = play(GoodputLength(), machine, right, 150, tops=tops, free=free)
    blind = play(GoodputLength(), machine, right, 150, free=free)
    later = [[d for n, d in enumerate(asked.drafted()) if n % 3 == i and n > 40] for i in range(3)]
    assert all(mean - 0.2 <= sum(x) / len(x) <= mean + 1.2 for x, mean in zip(later, sure, strict=True))
    assert asked.rate(40) > 1.15 * blind.rate(40)


@pytest.mark.parametrize("free", TERMS)
def test_confidence_is_calibrated(free):
    """A draft that is as sure as can be and wrong, and one that is never sure and right."""
    machine = Machine(0.1, 0.02)
    boaster = play(GoodputLength(), machine, chance(0.3), 200, tops=lambda *_: 0.995, free=free)
    modest = play(GoodputLength(), machine, chance(0.95), 200, tops=lambda *_: 0.25, free=free)
    assert boaster.rate(50) > 0.98 and modest.rate(50) > 0.8 * best_constant(machine, 0.95, LONGEST)
    short, long = boaster.drafted()[50:], modest.drafted()[50:]
    assert sum(short) / len(short) < 2 < 4 < sum(long) / len(long)


def test_all_rows_that_draft_go_on_together_where_they_are_planned_together():
    rule = GoodputLength()
    rule.start(Machine(0.05).terms(inside=True))
    rows = [ToyRow(0), ToyRow(1)]
    rule.choose(rows, [[Offer("draft", 50)]] * 2)
    assert rule.goes_on(rows, 0, [0.999, 0.05]) in ([True, True], [False, False])
    rule = GoodputLength()
    rule.start(Machine(0.05).terms(inside=True, free=False))
    rule.choose(rows, [[Offer("draft", 50)]] * 2)
    assert rule.goes_on(rows, 0, [0.999, 0.01]) == [True, False]


@pytest.mark.parametrize("inside", [None, 0.9], ids=["not asked inside", "asked inside"])
@pytest.mark.parametrize("free", TERMS)
def test_a_model_that_is_asked_and_proposes_nothing_is_left_alone(free, inside):
    """As under a confidence threshold that its tokens do not reach: the forwards are paid for all the same."""
    tops = None if inside is None else (lambda *_: inside)
    played = play(GoodputLength(), Machine(0.2, 0.02), chance(1.0), 200, at_most=0, tops=tops, free=free)
    assert lost(played) < 2 * (ALLOWANCE + SHARE * 200)
    assert sum(bool(r.choice.width) for rs in played.rounds[50:] for r in rs) < 20


# ---- texts that change -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("top", [None, 0.9, 0.5], ids=["not asked inside", "sure of itself", "as sure as right"])
@pytest.mark.parametrize("step", [0.1, 0.3])
@pytest.mark.parametrize("free", TERMS)
def test_acceptance_that_collapses_turns_it_off_and_one_that_comes_back_on_again(free, step, top):
    """Right for 40 rounds, wrong for 200, right again. What was gained before does not pay for what is lost then."""

    def right(n):
        return not 40 <= n < 240

    def tops(row, n, place):
        return 0.9 if right(n) else top

    machine = Machine(step, 0.02)
    told = None if top is None else tops
    played = play(GoodputLength(), machine, lambda row, n, *_: right(n), 320, tops=told, free=free)
    drafted = played.drafted()
    assert min(drafted[10:40]) > 2
    assert sum(played.times[40:240]) - 200 < 25, "what the 200 rounds cost more than without drafts"
    assert sum(played.times[80:240]) - 160 < 5 and max(drafted[60:240]) <= 2, "rare trials, and short ones"
    back = next(n for n in range(240, 320) if all(drafted[n : n + 5]))
    assert back - 240 <= 8 * TOGETHER
    assert min(drafted[back + 15 : 320]) > 2 and played.rate(back + 10) > 1.5


START = 100  # rounds after which a useless draft is known to be one; before, the budget keeps it short


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("free", TERMS)
def test_a_draft_that_is_never_right_is_tried_at_growing_distances(free, rows):
    """In rounds that all rows share, so that those planned apart pay for one forward."""
    played = play(GoodputLength(), Machine(0.1, 0.02), chance(0.0), 1200, rows=rows, free=free)
    tried = [n for n, d in enumerate(played.drafted()) if d]
    distances = [b - a for a, b in pairwise(n for n in tried if n > START)]
    assert len(distances) >= 3 and all(b >= 1.5 * a for a, b in pairwise(distances))
    assert all(n % TOGETHER == 0 for n in tried if n > START) and played.drafted()[tried[-1]] == 1


@st.composite
def texts(draw):
    """Stretches of rounds, each with a number of tokens that are right."""
    stretches = draw(st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0, 0, 0, 1, 2, 5, 99])), max_size=6))
    return [right for rounds, right in stretches for _ in range(rounds)] + [0] * 40


@settings(max_examples=40, deadline=None)
@given(
    texts(),
    st.floats(0.01, 0.95),
    st.floats(0.0, 0.15),
    st.booleans(),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 0.99, 0.3]),
)
def test_what_is_lost_stays_within_the_budget_whatever_comes(text, step, position, free, rows, top):
    """Against plain decoding: the allowance and the share, at every moment. Rounds that might lose more than what is
    left of them are shorter."""
    machine = Machine(step, position if rows == 1 or free else 0.0)  # apart, rows are judged without neighbours
    tops = None if top is None else (lambda *_: top)
    played = play(
        GoodputLength(), machine, lambda row, n, place, _: place < text[n], len(text), rows, tops=tops, free=free
    )
    for n in range(len(text)):
        assert lost(played, n) <= ALLOWANCE + SHARE * sum(played.times[: n + 1]) + 1e-6


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 0.6), st.floats(0.3, 3.0), st.floats(0.0, 1.0))
def test_a_wrong_estimate_of_the_machine_is_found_out(seed, step, error, alpha):
    """The clock corrects it: a draft thought three times as fast as it is costs little more than one known."""
    machine, told = Machine(step, 0.03), Machine(step / error, 0.03)
    played = play(GoodputLength(), machine, chance(alpha, seed), 200, told=told)
    assert lost(played) <= 2 * (ALLOWANCE + SHARE * sum(played.times)) + 2


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("factor", [3, 10, 50])
def test_a_forward_that_is_disturbed_once_does_not_turn_it_off(slow, factor):
    """As the first ones are: memory, kernels, caches. One of the first rounds takes so many times as long."""
    machine, calls = Machine(0.1, 0.03), []

    def clock(seconds):
        calls.append(seconds)
        return seconds * (factor if (len(calls) - 1) // 2 == slow else 1)  # twice a round: target, draft

    played = play(GoodputLength(), machine, chance(0.85, 2), 300, clock=clock)
    assert played.rate(100) > 0.85 * best_constant(machine, 0.85, LONGEST)


def test_a_noisy_clock_costs_little():
    dice = random.Random(1)

    def clock(seconds):
        return seconds * dice.lognormvariate(0, 0.25)

    machine = Machine(0.1, 0.03)
    good = play(GoodputLength(), machine, chance(0.85, 2), 300, clock=clock)
    assert good.rate(40) > 0.85 * best_constant(machine, 0.85, LONGEST)
    assert play(GoodputLength(), machine, chance(0.0), 300, clock=clock).rate() > 0.97


# ---- both sources ----------------------------------------------------------------------------------------------------
def found(evidence: int, every: int = 1):
    """Lookup offers eight tokens of this evidence in every so many rounds."""
    return lambda row, n: [Offer("lookup", 8, evidence, costs=False)] if n % every == 0 else []


@pytest.mark.parametrize("free", TERMS)
def test_a_match_that_is_right_comes_before_the_model(free):
    """It costs nothing, and as long as it promises as much, no draft need be begun."""
    played = play(GoodputLength(), Machine(0.3, 0.02), chance(0.97), 100, matches=found(6), free=free)
    looked, drafted = played.drafted("lookup"), played.drafted()
    assert sum(map(bool, looked[20:])) > 70 and sum(map(bool, drafted[20:])) == 0


@pytest.mark.parametrize("free", TERMS)
def test_matches_that_are_wrong_leave_the_round_to_the_model(free):
    right = chance(0.9)
    played = play(
        GoodputLength(),
        Machine(0.1, 0.02),
        lambda row, n, place, source: source == "draft" and right(row, n, place, source),
        150,
        matches=found(6),
        free=free,
    )
    assert sum(map(bool, played.drafted("lookup")[60:])) <= 5 and min(played.drafted()[60:]) > 0


@pytest.mark.parametrize("free", TERMS)
def test_wrong_matches_without_a_model_are_left_alone(free):
    played = play(GoodputLength(), Machine(position=0.1), chance(0.0), 300, matches=found(6), model=False, free=free)
    assert sum(map(bool, played.drafted("lookup")[100:])) <= 4
    assert lost(played) <= ALLOWANCE + SHARE * sum(played.times) + 1


@pytest.mark.parametrize("free", TERMS)
def test_the_classes_of_evidence_are_learned_apart(free):
    """Short matches are wrong here and long ones right: each in every second round."""

    def matches(row, n):
        return [Offer("lookup", 8, 7 if n % 2 else 4, costs=False)]

    played = play(
        GoodputLength(), Machine(position=0.05), lambda row, n, *_: n % 2 == 1, 200, matches=matches, model=False,
        free=free,
    )  # fmt: skip
    looked = played.drafted("lookup")[60:]
    assert min(looked[1::2]) > 3 and sum(map(bool, looked[0::2])) <= 4


# ---- what is known before --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("free", TERMS)
def test_knowledge_of_a_bad_draft_keeps_it_off_and_of_a_good_one_on_from_the_start(free):
    for alpha, begins in ((0.05, False), (0.95, True)):
        first = GoodputLength()
        play(first, Machine(0.25, 0.02), chance(alpha), 150, free=free)
        knowledge = Knowledge()
        first.teach(knowledge)
        again = play(GoodputLength(), Machine(0.25, 0.02), chance(alpha), 12, free=free, knowledge=knowledge)
        assert (sum(map(bool, again.drafted()[:4])) == 4) == begins, alpha
        assert begins or sum(map(bool, again.drafted())) <= 1


def test_a_call_does_not_write_to_what_is_known():
    knowledge = Knowledge()
    rule = GoodputLength()
    play(rule, Machine(0.1), chance(0.5), 40, knowledge=knowledge)
    assert knowledge == Knowledge() or knowledge.to_dict() == Knowledge().to_dict()
    rule.teach(knowledge)
    assert knowledge.acceptance.classes and knowledge.costs["target"] and knowledge.costs["draft"]


def test_costs_known_before_decide_where_clocks_may_not_be_looked_at():
    """Taken for fast, the draft is in truth as slow as its target: fixed costs go on, a session's next call knows."""
    machine, told, knowledge = Machine(0.95, 0.02), Machine(0.05, 0.02), Knowledge()
    first = GoodputLength()
    played = play(first, machine, chance(0.9), 40, told=told, free=False, knowledge=knowledge)
    assert min(played.drafted()) > 0
    first.teach(knowledge)
    second = GoodputLength()
    assert not any(play(second, machine, chance(0.9), 40, told=told, free=False, knowledge=knowledge).drafted())
    assert "no acceptance makes it pay" in second.why_off


def test_a_first_token_that_nobody_guesses_does_not_turn_a_good_draft_off():
    """Not all that may be lost is risked in the first round, in which costs are but estimated."""
    played = play(
        GoodputLength(),
        Machine(0.42, 0.03),
        lambda row, n, place, source: n > 0,
        rounds=40,
        tops=lambda row, n, place: 0.95,
        told=Machine(0.33, 0.06),
        alternatives=True,
    )
    assert played.rate() > 1.5
