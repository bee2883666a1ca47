"""Estimates of acceptance: first guesses, what was seen, what stands for what."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_specgen.lengths.acceptance import DEPTH, DRAFT, LOOKUP, MEMORY, Acceptance, Count


def seen(rounds, source: str = "draft", evidence: int = 0, **more) -> Acceptance:
    """What (drafted, accepted) rounds have shown."""
    found = Acceptance(**more)
    for drafted, accepted in rounds:
        found.learn(source, evidence, drafted, accepted, [])
    return found


# ---- before anything is known ----------------------------------------------------------------------------------------
def test_first_guesses():
    unknown = Acceptance()
    assert unknown.rate("draft", 0, 0) == unknown.rate("draft", 0, 99) == DRAFT
    assert [unknown.rate("lookup", evidence, 0) for evidence in range(len(LOOKUP))] == list(LOOKUP)
    assert list(LOOKUP) == sorted(LOOKUP) and unknown.rate("lookup", 99, 3) == LOOKUP[-1]


def test_expected_tokens_of_a_chain():
    """E_w = 1 + α + α² + … for equal α, and by hand for others."""
    chain = Acceptance().chain("draft", 0, 3)
    assert chain == pytest.approx([1, 1 + DRAFT, 1 + DRAFT + DRAFT**2, 1 + DRAFT + DRAFT**2 + DRAFT**3])
    by_place = Acceptance()
    by_place.classes["draft", 0] = Count(5e8, 1e9)
    for place, alpha in enumerate((0.9, 0.5, 0.1)):
        by_place.places["draft", 0, place] = Count(alpha * 1e9, 1e9)
    assert by_place.chain("draft", 0, 3) == pytest.approx([1, 1.9, 1.9 + 0.45, 1.9 + 0.45 + 0.045])


# ---- what was seen ---------------------------------------------------------------------------------------------------
def test_only_tokens_that_were_reached_are_counted():
    """A round of five of which two stay: two hits and a miss; what comes behind the miss says nothing."""
    found = seen([(5, 2)])
    assert (found.classes["draft", 0].hits, found.classes["draft", 0].trials) == (2, 3)
    assert {place: (c.hits, c.trials) for (_, _, place), c in found.places.items()} == {0: (1, 1), 1: (1, 1), 2: (0, 1)}
    whole = seen([(3, 3)])
    assert (whole.classes["draft", 0].hits, whole.classes["draft", 0].trials) == (3, 3)
    assert not seen([(0, 0)]).classes["draft", 0].trials


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_estimates_reach_the_truth(alpha):
    dice = random.Random(int(alpha * 10))
    rounds = []
    for _ in range(600):
        accepted = next((n for n in range(4) if dice.random() >= alpha), 4)
        rounds.append((4, accepted))
    found = seen(rounds)
    assert found.rate("draft", 0, 0) == pytest.approx(alpha, abs=0.2)
    assert found.chain("draft", 0, 4)[-1] == pytest.approx(sum(alpha**k for k in range(5)), rel=0.3)


def test_places_differ_where_the_text_makes_them():
    """The first token is always right, the second never."""
    found = seen([(2, 1)] * 60)
    assert found.rate("draft", 0, 0) > 0.9 and found.rate("draft", 0, 1) < 0.15


def test_a_first_position_counts_once():
    """In rounds of one token, its rate and that of all tokens are the same evidence."""
    found = seen([(1, 0)] * 4)
    once = DRAFT * found.strength / (found.strength + 4)
    assert 0.8 * once < found.rate("draft", 0, 0) < once


def test_what_was_expected_fades_with_what_is_old():
    """It must not hold up for ever what is seen again and again."""
    for right in (0, 1):
        child = Acceptance(seen([(1, 1 - right)] * 50), strength=16.0)
        for _ in range(200):
            child.learn("draft", 0, 1, right, [])
        assert abs(child.rate("draft", 0, 0) - right) < 0.02


def test_places_far_behind_are_one():
    found = seen([(DEPTH + 5, DEPTH + 5)] * 3)
    assert found.rate("draft", 0, DEPTH - 1) == found.rate("draft", 0, DEPTH + 40)
    assert max(place for _, _, place in found.places) == DEPTH - 1


def test_sources_and_evidence_are_told_apart():
    found = seen([(4, 0)] * 20, "lookup", 3)
    assert found.rate("lookup", 3, 0) < 0.1
    assert found.rate("lookup", 4, 0) == LOOKUP[4] and found.rate("draft", 0, 0) == DRAFT


def test_what_is_old_fades():
    """After as many tokens again as are remembered, a new text has the word."""
    found = seen([(1, 1)] * 200 + [(1, 0)] * int(2 * MEMORY))
    assert found.rate("draft", 0, 0) < 0.2
    assert found.classes["draft", 0].trials == MEMORY


@given(st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), max_size=40), st.integers(0, 20))
def test_whatever_was_seen_estimates_are_probabilities_and_chains_rise(rounds, most):
    found = seen([(drafted, min(drafted, accepted)) for drafted, accepted in rounds])
    assert all(0 <= found.rate("draft", 0, place) <= 1 for place in range(20))
    chain = found.chain("draft", 0, most)
    assert len(chain) == most + 1 and chain[0] == 1 and chain == sorted(chain) and chain[-1] <= most + 1
    assert all(0 <= c.hits <= c.trials <= MEMORY + 1e-9 for c in [*found.classes.values(), *found.places.values()])


# ---- the draft's own confidence --------------------------------------------------------------------------------------
def test_of_confidence_nothing_is_known_at_first():
    assert Acceptance().confident(0.6, 0.5) == 0.5
    assert Acceptance(Acceptance()).confident(0.6, 0.3) == 0.3


def test_confidence_is_calibrated_bin_by_bin():
    found = Acceptance()
    for _ in range(40):
        found.learn("draft", 0, 2, 1, [0.35, 0.95])  # unsure and right, sure and wrong
    assert found.confident(0.35, 0.5) > 0.85 and found.confident(0.95, 0.5) < 0.15
    assert found.confident(0.65, 0.4) == 0.4, "of others nothing is known"


def test_tops_behind_the_first_miss_say_nothing():
    found = Acceptance()
    found.learn("draft", 0, 4, 1, [0.65, 0.75, 0.85, 0.95])
    assert sorted((c.hits, c.trials) for c in found.bins.values()) == [(0, 1), (1, 1)]


# ---- parents ---------------------------------------------------------------------------------------------------------
def test_a_parent_speaks_until_something_was_seen_here():
    parent = seen([(1, 0)] * 40)
    child = Acceptance(parent)
    assert child.rate("draft", 0, 0) == parent.rate("draft", 0, 0) < 0.1
    for _ in range(40):
        child.learn("draft", 0, 1, 1, [0.5])
    assert child.rate("draft", 0, 0) > 0.8 and parent.rate("draft", 0, 0) < 0.1, "a child writes to no parent"


def test_a_stronger_parent_is_believed_longer():
    parent = seen([(1, 0)] * 40)
    rates = []
    for strength in (1.0, 4.0, 16.0):
        child = seen([(1, 1)] * 3, parent=parent, strength=strength)
        rates.append(child.rate("draft", 0, 0))
    assert rates == sorted(rates, reverse=True) and rates[0] > rates[2] + 0.1


# ---- adding, writing -------------------------------------------------------------------------------------------------
def test_counts_of_calls_add_up():
    one, other = seen([(4, 2)] * 3), seen([(4, 4)] * 2)
    one.learn("draft", 0, 1, 1, [0.9])
    whole = seen([(4, 2)] * 3 + [(1, 1)] + [(4, 4)] * 2)
    one.add(other)
    assert one.to_dict()["classes"] == whole.to_dict()["classes"]
    assert one.to_dict()["places"] == whole.to_dict()["places"]


def test_what_is_written_is_read_again():
    found = seen([(4, 2), (16, 16), (3, 0)])
    found.learn("lookup", 5, 4, 3, [])
    found.learn("draft", 0, 2, 2, [0.1, 0.99])
    again = Acceptance.from_dict(found.to_dict())
    assert again.to_dict() == found.to_dict()
    for source, evidence in (("draft", 0), ("lookup", 5)):
        assert again.chain(source, evidence, 16) == found.chain(source, evidence, 16)
    tops = [x / 20 for x in range(21)]
    assert [again.confident(x, 0.5) for x in tops] == [found.confident(x, 0.5) for x in tops]
