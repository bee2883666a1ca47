"""Same seed twice, same ids, alone or in any batch, with default settings: where ids depend on how much is drafted, no
clock and no neighbour has a say in it."""

import copy
import random
import warnings

import pytest
import torch
from cheap_toys import deep, early_exit, repeating
from toys import noisy, prompts, row_alone, spec

import hf_specgen
from hf_specgen.decoding import call as decoding
from hf_specgen.stats import Clock

LENGTHS, NEW, VOCAB = [5, 20, 12], 16, 8
RULES = ["rejection", "block"]
SETTINGS = {
    "default": {},
    "goodput, draft": {"num_assistant_tokens_schedule": "goodput", "spec_source": "draft"},
    "goodput, lookup": {"num_assistant_tokens_schedule": "goodput", "spec_source": "lookup", "temperature": 0.2},
    "goodput, at most 3": {"num_assistant_tokens_schedule": "goodput", "num_assistant_tokens": 3},
    "target-rate": {"num_assistant_tokens_schedule": "target-rate"},
    "heuristic, hybrid": {"num_assistant_tokens_schedule": "heuristic", "spec_source": "hybrid"},
    "constant, hybrid": {"num_assistant_tokens": 4, "spec_source": "hybrid"},
    "threshold": {"assistant_confidence_threshold": 0.15},
}
CALLS = [pytest.param("rejection", options, id=name) for name, options in SETTINGS.items()]
CALLS += [pytest.param("block", {"temperature": 0.9}, id="block")]


@pytest.fixture(scope="module")
def pair():
    target = deep(6, 0.1, scale=8.0, vocab_size=VOCAB, hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
    return target, noisy(early_exit(target), 0.05)


@pytest.fixture(autouse=True)
def cheap_positions(monkeypatch):
    """As on a GPU: where a position costs what it does on a CPU, nothing is drafted without measured costs."""
    monkeypatch.setattr(decoding, "position_costs", lambda model: (0.01, 0.0))


def call(pair, batch, strategy="rejection", seeds=None, **kwargs):
    seeds = range(len(batch["input_ids"])) if seeds is None else seeds
    generators = [torch.Generator().manual_seed(70 + seed) for seed in seeds]
    options = {"do_sample": True, "top_k": 0, "temperature": 0.6, "max_new_tokens": NEW, "pad_token_id": 0}
    options |= {"num_assistant_tokens": None, "generator": generators}
    return spec(*pair, strategy, **batch, **options | kwargs)


def new_ids(out, batch) -> list[list[int]]:
    return out.sequences[:, batch["input_ids"].shape[1] :].tolist()


def poisoned(monkeypatch, seed: int) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(Clock, "last", lambda *_: 10 ** dice.uniform(-5, 1))


def traces(out):
    return [row.trace for row in out.spec_stats.rows], [row.sources for row in out.spec_stats.rows]


@pytest.mark.parametrize("strategy, settings", CALLS)
def test_the_same_seed_twice_under_any_clock(pair, monkeypatch, strategy, settings):
    batch = repeating(LENGTHS, vocab=VOCAB)
    first = call(pair, batch, strategy, **settings)
    assert first.spec_stats.drafted > 0 and 0 < first.spec_stats.acceptance_rate < 1
    for seed in range(2):
        poisoned(monkeypatch, seed)
        again = call(pair, batch, strategy, **settings)
        assert again.sequences.tolist() == first.sequences.tolist() and traces(again) == traces(first)
    other = call(pair, batch, strategy, seeds=range(50, 53), **settings)
    assert other.sequences.tolist() != first.sequences.tolist()


@pytest.mark.parametrize("strategy, settings", CALLS)
def test_a_row_alone_is_that_row_in_any_batch(pair, monkeypatch, strategy, settings):
    """Its ids and its rounds, whatever its neighbours are and whichever side the padding is on."""
    batch = repeating(LENGTHS, vocab=VOCAB)
    together = call(pair, batch, strategy, **settings)
    ids, (rounds, sources) = new_ids(together, batch), traces(together)
    poisoned(monkeypatch, 3)
    for b in range(len(LENGTHS)):
        one = row_alone(batch, b)
        alone = call(pair, one, strategy, seeds=[b], **settings)
        assert new_ids(alone, one) == [ids[b]]
        assert traces(alone) == ([rounds[b]], [sources[b]])
    order = [2, 0]
    right = {name: x[order] for name, x in repeating(LENGTHS, "right", VOCAB).items()}
    assert new_ids(call(pair, right, strategy, seeds=order, **settings), right) == [ids[b] for b in order]


def learned(pair, batch) -> hf_specgen.SpecSession:
    """A session that has seen two calls."""
    session = hf_specgen.SpecSession()
    for seed in range(2):
        call(pair, batch, seeds=range(10 * seed, 10 * seed + len(batch["input_ids"])), spec_session=session)
    return session


@pytest.mark.parametrize("strategy", RULES)
def test_a_session_in_the_same_state_gives_the_same_ids(pair, monkeypatch, strategy):
    batch = repeating(LENGTHS, vocab=VOCAB)
    session = learned(pair, batch)
    first = call(pair, batch, strategy, spec_session=copy.deepcopy(session))
    for seed in range(2):
        poisoned(monkeypatch, seed)
        again = call(pair, batch, strategy, spec_session=copy.deepcopy(session))
        assert again.sequences.tolist() == first.sequences.tolist() and traces(again) == traces(first)


@pytest.mark.parametrize("strategy", RULES)
def test_a_row_alone_with_what_a_session_has_learned(pair, monkeypatch, strategy):
    batch = repeating(LENGTHS, vocab=VOCAB)
    session = learned(pair, batch)
    session.reset()  # the caches: rows go by their index
    together = call(pair, batch, strategy, spec_session=copy.deepcopy(session))
    poisoned(monkeypatch, 4)
    for b in range(len(LENGTHS)):
        one = row_alone(batch, b)
        alone = call(pair, one, strategy, seeds=[b], spec_session=copy.deepcopy(session))
        assert new_ids(alone, one) == [new_ids(together, batch)[b]]


def test_what_a_session_has_learned_does_decide(pair):
    """Control: with other knowledge the rounds are others."""
    batch = repeating(LENGTHS, vocab=VOCAB)
    session = learned(pair, batch)
    session.reset()
    knowing = call(pair, batch, spec_session=session)
    assert traces(knowing) != traces(call(pair, batch, spec_session=hf_specgen.SpecSession()))


@pytest.mark.parametrize("strategy", RULES)
def test_one_generator_serves_the_batch_as_ever(pair, strategy):
    """Row b keyed by b: more rows behind it change nothing."""
    batch = repeating(LENGTHS, vocab=VOCAB)
    fewer = {name: x[:2] for name, x in batch.items()}
    runs = [
        new_ids(call(pair, rows, strategy, generator=torch.Generator().manual_seed(8)), rows)[:2]
        for rows in (batch, fewer)
    ]
    assert runs[0] == runs[1]
    torch.manual_seed(5)
    first = call(pair, prompts([6], vocab=VOCAB), strategy, generator=None).sequences
    torch.manual_seed(5)
    assert torch.equal(call(pair, prompts([6], vocab=VOCAB), strategy, generator=None).sequences, first)


def test_on_a_cpu_the_model_drafts_once_a_session_knows_the_costs(pair, monkeypatch):
    """Until then rows, which must not see each other, could hold each other up."""
    monkeypatch.undo()
    batch, session = repeating(LENGTHS, vocab=VOCAB), hf_specgen.SpecSession()
    first = call(pair, batch, spec_source="draft", spec_session=session).spec_stats
    assert first.drafted == 0 and "spec_session" in first.off_reason
    assert call(pair, batch, spec_source="draft", spec_session=session).spec_stats.drafted > 0


def test_a_draft_that_waits_is_told_once(pair, monkeypatch):
    """A call that returns a tensor shows no statistics. Those that know the costs, or need not, say nothing."""
    monkeypatch.undo()
    decoding._tell_waiting.cache_clear()
    batch = repeating(LENGTHS, vocab=VOCAB)
    knowing = [{"spec_source": "lookup"}, {"spec_source": "none"}, {"num_assistant_tokens": 2}, {"strategy": "coupled"}]
    knowing += [{"do_sample": False, "temperature": None}, {"spec_session": hf_specgen.SpecSession()}]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for options in (*knowing, {}, {"return_dict_in_generate": False}):
            call(pair, batch, **options)
            told = [str(w.message) for w in caught if "was not used" in str(w.message)]
            assert len(told) == (options not in knowing), options
    assert "LlamaForCausalLM" in told[0] and "pass spec_session=SpecSession(), a tuned spec_config, or" in told[0]
