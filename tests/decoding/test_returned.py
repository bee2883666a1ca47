"""What a call returns beside ids: scores, logits, hidden states, attentions, the output's class, step by step as plain.

Of a batch, every row is compared with the row alone: at its padding keys attentions are zero, and behind its end
everything is.
"""

import itertools

import pytest
import torch
import transformers
from families import WINDOW, build
from toys import (
    CACHE_NAME,
    EOS,
    batch_of,
    contrary,
    noisy,
    plain,
    prompts,
    read_into_cache,
    row_alone,
    seeded,
    spec,
    text,
    tiny,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from hf_specgen import SpecUnsupportedError

NEW = 11
RAGGED = (3, 11, 6)
EVERYTHING = dict.fromkeys(("output_scores", "output_logits", "output_hidden_states", "output_attentions"), True)
NAMES = ("scores", "logits", "hidden_states", "attentions")
PORTABLE = {"llama", "gemma2", "gpt2"}
EAGER = ["llama", "mistral", "gemma2", "gemma3_text", "qwen2_sliding", "gpt_oss", "llama4_text", "gpt2", "bloom", "opt"]
EAGER = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in EAGER]
DRAFTS = {"exact": lambda t: noisy(t, 0), "noisy": noisy, "contrary": contrary}


ODD = {
    "trocr": (  # counts columns, so that rows of a batch are read apart
        "TrOCRConfig",
        {"d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 64},
    ),
    "lfm2": (  # only one layer attends
        "Lfm2Config",
        {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8},
    ),
    "gemma3n": (  # the last layers attend to earlier ones' keys; hidden states have a dimension more, before the rows
        "Gemma3nTextConfig",
        {
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": 64,
            "num_kv_shared_layers": 2,
            "num_hidden_layers": 6,
            "head_dim": 8,
            "laurel_rank": 4,
            "altup_num_inputs": 2,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "activation_sparsity_pattern": [0.0] * 6,
        },
    ),
}


def eager(name: str):
    if name not in ODD:
        return build(name, attn_implementation="eager")
    config, sizes = ODD[name]
    options = {"eos_token_id": None, "tie_word_embeddings": False, "attn_implementation": "eager"}
    return tiny(getattr(transformers, config), scale=3.0, **options | sizes)


def plainly(target, new: int = NEW, **kwargs):
    options = {"do_sample": False, "return_dict_in_generate": True} | EVERYTHING
    return plain(target, max_new_tokens=new, **options | kwargs)


def drafted(target, draft, new: int = NEW, **kwargs):
    return spec(target, draft, max_new_tokens=new, **{"num_assistant_tokens": 4} | EVERYTHING | kwargs)


def flat(step):
    """The tensors of one step: one per layer, or the step itself."""
    return [step] if isinstance(step, torch.Tensor) else list(step)


def assert_close(got, wanted, where: str):
    assert got.shape == wanted.shape, where
    assert ((got - wanted).abs().max() / wanted.std().clamp(min=1e-6)).item() < 1e-3, where


def assert_same_outputs(got, wanted, names=NAMES):
    """Same structure, and values to 1e-3 of their spread."""
    assert got.sequences.tolist() == wanted.sequences.tolist()
    for name in names:
        ours, theirs = getattr(got, name), getattr(wanted, name)
        assert type(ours) is type(theirs) is tuple and len(ours) == len(theirs), name
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert type(a) is type(b) and len(a) == len(b), name
            for layer, (x, y) in enumerate(zip(flat(a), flat(b), strict=True)):
                assert_close(x, y, f"{name}, step {step}, layer {layer}")


def assert_row(out, b: int, alone, length: int, columns: int, names=NAMES):
    """Row b of a batch holds what the row alone gives, right-aligned at its padding, and zeros behind its end."""
    new = alone.sequences.shape[1] - length
    assert out.sequences[b, columns : columns + new].tolist() == alone.sequences[0, length:].tolist()
    for name in names:
        for step, layers in enumerate(getattr(out, name)):
            for layer, x in enumerate(flat(layers)):
                where = f"row {b}, {name}, step {step}, layer {layer}"
                if step >= new:
                    assert not x[b].any(), where
                    continue
                got, wanted = x[b], flat(getattr(alone, name)[step])[layer][0]
                if name == "attentions":
                    keys = wanted.shape[-1]
                    assert not got[:, -wanted.shape[1] :, :-keys].any(), where  # the rest of the step's keys is padding
                    got = got[:, -wanted.shape[1] :, -keys:]
                elif name == "hidden_states":
                    got = got[-wanted.shape[0] :]
                assert_close(got, wanted, where)


# ---- one row -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, kind", [*itertools.product(["llama", "gemma2"], DRAFTS), ("gpt_oss", "noisy")])
def test_every_output_of_one_row_is_plains(name, kind):
    target = eager(name)
    batch = batch_of([text(11)])
    wanted = plainly(target, **batch)
    got = drafted(target, DRAFTS[kind](target), **batch)
    assert_same_outputs(got, wanted)
    assert len(got.hidden_states) == len(got.attentions) == NEW
    accepted = {"exact": got.spec_stats.drafted, "contrary": 0}.get(kind)
    assert got.spec_stats.accepted == accepted if kind != "noisy" else got.spec_stats.accepted > 0


def test_a_convolutions_hidden_states_are_plains():
    """Its states go back to where a block began, and what was accepted is read again."""
    target, batch = eager("lfm2"), batch_of([text(n) for n in RAGGED])
    for draft in (noisy(target, 0.2), contrary(target)):
        out = drafted(target, draft, **batch, output_attentions=False)
        for b, length in enumerate(RAGGED):
            alone = plainly(target, **row_alone(batch, b), output_attentions=False)
            assert_row(out, b, alone, length, max(RAGGED), NAMES[:3])


@pytest.mark.parametrize(
    "name, asked", [("lfm2", "attentions"), ("gemma3n", "attentions"), ("gemma3n", "hidden_states")]
)
def test_outputs_that_do_not_go_by_layer_and_row_are_refused(name, asked):
    target = eager(name)
    options = dict.fromkeys(EVERYTHING, False) | {f"output_{asked}": True}
    with pytest.raises(SpecUnsupportedError, match=f"output_{asked}: .*Drop it"):
        drafted(target, noisy(target), **prompts([5]), **options)
    options["return_dict_in_generate"] = False  # then it means nothing
    drafted(target, noisy(target), **prompts([5]), **options)


@pytest.mark.parametrize("new", [1, 2, 6])
def test_few_new_tokens(new):
    target = eager("gemma2")
    assert_same_outputs(
        drafted(target, noisy(target, 0), new, **prompts([WINDOW - 2])), plainly(target, new, **prompts([WINDOW - 2]))
    )


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_attentions_are_whatever_plain_gives(implementation):
    """sdpa computes none: plain gives an empty tuple per step."""
    target = build("llama", attn_implementation=implementation)
    got, wanted = drafted(target, noisy(target), **prompts([5])), plainly(target, **prompts([5]))
    assert_same_outputs(got, wanted)
    assert (got.attentions[-1] == ()) == (implementation == "sdpa")


@pytest.mark.parametrize("asked", [(), NAMES[:1], NAMES[1:2], NAMES[2:3], NAMES[3:]], ids=str)
def test_only_what_was_asked_for(asked):
    target = eager("llama")
    options = {f"output_{name}": name in asked for name in NAMES}
    got = drafted(target, noisy(target), **prompts([5]), **options)
    assert_same_outputs(got, plainly(target, **prompts([5]), **options), asked)
    assert [name for name in NAMES if getattr(got, name) is not None] == list(asked)


def test_without_the_dict_outputs_are_not_kept():
    target = eager("llama")
    batch = prompts([5, 8])
    out = drafted(target, noisy(target), **batch, return_dict_in_generate=False)
    assert torch.equal(out, plain(target, **batch, max_new_tokens=NEW, do_sample=False))


@pytest.mark.parity
def test_the_output_is_transformers_own_class_with_two_fields_more():
    target = eager("llama")
    got, wanted = drafted(target, noisy(target), **prompts([5])), plainly(target, **prompts([5]))
    assert isinstance(got, GenerateDecoderOnlyOutput) and type(wanted) is GenerateDecoderOnlyOutput
    assert set(got.keys()) == set(wanted.keys()) | {"spec_stats", "draft_mask"}
    assert got[0] is got.sequences and got[CACHE_NAME].get_seq_length() == wanted[CACHE_NAME].get_seq_length()


# ---- batches -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", [*EAGER, "trocr"])
def test_every_row_of_a_batch_has_the_outputs_of_the_row_alone(name, side):
    target = eager(name)
    batch = batch_of([text(n) for n in RAGGED], side)
    out = drafted(target, noisy(target, 0.1), **batch)
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted
    for b, length in enumerate(RAGGED):
        assert_row(out, b, plainly(target, **row_alone(batch, b)), length, max(RAGGED))


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_a_left_padded_batch_has_plains_outputs_to_the_last_number(name):
    """Nobody ends early: also the numbers at padding are those of plain decoding, from the same forward."""
    target = eager(name)
    batch = batch_of([text(n) for n in RAGGED])
    assert_same_outputs(drafted(target, noisy(target, 0.1), **batch), plainly(target, **batch))


@pytest.mark.parametrize("name", ["llama", "gemma2", "trocr"])
def test_everything_is_zero_behind_a_rows_end(name):
    free = eager(name)
    batch = batch_of([text(n) for n in RAGGED])
    said = [plain(free, **row_alone(batch, b), max_new_tokens=NEW, do_sample=False)[0, -NEW:] for b in range(3)]
    first, second = ends = [said[0][3].item(), said[2][8].item()]
    out = drafted(free, noisy(free, 0.1), **batch, eos_token_id=ends)
    lengths = [next((i + 1 for i, t in enumerate(row.tolist()) if t in ends), NEW) for row in said]
    assert len(set(lengths)) > 1 and first != second
    assert [row.emitted for row in out.spec_stats.rows] == lengths
    for b, length in enumerate(RAGGED):
        assert_row(out, b, plainly(free, **row_alone(batch, b), eos_token_id=ends), length, max(RAGGED))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_hole_in_the_mask_keeps_its_columns(name):
    target = eager(name)
    batch = prompts([9, 12, 9])
    batch["attention_mask"][1, 4:7] = 0
    batch["attention_mask"][2, -3] = 0
    got, wanted = drafted(target, noisy(target, 0.1), **batch), plainly(target, **batch)
    assert_same_outputs(got, wanted)
    assert not got.attentions[-1][0][1, ..., 4:7].any() and got.attentions[-1][0][0, ..., 4:7].all()


def test_several_sequences_per_prompt():
    target = eager("gemma2")
    batch = batch_of([text(n) for n in RAGGED])
    options = {"do_sample": True, "top_k": 1, "num_return_sequences": 2, "output_scores": False}
    got = drafted(target, noisy(target, 0.1), **batch, **options)
    assert_same_outputs(got, plainly(target, **batch, **options), NAMES[1:])


# ---- scores --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("normalize", [False, True])
def test_transition_scores_are_plains(normalize):
    target = build("llama")
    batch = batch_of([text(n) for n in RAGGED])
    options = batch | {"temperature": 0.7, "do_sample": True, "top_k": 1} | {"repetition_penalty": 1.3}
    scores = [
        target.compute_transition_scores(out.sequences, out.scores, normalize_logits=normalize)
        for out in (drafted(target, noisy(target), **options), plainly(target, **options))
    ]
    assert scores[0].shape == (3, NEW)
    assert torch.allclose(*scores, atol=1e-3)


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_sampled_outputs_are_those_of_the_text(strategy):
    """Teacher forcing is the oracle: the model reads the finished text in one forward."""
    target = eager("llama")
    batch = batch_of([text(n) for n in RAGGED])
    out = drafted(target, noisy(target, 0.1), strategy=strategy, **batch, **seeded(), temperature=0.5, top_k=0)
    assert 0 < out.spec_stats.accepted < out.spec_stats.drafted
    transitions = target.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    for b, length in enumerate(RAGGED):
        whole = out.sequences[b : b + 1, max(RAGGED) - length :]
        with torch.no_grad():
            read = target(whole, output_hidden_states=True, output_attentions=True)
        for step in range(NEW):
            end = length + step
            assert_close(out.logits[step][b], read.logits[0, end - 1], "logits")
            assert_close(out.scores[step][b], read.logits[0, end - 1] / 0.5, "scores")
            law = (read.logits[0, end - 1] / 0.5).log_softmax(-1)
            assert abs(transitions[b, step] - law[whole[0, end]]) < 1e-3
            for layer, x in enumerate(out.hidden_states[step]):
                assert_close(x[b, -1], read.hidden_states[layer][0, end - 1], "hidden states")
            for layer, x in enumerate(out.attentions[step]):
                assert_close(x[b, :, -1, -end:], read.attentions[layer][0, :, end - 1, :end], "attentions")


def test_the_coupled_text_does_not_depend_on_what_is_returned():
    target = eager("gemma2")
    batch = batch_of([text(n) for n in RAGGED])
    nothing = dict.fromkeys(EVERYTHING, False)
    wanted = drafted(target, None, strategy="coupled", **batch, **seeded(), **nothing)
    for draft in (noisy(target), contrary(target), None):
        got = drafted(target, draft, strategy="coupled", **batch, **seeded())
        assert got.sequences.tolist() == wanted.sequences.tolist()


# ---- other prefills ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("chunk", [1, 4, 64])
def test_a_prefill_in_chunks_gives_the_last_chunks_states_as_plain(chunk):
    target = eager("gemma3_text")
    batch = batch_of([text(n) for n in RAGGED])
    options = batch | {"prefill_chunk_size": chunk}
    got, wanted = drafted(target, noisy(target, 0.1), **options), plainly(target, **options)
    assert_same_outputs(got, wanted)
    assert got.hidden_states[0][0].shape[1] == min((max(RAGGED) - 1) % chunk + 1, max(RAGGED))


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_turn_that_goes_on_from_a_cache_gives_the_new_columns_states_as_plain(name):
    target = eager(name)
    batch = batch_of([text(n) for n in RAGGED])
    first = {key: x[:, :-3] for key, x in batch.items()}
    first["attention_mask"][0, -1] = 1  # else nothing of the shortest row is left
    batch["attention_mask"][0, -4] = 1
    got, wanted = (
        call(**batch, **read_into_cache(target, first))
        for call in (lambda **kw: drafted(target, noisy(target, 0.1), **kw), lambda **kw: plainly(target, **kw))
    )
    assert_same_outputs(got, wanted)
    assert got.hidden_states[0][0].shape[1] == 3


def test_rows_that_end_at_once_have_one_step():
    target = eager("llama")
    batch = batch_of([text(5), text(5)])
    first = plain(target, **batch, max_new_tokens=1, do_sample=False)[0, -1].item()
    out = drafted(target, noisy(target), **batch, eos_token_id=[first, EOS])
    assert [len(getattr(out, name)) for name in NAMES] == [1] * 4
    assert out.hidden_states[0][0].shape[1] == 5
