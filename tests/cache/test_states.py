"""Targets and drafts with recurrent or convolutional layers, whose states go back to where a block began."""

import functools

import pytest
import torch
from architectures.build import build, noisy_copy
from toys import prompts, spec

from hf_specgen.compat import CACHE_NAME
from hf_specgen.decoding import scoring

FAMILIES = ["qwen3_next", "lfm2", "falcon_h1", "mamba2", "nemotron_h"]
"""Gated delta rule, short convolutions, both kinds in one layer, states alone, layers of neither kind."""


@functools.cache
def pair(name: str):
    """(target, a draft that is often right, one that never is)"""
    target = build(name)
    return target, noisy_copy(target), noisy_copy(target, noise=3.0)


def alone(target, batch, row: int, **kwargs):
    ids = batch["input_ids"][row][batch["attention_mask"][row].bool()][None]
    return target.generate(ids, do_sample=False, max_new_tokens=20, pad_token_id=0, **kwargs)[0, ids.shape[1] :]


@pytest.mark.parametrize("k", [1, 4, 9])
@pytest.mark.parametrize("lengths", [(7,), (3, 11, 6)], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_decoded_as_if_alone(name, lengths, k):
    target, good, bad = pair(name)
    batch = prompts(list(lengths))
    for draft in (good, bad):
        out = spec(target, draft, **batch, max_new_tokens=20, num_assistant_tokens=k, pad_token_id=0)
        for b in range(len(lengths)):
            assert torch.equal(out.sequences[b, batch["input_ids"].shape[1] :], alone(target, batch, b))
    assert out.spec_stats.acceptance_rate < 0.3, "the bad draft is bad: long runs of rejections were seen"


@pytest.mark.parametrize("source", ["lookup", "hybrid"])
@pytest.mark.parametrize("lengths", [(25,), (25, 11, 18)], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", FAMILIES)
def test_copies_from_the_text_are_judged_as_drafts_are(name, lengths, source):
    target, good, _ = pair(name)
    batch = prompts(list(lengths), seed=3, vocab=9)  # much of it stands there again and again
    options = {"max_new_tokens": 20, "num_assistant_tokens": 4, "pad_token_id": 0, "spec_source": source}
    options["sequence_bias"] = [[[i], 25.0] for i in range(2, 7)]
    out = spec(target, good if source == "hybrid" else None, **batch, **options)
    for b in range(len(lengths)):
        bias = {"sequence_bias": options["sequence_bias"]}
        assert torch.equal(out.sequences[b, batch["input_ids"].shape[1] :], alone(target, batch, b, **bias))
    copied = out.spec_stats.by_source["lookup"]
    assert 0 < copied.accepted < copied.drafted, "states went back, and on"


@pytest.mark.parametrize("name", FAMILIES)
def test_an_exact_copy_is_accepted_in_every_round(name):
    target = pair(name)[0]
    out = spec(target, noisy_copy(target, noise=0.0), **prompts([3, 11, 6]), max_new_tokens=20, pad_token_id=0)
    assert out.spec_stats.acceptance_rate == 1.0


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2"])
def test_what_is_read_again_stays_short(name, monkeypatch):
    """Rejections in a row: the text that is re-read in front of each block is bounded."""
    target, _, bad = pair(name)
    read = []
    stock = target.forward

    def watch(*args, **kwargs):
        read.append(kwargs["input_ids"].shape[1])
        return stock(*args, **kwargs)

    monkeypatch.setattr(target, "forward", watch)
    monkeypatch.setattr(scoring, "REREAD", 5)
    batch = prompts([6])
    out = spec(target, bad, **batch, max_new_tokens=40, num_assistant_tokens=3, pad_token_id=0)
    assert max(read[1:]) <= 5 + 3 + 1
    monkeypatch.undo()
    ids = target.generate(**batch, do_sample=False, max_new_tokens=40, pad_token_id=0)
    assert torch.equal(out.sequences, ids)


@pytest.mark.parametrize("name", ["qwen3_next", "lfm2", "falcon_h1"])
@pytest.mark.parametrize("first, second", [("plain", "ours"), ("ours", "plain"), ("ours", "ours")])
def test_turns(name, first, second):
    """One row: a state says nothing about the columns of others."""
    target, good, _ = pair(name)
    batch = prompts([7])

    def turn(how, ids, **kwargs):
        options = {"do_sample": False, "max_new_tokens": 9, "pad_token_id": 0, "return_dict_in_generate": True}
        mask = torch.ones_like(ids)
        if how == "plain":
            return target.generate(ids, attention_mask=mask, **options, **kwargs)
        return spec(target, good, input_ids=ids, attention_mask=mask, **{**options, "max_new_tokens": 9}, **kwargs)

    one = turn(first, batch["input_ids"])
    text = torch.cat([one.sequences, torch.tensor([[5, 9, 11]])], dim=1)
    two = turn(second, text, **{CACHE_NAME: one[CACHE_NAME]})
    assert torch.equal(two.sequences, turn("plain", text).sequences)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_recurrent_draft_for_a_transformer_and_the_reverse(name):
    recurrent, llama = pair(name)[0], build("llama")
    batch = prompts([3, 11, 6])
    for target, draft in ((llama, recurrent), (recurrent, llama)):
        out = spec(target, draft, **batch, max_new_tokens=12, pad_token_id=0)
        for b in range(3):
            ids = alone(target, batch, b)[:12]
            assert torch.equal(out.sequences[b, 11:], ids)


@pytest.mark.parametrize("name", ["qwen3_next", "falcon_h1", "mamba2"])
def test_coupled_samples_depend_on_the_seed_alone(name):
    target, good, bad = pair(name)
    batch = prompts([3, 11, 6])

    def run(draft, k):
        generator = torch.Generator().manual_seed(3)
        kwargs = {"do_sample": True, "generator": generator, "num_assistant_tokens": k, "strategy": "coupled"}
        return spec(target, draft, **batch, max_new_tokens=15, pad_token_id=0, **kwargs).sequences

    wanted = run(good, 1)
    for draft, k in ((good, 5), (bad, 3), (bad, 8)):
        assert torch.equal(run(draft, k), wanted)


@pytest.mark.parametrize("name", ["qwen3_next", "mamba2"])
def test_scores_hidden_states_and_a_stop_in_the_middle_of_a_block(name):
    target, good, _ = pair(name)
    batch = prompts([6])
    kwargs = {"output_scores": True, "output_hidden_states": True, "return_dict_in_generate": True, "pad_token_id": 0}
    plain = target.generate(**batch, do_sample=False, max_new_tokens=20, **kwargs)
    end = int(plain.sequences[0, 6 + 8])
    plain = target.generate(**batch, do_sample=False, max_new_tokens=20, eos_token_id=end, **kwargs)
    ours = spec(target, good, **batch, max_new_tokens=20, num_assistant_tokens=6, eos_token_id=end, **kwargs)
    assert torch.equal(plain.sequences, ours.sequences)
    torch.testing.assert_close(torch.stack(ours.scores), torch.stack(plain.scores), atol=1e-3, rtol=0)
    for got, wanted in zip(ours.hidden_states[1:], plain.hidden_states[1:], strict=True):
        for x, y in zip(got, wanted, strict=True):
            torch.testing.assert_close(x, y, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", ["mamba", "jamba"])
def test_layers_that_start_anew_in_every_block_are_refused(name):
    target = build(name)
    with pytest.raises(ValueError, match=r"cannot check several tokens at once.*Decode without spec_strategy"):
        spec(target, noisy_copy(target), **prompts([5]), max_new_tokens=4, pad_token_id=0)
