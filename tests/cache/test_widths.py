"""Forwards are padded to numbers of positions that a CPU is quick at; nothing else may come of it."""

import copy

import pytest
import torch
from families import build, draft_of
from toys import batch_of, plain, prompts, spec, text, tiny

from hf_specgen.cache import widths
from hf_specgen.cache.widths import SLOW, fast_width, slow_counts


@pytest.fixture(autouse=True)
def toys_are_padded(monkeypatch):
    monkeypatch.setattr(widths, "LEAST", 0)


ALWAYS = tuple(range(1, 200, 2))  # every other number of positions is slow: something is padded in nearly every forward


@pytest.mark.parametrize(
    "rows, width, expected",
    [
        *[(1, 1, 1), (1, 2, 4), (1, 3, 4), (1, 4, 4), (1, 5, 5), (1, 6, 8), (1, 7, 8), (1, 9, 9)],
        *[(2, 1, 2), (2, 2, 2), (2, 3, 4), (3, 1, 3), (6, 1, 2), (7, 1, 2), (8, 1, 1)],
    ],
)
def test_the_next_quick_width_in_float32(rows, width, expected):
    found = fast_width(rows, width, SLOW[torch.float32])
    assert found == expected
    assert found >= width and rows * found not in SLOW[torch.float32]


def test_half_precision_avoids_a_single_position_only():
    assert [fast_width(1, w, SLOW[torch.bfloat16]) for w in (1, 2, 3)] == [2, 2, 3]
    assert fast_width(2, 1, SLOW[torch.bfloat16]) == 1


def test_no_model_is_padded_that_could_suffer(monkeypatch):
    model = tiny()
    assert slow_counts(model) == SLOW[torch.float32]
    assert slow_counts(copy.deepcopy(model).bfloat16()) == SLOW[torch.bfloat16]
    assert slow_counts(copy.deepcopy(model).half()) == ()
    assert slow_counts(model.to("meta")) == (), "not on a CPU"
    monkeypatch.setattr(widths, "LEAST", 256)
    assert slow_counts(tiny()) == (), "too small"
    monkeypatch.setattr(widths, "LEAST", 0)
    quantized = tiny()
    quantized.is_quantized = True
    assert slow_counts(quantized) == ()
    for name in ("mixtral", "gpt_oss", "deepseek_v3", "bloom"):
        assert slow_counts(build(name)) == (), name


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt2", "bloom", "deepseek_v3"])
@pytest.mark.parametrize("lengths", [[7], [5, 9, 2]])
def test_padding_changes_nothing(name, lengths, monkeypatch):
    """Ids, scores and hidden states are plain decoding's, whatever is padded; of models that have no place for padding
    too."""
    model, draft = build(name), draft_of(name)
    batch = batch_of([text(n, seed=n) for n in lengths])
    options = {"return_dict_in_generate": True, "output_scores": True, "output_hidden_states": True}
    wanted = plain(model, **batch, max_new_tokens=20, **options)
    positions = []
    monkeypatch.setattr(widths, "SLOW", {torch.float32: ALWAYS})
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: positions.append(kwargs.get("input_ids", args[0] if args else None).numel()),
        with_kwargs=True,
    )
    got = spec(model, draft, **batch, max_new_tokens=20, **options)
    handle.remove()
    assert torch.equal(got.sequences, wanted.sequences)
    for mine, theirs in zip(got.scores, wanted.scores, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-4)
    for mine, theirs in zip(got.hidden_states[1:], wanted.hidden_states[1:], strict=True):
        for layer, wanted_layer in zip(mine, theirs, strict=True):
            torch.testing.assert_close(layer, wanted_layer, atol=1e-3, rtol=1e-4)
    if name in ("llama", "gemma3_text") and len(lengths) == 1:
        assert all(n not in ALWAYS for n in positions[1:]), "the prompt is read as it is, every block is padded"


def test_the_end_of_the_table_of_positions_is_reached(monkeypatch):
    monkeypatch.setattr(widths, "SLOW", {torch.float32: ALWAYS})
    model = build("gpt2")
    room = model.config.n_positions
    batch = prompts([room - 12])
    wanted = plain(model, **batch, max_new_tokens=12)
    assert torch.equal(spec(model, draft_of("gpt2"), **batch, max_new_tokens=12).sequences, wanted)


def test_the_head_is_padded_too(monkeypatch):
    """A draft that catches up reads two positions and wants the logits of one."""
    model, draft = build("llama"), copy.deepcopy(draft_of("llama"))  # the toys are shared by all tests
    monkeypatch.setattr(widths, "SLOW", {torch.float32: (1,)})
    seen = []
    draft.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel()))
    wanted = plain(model, **batch_of([text(7)]), max_new_tokens=20)
    assert torch.equal(spec(model, draft, **batch_of([text(7)]), max_new_tokens=20).sequences, wanted)
    assert len(seen) > 4 and 1 not in seen[1:], "after the prompt"
