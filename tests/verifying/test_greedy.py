"""Ties are told from faults: by their size, against the noise of plain decoding, and by their number."""

import math

import pytest
import torch

from hf_specgen.verifying.greedy import LEVEL, Counts, Flips, Noise, judge
from hf_specgen.verifying.reading import Reading
from hf_specgen.verifying.texts import ALONE, Text


def reading(*shortfalls: float, best: float = 20.0) -> Reading:
    """A text whose tokens 0, 1, … are so far below the best one; three candidates each."""
    scores = [[best - x, best, best - 1] for x in shortfalls]
    ids = [[i if x == 0 else 50, i, 51] for i, x in enumerate(shortfalls)]
    return Reading(torch.tensor(ids), torch.tensor(scores))


def noise(*moved: float, dtype=torch.float32, beside=None) -> Noise:
    """Of a text of two tokens, read once more for each movement of the second best score."""
    found, plain = Noise(beside), reading(0.0, 0.0)
    for i, by in enumerate(moved):
        found.add(f"{i + 2} positions", plain, Reading(plain.ids, plain.scores + torch.tensor([0.0, 0.0, by])), dtype)
    return found


def checked(noise_, *shortfalls, problem=None):
    text = reading(*shortfalls)
    found = Text(0, ALONE, text.taken, problem)
    return judge(found, list(range(len(shortfalls))), text, noise_.tolerance)


# -- by size -----------------------------------------------------------------------------------------------------------


def test_a_gap_within_the_noise_is_a_tie_and_one_beyond_it_a_fault():
    single, half = noise(1e-5), noise(0.125, dtype=torch.bfloat16)
    assert single.largest == pytest.approx(1e-5, rel=0.1) and half.largest == pytest.approx(0.156, rel=0.01)
    assert checked(single, 0, 0, 1e-5).verdict == "tie"
    assert checked(single, 0, 0, 0.01).verdict == "fault"
    assert checked(half, 0, 0, 0.125).verdict == "tie"
    assert checked(half, 0, 0, 1.3).verdict == "fault"


def test_what_a_dtype_cannot_write_down_is_no_difference():
    assert noise(0.0, dtype=torch.bfloat16).largest == pytest.approx(20 * 2**-7)
    assert noise(0.0).tolerance == pytest.approx(2 * 20 * 2**-23)


def test_the_text_after_a_tie_is_judged_too():
    tie = checked(noise(0.1), 0, 0.1, 0, 0.05, 0)
    assert (tie.verdict, tie.diverged_at, tie.gap, tie.others) == ("tie", 1, pytest.approx(0.1, abs=1e-5), 1)
    assert (tie.token, tie.plain_token, tie.flips) == (50, 1, 2)
    fault = checked(noise(0.1), 0, 0.1, 0, 3.0, 0)
    assert (fault.verdict, fault.diverged_at, fault.worst_at) == ("fault", 1, 3)
    assert fault.why == "token 3 is 3 below the target's best one; rounding explains 0.2"


def test_scores_that_are_no_numbers_are_a_fault():
    assert checked(noise(0.1), 0, float("nan"), 0).verdict == "fault"


def test_a_noisy_way_loosens_the_judgement_of_its_own_texts_only():
    alone = noise(0.01)
    batch = noise(0.3, beside=alone)
    assert (alone.tolerance, batch.tolerance) == (pytest.approx(0.02, rel=0.01), pytest.approx(0.6, rel=0.01))
    assert noise(0.01, beside=batch).tolerance == batch.tolerance, "the last rows of a batch decode alone"
    assert checked(alone, 0, 0.1).verdict == "fault" and checked(batch, 0, 0.1).verdict == "tie"


def test_how_many_positions_are_decided():
    """Here the best token is 1 ahead of the second, there 0.5."""
    leads = [reading(0.0, 0.0).lead, reading(0.0, 0.0).lead / 2]
    shares = []
    for moved in (0.2, 0.3, 0.6):
        found = noise(moved)
        found.leads = leads
        shares.append(found.decided)
    assert shares == [1.0, 0.5, 0.0]


# -- by number ---------------------------------------------------------------------------------------------------------


def test_flips_of_plain_decoding_are_counted():
    assert [noise(by).flips for by in (0.9, 1.1)] == [0, 2]
    assert noise(0.9, 1.1, 1.2).positions == 6


def test_one_way_is_fishers_exact_test():
    """Against the sum over all tables with the same margins."""
    way = Counts(ours=5, tokens=40, plain=3, positions=90)
    tables = [math.comb(40, x) * math.comb(90, 8 - x) for x in range(9)]
    assert sum(tables) == math.comb(130, 8)
    assert way.p_value == pytest.approx(sum(tables[5:]) / sum(tables))
    assert way._replace(ours=0).p_value == 1.0


def test_ways_are_not_mixed():
    """A batch that rounds worse makes more ties in its own texts: no reason to blame it, nor to excuse the others."""
    worse = Counts(ours=30, tokens=100, plain=60, positions=200)
    clean, wrong = Counts(0, 100, 0, 200), Counts(15, 100, 0, 200)
    assert Flips({"alone": clean, "batch": worse}).passed
    found = Flips({"alone": wrong, "batch": worse})
    assert not found.passed and found.p_value == pytest.approx(2 * wrong.p_value)
    assert "alone 15 of 100 tokens are below the best one, and 0 of 200 where plain" in str(found)


def test_the_chance_of_blaming_rounding_is_the_level():
    """Both counts are drawn with one rate; the p-value is at most uniform."""
    generator = torch.Generator().manual_seed(0)
    p_values = []
    for _ in range(400):
        ours, plain = (int((torch.rand(n, generator=generator) < 0.03).sum()) for n in (200, 400))
        p_values.append(Counts(ours, 200, plain, 400).p_value)
    p = torch.tensor(p_values)
    for level in (0.05, 0.2, 0.5):
        assert (p <= level).double().mean() <= level + 3 * (level * (1 - level) / 400) ** 0.5
    assert p.min() < 0.05


@pytest.mark.parametrize("plain", [0, 4])
def test_what_is_visible_is_the_least_that_is_a_fault(plain):
    flips = Flips({"alone": Counts(0, 200, plain, 600)})
    least = round(flips.visible * 200)
    assert 0 < least < 30
    p = [Counts(ours, 200, plain, 600).p_value for ours in (least - 1, least)]
    assert p[0] >= LEVEL > p[1]
    assert Flips({"alone": Counts(0, 3, 0, 6)}).visible == 1.0, "too few to tell"
