"""Turns: a call goes on from the cache of an earlier one, plain's or ours, and says what it says without that cache.

The oracle is plain `generate` of each row's whole text, alone and without a cache.
"""

import itertools

import pytest
import torch
from families import WINDOW, build, draft_of
from toys import (
    CACHE_NAME,
    Scripted,
    assert_as_alone,
    batch_of,
    contrary,
    new_tokens,
    noisy,
    prompts,
    read_into_cache,
    said,
    seeded,
    text,
    tiny,
)
from transformers import DynamicCache, Gemma3TextConfig

from hf_specgen import SpecUnsupportedError

NEW = 12
RAGGED = (3, 11, 6)
PORTABLE = {"llama", "gemma3_text", "bloom"}
FAMILIES = ["llama", "gpt2", "bloom", "mistral", "gemma3_text", "llama4_text"]
BY_FAMILY = [pytest.param(n, marks=pytest.mark.parity) if n in PORTABLE else n for n in FAMILIES]


def cache_of(out) -> dict:
    return {CACHE_NAME: out[CACHE_NAME]}


def next_turn(out, batch, user: list[list[int]], pad: int = 0, eos=None):
    """The whole text of the next turn: what was said (padding behind an early end stays where it is), then the user."""
    columns = batch["input_ids"].shape[1]
    lengths = [len(row) for row in new_tokens(out.sequences, columns, pad, eos)]
    spoken = torch.tensor([[i < n for i in range(out.sequences.shape[1] - columns)] for n in lengths]).long()
    more = batch_of(user)
    return {
        "input_ids": torch.cat([out.sequences, more["input_ids"]], 1),
        "attention_mask": torch.cat([batch["attention_mask"], spoken, more["attention_mask"]], 1),
    }


def only_new(turn, cache):
    """The same turn with the ids that the cache has not read, and the whole mask."""
    return turn | {"input_ids": turn["input_ids"][:, cache.get_seq_length() :]}


def contents(cache):
    """Everything a cache holds, copied."""
    return [
        {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in vars(layer).items()} for layer in cache.layers
    ]


def assert_untouched(cache, before):
    assert len(cache.layers) == len(before)
    for layer, attributes in zip(cache.layers, before, strict=True):
        assert vars(layer).keys() == attributes.keys()
        for name, value in attributes.items():
            now = getattr(layer, name)
            assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value, name


# ---- who goes on from whom -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("whose, ids", [("plain", "only new"), ("ours", "all")])
@pytest.mark.parametrize("lengths", [(9,), RAGGED], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", BY_FAMILY)
def test_our_turn_goes_on_from_a_cache(name, lengths, whose, ids):
    target, draft = build(name), draft_of(name)
    batch = batch_of([text(n) for n in lengths])
    first = said(whose, target, draft, **batch)
    cache = first[CACHE_NAME]
    turn = next_turn(first, batch, [text(4, seed=b) for b in range(len(lengths))])
    given = only_new(turn, cache) if ids == "only new" else turn
    out = said("ours", target, draft, **given, **cache_of(first), output_logits=True)
    assert_as_alone(target, out, turn)
    assert out.sequences[:, : given["input_ids"].shape[1]].tolist() == given["input_ids"].tolist()
    assert out[CACHE_NAME] is cache and cache.get_seq_length() == turn["input_ids"].shape[1] + NEW - 1
    assert out.spec_stats.drafted > 0


@pytest.mark.parametrize("lengths, ids", [((9,), "all"), (RAGGED, "only new")], ids=["alone", "ragged"])
@pytest.mark.parametrize("name", BY_FAMILY)
def test_plains_turn_goes_on_from_our_cache(name, lengths, ids):
    """And ours again from that: what plain adds to our cache is as good as its own."""
    target, draft = build(name), draft_of(name)
    batch = batch_of([text(n) for n in lengths])
    first = said("ours", target, draft, **batch)
    turn = next_turn(first, batch, [text(4, seed=b) for b in range(len(lengths))])
    given = only_new(turn, first[CACHE_NAME]) if ids == "only new" else turn
    second = said("plain", target, **given, **cache_of(first))
    wanted = said("plain", target, **turn)
    assert second.sequences[:, -NEW:].tolist() == wanted.sequences[:, -NEW:].tolist()
    third = next_turn(wanted, turn, [text(2, seed=b) for b in range(len(lengths))])
    assert_as_alone(target, said("ours", target, draft, **third, **cache_of(second)), third)


@pytest.mark.parametrize("draft", [lambda t: noisy(t, 0), contrary, None], ids=["exact", "contrary", "none"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
def test_any_draft_over_five_turns(name, draft):
    target = build(name)
    draft = draft and draft(target)
    turn, cache = batch_of([text(7)]), {CACHE_NAME: DynamicCache(config=target.config)}
    for n in range(5):
        out = said("ours", target, draft, strategy="coupled", **turn, **cache)
        assert_as_alone(target, out, turn)
        turn = next_turn(out, turn, [text(1 + n)])
    assert turn["input_ids"].shape[1] > 5 * WINDOW


def test_the_last_token_alone_is_enough_to_go_on():
    """Nothing of the user's: the answer is continued."""
    target, draft = build("gemma2"), draft_of("gemma2")
    batch = batch_of([text(n) for n in RAGGED])
    first = said("plain", target, **batch)
    turn = {
        "input_ids": first.sequences,
        "attention_mask": torch.cat([batch["attention_mask"], torch.ones(3, NEW, dtype=torch.long)], 1),
    }
    assert_as_alone(target, said("ours", target, draft, **turn, **cache_of(first), output_logits=True), turn)


@pytest.mark.parametrize("mask", [True, False], ids=["mask", "no mask"])
@pytest.mark.parametrize("held", [1, 6, 9])
def test_a_cache_may_have_read_any_beginning_and_all_of_the_text(held, mask):
    target, draft = build("llama"), draft_of("llama")
    turn = prompts([9])
    given = read_into_cache(target, {key: x[:, :held] for key, x in turn.items()})
    out = said("ours", target, draft, **turn if mask else {"input_ids": turn["input_ids"]}, **given, output_logits=True)
    assert_as_alone(target, out, turn)
    assert given[CACHE_NAME].get_seq_length() == 9 + NEW - 1


@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "bloom"])
def test_an_empty_cache_comes_back_filled(name, config):
    target, draft = build(name), draft_of(name)
    batch = batch_of([text(n) for n in RAGGED])
    cache = DynamicCache(config=target.config) if config else DynamicCache()
    first = said("ours", target, draft, **batch, **{CACHE_NAME: cache})
    assert first[CACHE_NAME] is cache and cache.get_seq_length() == 11 + NEW - 1
    turn = next_turn(first, batch, [text(4, seed=b) for b in range(3)])
    second = said("plain", target, **turn, **cache_of(first))
    assert second.sequences.tolist() == said("plain", target, **turn).sequences.tolist()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text", "bloom"])
def test_our_cache_holds_what_plains_holds(name):
    target, draft = build(name), draft_of(name)
    batch = batch_of([text(n) for n in RAGGED])
    ours, theirs = (said(who, target, draft, **batch)[CACHE_NAME] for who in ("ours", "plain"))
    held = torch.cat([batch["attention_mask"], torch.ones(3, NEW - 1, dtype=torch.long)], 1).bool()
    for a, b in zip(ours.layers, theirs.layers, strict=True):
        assert type(a) is type(b) and a.is_initialized
        assert a.get_seq_length() == b.get_seq_length()
        where = held[:, -b.keys.shape[2] :, None]
        for x, y in ((a.keys, b.keys), (a.values, b.values)):
            assert x.shape == y.shape and x.dtype == y.dtype
            assert ((x - y).transpose(1, 2).flatten(2) * where).abs().max() < 1e-4 * y.std()


# ---- rows that ended early: holes ----------------------------------------------------------------------------------
def turn_with_holes(target, draft, whose):
    """A first turn whose rows end at different times."""
    batch = batch_of([text(n) for n in RAGGED])
    free = said("plain", target, **batch).sequences[:, -NEW:].tolist()
    eos = next(t for t in free[0][2:5] if t not in free[1])
    first = said(whose, target, draft, **batch, eos_token_id=eos)
    turn = next_turn(first, batch, [text(4 + b) for b in range(3)], eos=eos)
    assert (turn["attention_mask"][0, 11:] == 0).any() and first.sequences.shape[1] == 11 + NEW
    return first, turn


@pytest.mark.parametrize("ids", ["all", "only new"])
@pytest.mark.parametrize("whose", ["plain", "ours"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_rows_that_ended_early_leave_holes(name, whose, ids):
    target, draft = build(name), draft_of(name)
    first, turn = turn_with_holes(target, draft, whose)
    given = only_new(turn, first[CACHE_NAME]) if ids == "only new" else turn
    out = said("ours", target, draft, **given, **cache_of(first), output_logits=True)
    assert_as_alone(target, out, turn)
    third = next_turn(out, given, [text(2)] * 3) if ids == "all" else None
    if third:
        last = said("ours", target, draft, **third, **cache_of(out))
        assert_as_alone(target, last, third)
        assert last.sequences[:, -NEW:].tolist() == said("plain", target, **third).sequences[:, -NEW:].tolist()


def test_holes_are_refused_with_sliding_windows_and_the_cache_stays():
    target, draft = build("mistral"), draft_of("mistral")
    first, turn = turn_with_holes(target, draft, "plain")
    before = contents(first[CACHE_NAME])
    with pytest.raises(SpecUnsupportedError, match=r"hole.*sliding windows"):
        said("ours", target, draft, **turn, **cache_of(first))
    assert_untouched(first[CACHE_NAME], before)


def test_padding_behind_a_cached_beginning_is_right_or_refused():
    """Right padding of the new turn: the cached columns cannot move along."""
    target, draft = build("llama"), draft_of("llama")
    old, new = prompts([6, 3]), prompts([4, 2], seed=5, side="right")
    turn = {key: torch.cat([old[key], new[key]], 1) for key in old}
    given = read_into_cache(target, old)
    before = contents(given[CACHE_NAME])
    try:
        out = said("ours", target, draft, **turn, **given)
    except SpecUnsupportedError:
        assert_untouched(given[CACHE_NAME], before)
    else:
        assert_as_alone(target, out, turn)


# ---- wrong caches, and what goes wrong on the way ------------------------------------------------------------------
LLAMA = {"eos_token_id": None}
WRONG = {
    "longer than the text": (lambda: tiny(**LLAMA), (12,), {}, "longer than the prompt"),
    "of two rows": (lambda: tiny(**LLAMA), (5, 5), {}, r"holds 2 row\(s\)"),
    "of more layers": (lambda: tiny(num_hidden_layers=4, **LLAMA), (5,), {}, "has 4 layers"),
    "of fewer layers": (lambda: tiny(num_hidden_layers=2, **LLAMA), (8,), {}, "layers"),
    "of other heads": (lambda: tiny(num_key_value_heads=4, **LLAMA), (5,), {}, "could not go on"),
    "of other widths": (lambda: tiny(head_dim=16, **LLAMA), (5,), {}, "could not go on"),
    "with nothing but embeddings": (
        lambda: tiny(**LLAMA),
        (5,),
        {"input_ids": None, "inputs_embeds": torch.zeros(1, 9, 32)},
        "no input_ids",
    ),
    "for stop strings without a tokenizer": (lambda: tiny(**LLAMA), (9,), {"stop_strings": ["x"]}, "tokenizer="),
    "with a generator too many": (lambda: tiny(**LLAMA), (9,), {"generator": [None, None]}, "list of 2"),
}


@pytest.mark.parametrize("whose, lengths, kwargs, complaint", WRONG.values(), ids=WRONG)
def test_a_cache_that_does_not_fit_is_refused_and_stays(whose, lengths, kwargs, complaint):
    target, draft = build("llama"), draft_of("llama")
    given = read_into_cache(whose(), prompts(lengths))
    before = contents(given[CACHE_NAME])
    with pytest.raises(SpecUnsupportedError, match=complaint):
        said("ours", target, draft, **prompts([9]) | given | kwargs)
    assert_untouched(given[CACHE_NAME], before)


def test_a_refusal_at_a_later_layer_leaves_the_earlier_ones():
    mixed = ["full_attention", "sliding_attention", "full_attention"]
    sizes = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, "layer_types": mixed}
    target = tiny(Gemma3TextConfig, eos_token_id=None, **sizes)
    given = read_into_cache(target, prompts([9]))
    before = contents(given[CACHE_NAME])
    with pytest.raises(SpecUnsupportedError, match="read the whole text"):
        said("ours", target, noisy(target), **prompts([9]), **given)
    assert_untouched(given[CACHE_NAME], before)


def fails(after: int, error=KeyError):
    """A criterion, processor or prefix function that raises at its n-th call."""
    calls = itertools.count()

    def function(ids, scores):
        if next(calls) >= after:
            raise error("on the way")
        return torch.zeros(len(ids), dtype=torch.bool) if not isinstance(scores, torch.Tensor) else scores

    return function


@pytest.mark.parametrize("what, error", [("stopping_criteria", KeyError), ("logits_processor", KeyboardInterrupt)])
@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("name, held", [("llama", 6), ("llama", 9), ("gemma2", 6)])
def test_an_error_on_the_way_puts_the_cache_back(name, held, after, what, error):
    target, draft = build(name), draft_of(name)
    given = read_into_cache(target, {key: x[:, :held] for key, x in prompts([9, 9]).items()})
    before = contents(given[CACHE_NAME])
    with pytest.raises(error):
        said("ours", target, draft, **prompts([9, 9]), **given, **{what: [fails(after, error)]})
    assert_untouched(given[CACHE_NAME], before)
    assert given[CACHE_NAME].get_seq_length() == held
    if held < 9:
        again = said("ours", target, draft, **prompts([9, 9]), **given)
        assert again.sequences.tolist() == said("plain", target, **prompts([9, 9])).sequences.tolist()


# ---- with everything else ------------------------------------------------------------------------------------------
def test_several_sequences_go_on_from_a_cache_of_as_many_rows():
    target, draft = build("llama"), draft_of("llama")
    turn = batch_of([text(n) for n in RAGGED])
    first = {key: x[:, :-2].repeat_interleave(2, 0) for key, x in turn.items()}
    options = {"num_return_sequences": 2, "do_sample": True, "top_k": 1}
    out = said("ours", target, draft, **turn, **options, **read_into_cache(target, first))
    wanted = said("plain", target, **turn, **options)
    assert out.sequences.tolist() == wanted.sequences.tolist()


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_rest_is_read_in_chunks(name, chunk):
    target, draft = build(name), draft_of(name)
    turn = batch_of([text(n) for n in (6, 14)])
    first, options = {key: x[:, :9] for key, x in turn.items()}, turn | {"prefill_chunk_size": chunk}
    wanted = said("plain", target, **options, **read_into_cache(target, first)).sequences
    if not torch.equal(wanted, said("plain", target, **turn).sequences):
        with pytest.raises(SpecUnsupportedError, match="prefill_chunk_size with a filled cache reads the text again"):
            said("ours", target, draft, **options, **read_into_cache(target, first))
        return
    out = said("ours", target, draft, **options, **read_into_cache(target, first), output_logits=True)
    assert_as_alone(target, out, turn)


@pytest.mark.parametrize("ids", ["all", "only new"])
@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_the_coupled_text_does_not_depend_on_the_cache(name, ids):
    target = build(name)
    turn = batch_of([text(n) for n in RAGGED])
    first = {key: x[:, :8] for key, x in turn.items()}
    first["attention_mask"] = torch.cat([turn["attention_mask"][:, :8]])
    first["attention_mask"][0, -1] = turn["attention_mask"][0, 7] = 1
    wanted = said("ours", target, None, strategy="coupled", **turn, **seeded()).sequences[:, -NEW:]
    for draft, k in ((draft_of(name), 4), (draft_of(name), 2), (contrary(target), 3), (None, 1)):
        given = read_into_cache(target, first)
        call = only_new(turn, given[CACHE_NAME]) if ids == "only new" else turn
        out = said("ours", target, draft, strategy="coupled", **call, **given, **seeded(), num_assistant_tokens=k)
        assert out.sequences[:, -NEW:].tolist() == wanted.tolist()


def test_a_drafter_sees_the_ids_that_the_call_was_given():
    """With only the new ids, row i's text for a drafter begins with them."""
    target = build("llama")
    turn = prompts([9, 9])
    given = read_into_cache(target, {key: x[:, :6] for key, x in turn.items()})
    truth = [row[6:] for row in said("plain", target, **turn).sequences.tolist()]
    drafter = Scripted(truth, [(2, 4, 1), (0, 3)])
    out = said("ours", target, drafter, **only_new(turn, given[CACHE_NAME]), **given, output_logits=True)
    assert_as_alone(target, out, turn)
    assert [row.trace[1:3] for row in out.spec_stats.rows] == [[(4, 2), (4, 4)], [(4, 0), (4, 3)]]
