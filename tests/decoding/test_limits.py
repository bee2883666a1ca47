"""Where positions, masks and proposals reach their limits: exact, or refused by name before the first token."""

import pytest
import torch
import transformers as tf
from toys import noisy, plain, prompts, row_alone, spec, tiny

from hf_specgen import Drafter, Proposal, SpecUnsupportedError

SCALED = {
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "original_max_position_embeddings": 24,
    },
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 24},
}


def scaled(kind: str):
    size = 512 if kind == "longrope" else 24
    return tiny(eos_token_id=None, rope_parameters=dict(SCALED[kind]), max_position_embeddings=size)


@pytest.mark.parametrize("kind", SCALED)
def test_rotary_scaling_that_turns_in_mid_text_is_refused(kind):
    target = scaled(kind)
    with pytest.raises(SpecUnsupportedError, match=f'"{kind}".*24'):
        spec(target, noisy(target), **prompts([9]), max_new_tokens=40)


@pytest.mark.parametrize("kind", SCALED)
def test_rotary_scaling_is_exact_below_its_turn(kind):
    target = scaled(kind)
    batch = prompts([9])
    wanted = plain(target, **batch, max_new_tokens=15, do_sample=False)
    assert torch.equal(spec(target, noisy(target), **batch, max_new_tokens=15).sequences, wanted)


def test_rotary_scaling_is_exact_past_its_turn():
    target = scaled("longrope")
    batch = prompts([30])
    wanted = plain(target, **batch, max_new_tokens=30, do_sample=False)
    assert torch.equal(spec(target, noisy(target), **batch, max_new_tokens=30).sequences, wanted)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("lengths", [(3, 9, 3), (6, 6)], ids=["ragged", "equal"])
def test_rows_are_read_apart_where_a_model_counts_positions_by_columns(lengths, side):
    """No position_ids: plain decoding of a padded batch is wrong, so the oracle is each row alone."""
    sizes = {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64}
    target = tiny(tf.TrOCRConfig, scale=3.0, eos_token_id=None, tie_word_embeddings=False, **sizes)
    batch = prompts(lengths, side=side)
    out = spec(target, noisy(target), **batch, max_new_tokens=10)
    for b, got in enumerate(out.sequences[:, -10:].tolist()):
        assert got == plain(target, **row_alone(batch, b), max_new_tokens=10, do_sample=False)[0, -10:].tolist()
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted


def test_a_block_never_reaches_past_the_targets_table_of_positions():
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "eos_token_id": None}
    target = tiny(tf.GPT2Config, scale=3.0, max_position_embeddings=24, **sizes)
    draft = tiny(tf.GPT2Config, scale=3.0, max_position_embeddings=64, **sizes)
    criteria = [lambda ids, scores: torch.tensor([ids.shape[1] >= 22])]
    options = {"max_new_tokens": 100, "stopping_criteria": tf.StoppingCriteriaList(criteria)}
    wanted = plain(target, **prompts([5]), do_sample=False, **options)
    out = spec(target, draft, **prompts([5]), num_assistant_tokens=9, **options)
    assert torch.equal(out.sequences, wanted)


def test_a_float_mask_is_a_mask():
    target = tiny()
    batch = prompts([4, 9, 6])
    wanted = spec(target, noisy(target), **batch, max_new_tokens=12).sequences
    batch["attention_mask"] = batch["attention_mask"].float()
    assert torch.equal(spec(target, noisy(target), **batch, max_new_tokens=12).sequences, wanted)


def test_a_mask_of_another_length_is_refused():
    target = tiny()
    batch = prompts([9]) | {"attention_mask": torch.ones(1, 12, dtype=torch.long)}
    batch["attention_mask"][0, 0] = 0
    with pytest.raises(SpecUnsupportedError, match=r"\(1, 12\).*\(1, 9\)"):
        spec(target, noisy(target), **batch, max_new_tokens=5)


def test_an_astronomical_max_new_tokens_allocates_nothing_up_front():
    target = tiny()
    criteria = tf.StoppingCriteriaList([lambda ids, scores: torch.tensor([ids.shape[1] >= 30])])
    options = {"max_new_tokens": 10**10, "stopping_criteria": criteria, "eos_token_id": None, "pad_token_id": 0}
    wanted = plain(target, **prompts([5]), do_sample=False, **options)
    assert torch.equal(spec(target, noisy(target), **prompts([5]), **options).sequences, wanted)


class Says(Drafter):
    """Proposes what it is told."""

    def __init__(self, proposal):
        self.proposal = proposal

    def propose(self, rows, widths, verifier, noise):
        return self.proposal


@pytest.mark.parametrize(
    ("tokens", "counts", "complaint"),
    [([[99]], [1], "Says proposed the id 99"), ([[-1]], [1], "the id -1"), ([[3]], [2], "a count of 2")],
)
def test_a_wild_proposal_is_named_with_its_drafter(tokens, counts, complaint):
    with pytest.raises(ValueError, match=complaint):
        spec(tiny(), Says(Proposal(torch.tensor(tokens), torch.tensor(counts))), **prompts([5]), max_new_tokens=9)


def test_a_proposal_for_too_many_rows_is_named():
    proposal = Proposal(torch.zeros(2, 1, dtype=torch.long), torch.ones(2, dtype=torch.long))
    with pytest.raises(ValueError, match="Says proposed tokens of shape"):
        spec(tiny(), Says(proposal), **prompts([5]), max_new_tokens=9)


def test_a_drafter_that_has_nothing_to_say_is_plain_decoding():
    target = tiny()
    wanted = plain(target, **prompts([5]), max_new_tokens=9, do_sample=False)
    assert torch.equal(spec(target, Says(None), **prompts([5]), max_new_tokens=9).sequences, wanted)


def test_a_drafter_class_is_not_a_drafter():
    with pytest.raises(SpecUnsupportedError, match=r"the class Says.*instance"):
        spec(tiny(), Says, **prompts([5]), max_new_tokens=9)


def test_switching_the_strategy_off_needs_no_other_argument_to_go():
    target = tiny()
    wanted = plain(target, **prompts([5]), max_new_tokens=9, do_sample=False)
    out = spec(target, None, None, spec_fallback="plain", **prompts([5]), max_new_tokens=9)
    assert torch.equal(out.sequences, wanted)
    with pytest.raises(SpecUnsupportedError, match="generator= needs a spec_strategy"):
        spec(target, None, None, generator=torch.Generator(), **prompts([5]), max_new_tokens=9)
