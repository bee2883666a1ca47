"""Lossless by default, whatever the draft and whatever the clock says: greedy ids are plain decoding's, coupled ones
those of the seed alone. The rule may look at clocks and neighbours here, and does."""

import copy
import random

import pytest
import torch
from cheap_toys import deep, early_exit, repeating, told_cheap
from toys import VOCAB, assert_as_alone, contrary, noisy, prompts, seeded, spec, tiny

from hf_specgen.stats import Clock

NEW = 14
ENDS = list(range(0, VOCAB, 9))


@pytest.fixture(scope="module")
def target():
    return deep(6)


@torch.no_grad()
def constant(target):
    """Says the same token for ever."""
    draft = early_exit(target)
    draft.get_output_embeddings().weight.zero_()
    return draft


DRAFTS = {
    "early exit": early_exit,
    "noisy": lambda target: noisy(early_exit(target), 0.1),
    "exact copy": lambda target: copy.deepcopy(target),
    "contrary": lambda target: contrary(early_exit(target)),
    "random": lambda target: tiny(num_hidden_layers=1, seed=9, eos_token_id=None),
    "constant": constant,
}


@pytest.fixture(scope="module")
def drafts(target):
    return {name: make(target) for name, make in DRAFTS.items()}


@pytest.fixture(params=[None, 1], ids=["true clock", "any clock"])
def clock(request, monkeypatch):
    """What a forward has taken, or anything."""
    if request.param is not None:
        dice = random.Random(request.param)
        monkeypatch.setattr(Clock, "last", lambda *_: 10 ** dice.uniform(-5, 0))


def default(target, draft, batch, strategy="rejection", **kwargs):
    """A call that says nothing of how much is drafted, nor from where."""
    settings = {"max_new_tokens": NEW, "num_assistant_tokens": None, "output_logits": True} | kwargs
    return spec(target, draft, strategy, **batch, **settings)


@pytest.mark.parametrize("batch", [prompts([9]), repeating([4, 17, 11])], ids=["alone", "ragged"])
@pytest.mark.parametrize("kind", DRAFTS)
def test_greedy_rows_are_plains(target, drafts, monkeypatch, clock, kind, batch):
    """Told that the draft is cheap, it is begun whatever it is, and left where the clock says so."""
    told_cheap(monkeypatch, drafts[kind])
    out = default(target, drafts[kind], batch)
    assert_as_alone(target, out, batch, NEW)
    assert out.spec_stats.draft_forwards > 0


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["early exit", "contrary"])
def test_rows_that_end_at_different_times(target, drafts, monkeypatch, clock, kind, side):
    told_cheap(monkeypatch, drafts[kind])
    batch = repeating([5, 20, 12, 7], side)
    out = default(target, drafts[kind], batch, eos_token_id=ENDS)
    assert_as_alone(target, out, batch, NEW, eos_token_id=ENDS)
    assert len({row.emitted for row in out.spec_stats.rows}) > 1
    for row in out.spec_stats.rows:
        assert row.emitted == row.accepted + row.rounds - row.trimmed


@pytest.mark.parametrize("source", ["hybrid", "draft", "lookup"])
@pytest.mark.parametrize("schedule", ["goodput", "target-rate", "heuristic", "constant"])
def test_every_rule_with_every_source(target, drafts, monkeypatch, schedule, source):
    told_cheap(monkeypatch, drafts["early exit"])
    batch = repeating([5, 20, 12])
    asked = {"num_assistant_tokens_schedule": schedule, "spec_source": source}
    out = default(target, drafts["early exit"], batch, **asked)
    assert_as_alone(target, out, batch, NEW)
    sources = out.spec_stats.by_source.keys()
    assert sources <= ({"draft", "lookup"} if source == "hybrid" else {source})
    assert sources or schedule == "goodput"


def test_the_clock_decides_what_is_drafted_and_not_what_is_said(target, drafts, monkeypatch):
    """Control: clocks that say something else do change the rounds."""
    traces = set()
    for seed in range(4):
        dice = random.Random(seed)
        monkeypatch.setattr(Clock, "last", lambda *_, dice=dice: 10 ** dice.uniform(-5, 0))
        out = default(target, drafts["early exit"], prompts([9]))
        traces.add(str(out.spec_stats.rows[0].trace))
    assert len(traces) > 1


@pytest.mark.parametrize("kind", ["early exit", "contrary", "constant"])
def test_the_coupled_text_is_the_seeds_alone(target, drafts, monkeypatch, clock, kind):
    told_cheap(monkeypatch, drafts[kind])
    batch = repeating([5, 20, 12])
    wanted = default(target, None, batch, "coupled", **seeded()).sequences
    got = default(target, drafts[kind], batch, "coupled", **seeded())
    assert torch.equal(got.sequences, wanted) and got.spec_stats.draft_forwards > 0


def test_by_default_a_cheap_draft_is_used_and_an_equal_one_is_not(target, drafts):
    """By estimates alone, before a clock has said anything."""
    used = default(target, drafts["early exit"], prompts([9])).spec_stats
    assert used.draft_forwards > 0 and used.accepted > 0 and used.off_reason is None
    rests = default(target, drafts["exact copy"], prompts([9])).spec_stats
    assert rests.draft_forwards == 0 and "no acceptance makes it pay" in rests.off_reason
    assert f"without drafts      {rests.off_reason}" in str(rests)
