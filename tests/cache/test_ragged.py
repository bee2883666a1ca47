"""The ragged cache against a list of vectors per row; stock caches taken over, extended in place, and put back."""

import copy
import random
from types import SimpleNamespace

import pytest
import torch
from families import MIXED, build, draft_of
from toys import batch_of, plain, spec, text
from transformers import DynamicCache, Gemma3TextConfig

from hf_specgen.cache.masks import ragged_masks
from hf_specgen.cache.stock import Export, Layout, adopt
from hf_specgen.compat import CACHE_NAME

HEADS, DIM = 2, 3


def config_of(window: int):
    return Gemma3TextConfig(
        vocab_size=8,
        hidden_size=8,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=HEADS,
        layer_types=MIXED,
        sliding_window=window,
    )


class Reference:
    """What every row holds, layer by layer: a plain list of (key, value), one per position."""

    def __init__(self, seed: int, rows: int):
        self.random = torch.Generator().manual_seed(seed)
        self.rows = [[[] for _ in MIXED] for _ in range(rows)]

    def new(self, rows: int, width: int):
        keys, values = torch.randn(2, rows, HEADS, width, DIM, generator=self.random)
        return keys, values

    def put(self, row: int, layer: int, start: int, keys, values):
        held = self.rows[row][layer]
        del held[start:]
        held.extend((keys[:, i], values[:, i]) for i in range(keys.shape[1]))

    def span(self, row: int, layer: int, low: int, high: int):
        """Keys and values `[heads, high - low, dim]`."""
        return tuple(torch.stack([pair[which] for pair in self.rows[row][layer][low:high]], 1) for which in (0, 1))


def layout_of(pads: list[int], columns: int) -> Layout:
    return Layout(torch.arange(columns) >= torch.tensor(pads)[:, None], len(pads), columns)


def first_seen(layer: int, window: int, query: int) -> int:
    return 0 if MIXED[layer] == "full_attention" else max(0, query - window + 1)


def started(window: int, lengths: list[int], seed: int):
    """A ragged cache that has adopted a left-padded stock cache, and its reference."""
    columns = max(lengths)
    pads = [columns - length for length in lengths]
    reference, stock = Reference(seed, len(lengths)), DynamicCache(config=config_of(window))
    for layer in range(len(MIXED)):
        keys, values = reference.new(len(lengths), columns)
        stock.update(keys, values, layer)
        for b, pad in enumerate(pads):
            reference.put(b, layer, 0, keys[b, :, pad:], values[b, :, pad:])
    cache = adopt([(stock, layout_of(pads, columns), list(range(len(pads))))], room=8)
    assert cache.lengths == lengths
    assert all(layer.keys is None for layer in stock.layers), "freed as it goes"
    return cache, reference


def forward(cache, reference, window: int, width: int, rows: list[int] | None):
    """One forward of all rows (None) or a group; what every query sees is compared with the reference."""
    plan = cache.plan(width, rows)
    chosen = rows if rows is not None else list(range(len(cache.lengths)))
    starts = [cache.lengths[b] for b in chosen]
    assert plan.starts == starts and plan.uniform == (len(set(starts)) == 1)
    seen = {}
    for layer in range(len(MIXED)):
        keys, values = reference.new(len(chosen), width)
        for i, b in enumerate(chosen):
            reference.put(b, layer, starts[i], keys[i], values[i])
        seen[layer] = cache.update(keys, values, layer)
    if plan.uniform:
        for layer, both in seen.items():
            low, end = first_seen(layer, window, starts[0]), starts[0] + width
            assert cache.get_mask_sizes(width, layer) == (end - low, low)
            for i, b in enumerate(chosen):
                for got, wanted in zip(both, reference.span(b, layer, low, end), strict=True):
                    assert torch.equal(got[i], wanted)
        assert cache.get_seq_length() == cache.get_query_offset() == starts[0]
        return
    config = SimpleNamespace(_attn_implementation="sdpa", layer_types=MIXED, sliding_window=window)
    positions = torch.tensor(starts)[:, None] + torch.arange(width)
    masks = ragged_masks(config, cache, positions, torch.float32)
    for layer, (keys, values) in seen.items():
        mask = masks[MIXED[layer]]
        assert mask.shape == (len(chosen), 1, width, keys.shape[2])
        for i, b in enumerate(chosen):
            for q in range(width):
                query, visible = starts[i] + q, mask[i, 0, q]
                wanted = reference.span(b, layer, first_seen(layer, window, query), query + 1)
                assert torch.equal(keys[i][:, visible], wanted[0])
                assert torch.equal(values[i][:, visible], wanted[1])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("window", [4, 7, 8])
def test_random_writes_rollbacks_and_drops(window, seed):
    """Ragged and grouped forwards, rows that take part of a block, rollbacks and drops, over hundreds of positions."""
    chance = random.Random(seed)
    lengths = [chance.randint(1, 14) for _ in range(4)]
    cache, reference = started(window, lengths, seed)
    cache.reserve(40)
    floor, peak, highest, rolled = list(lengths), list(lengths), 0, 0
    for step in range(240):
        width = chance.choice([1, 1, 3, 6])
        counts = [chance.randint(0, width) for _ in cache.lengths]
        before = [list(part.bases) for part in cache.parts]
        if chance.random() < 0.5:
            forward(cache, reference, window, width, None)
        else:
            for length in dict.fromkeys(cache.lengths):
                forward(cache, reference, window, width, [b for b, n in enumerate(cache.lengths) if n == length])
        cache.lengths[:] = [length + count for length, count in zip(cache.lengths, counts, strict=True)]
        rolled += [list(part.bases) for part in cache.parts] != before
        peak = [max(p, n) for p, n in zip(peak, cache.lengths, strict=True)]
        highest = max(highest, *peak)
        for b, length in enumerate(cache.lengths):
            if chance.random() < 0.15:  # prompts are never rolled back, nor more than what was reserved
                cache.lengths[b] = max(floor[b], peak[b] - 40, length - chance.randint(0, 8))
        if step in (80, 140, 200):
            b = chance.randrange(len(cache.lengths))
            cache.drop(b)
            for rows in (reference.rows, floor, peak):
                rows[b] = rows[-1]
                rows.pop()
    assert len(cache.lengths) == 1
    assert rolled >= 2, "the rolling layers have to roll"
    sliding, full = (layer.keys.shape[2] for layer in cache.layers[:2])
    assert sliding <= 128 < highest <= full, "and stay small"


def test_equal_lengths_after_unequal_ones_see_a_plain_cache():
    """Rows that have met again, with different base positions in their rolling layers."""
    cache, reference = started(4, [1, 40], seed=0)
    for _ in range(39):
        forward(cache, reference, 4, 1, [0])
        cache.lengths[0] += 1
    assert len(set(cache.parts[0].bases)) == 2
    for width in (3, 1, 90, 2):
        forward(cache, reference, 4, width, None)
        cache.lengths[:] = [n + width for n in cache.lengths]


@pytest.mark.parametrize("window", [4, 8])
@pytest.mark.parametrize("lengths", [(9,), (3, 9, 1), (20, 2)])
def test_export_lays_columns_as_the_stock_cache_would(lengths, window):
    """The same vectors written to a stock cache step by step, left-padded, and to ours, exported row by row."""
    lengths, columns = list(lengths), max(lengths)
    pads = [columns - length for length in lengths]
    cache, reference = started(window, lengths, seed=1)
    stock = DynamicCache(config=config_of(window))
    generator = torch.Generator().manual_seed(5)
    for layer in range(len(MIXED)):
        both = torch.zeros(2, len(lengths), HEADS, columns, DIM)
        for b, pad in enumerate(pads):
            both[:, b, :, pad:] = torch.stack(reference.span(b, layer, 0, lengths[b]))
        stock.update(*both, layer)
    for _ in range(70):
        cache.plan(1)
        for layer in range(len(MIXED)):
            keys, values = torch.randn(2, len(lengths), HEADS, 1, DIM, generator=generator)
            cache.update(keys, values, layer)
            stock.update(keys, values, layer)
        cache.lengths[:] = [n + 1 for n in cache.lengths]
    export = Export(DynamicCache(config=config_of(window)), layout_of(pads, columns))
    order = list(range(len(lengths)))
    while order:  # rows leave in any order
        export.take(cache, 0, order[0], cache.lengths[0])
        cache.drop(0)
        order[0] = order[-1]
        order.pop()
    written = export.write(70)
    assert_same_caches(written, stock, [0] * len(lengths))


# ---- in generate() --------------------------------------------------------------------------------------------------
def assert_same_caches(got, wanted, pads: list[int], tolerance: float = 0.0):
    """Layer by layer: kinds, lengths, shapes; keys and values of all columns that hold text."""
    assert type(got) is type(wanted) and len(got.layers) == len(wanted.layers)
    columns = wanted.get_seq_length()
    assert got.get_seq_length() == columns
    for ours, theirs in zip(got.layers, wanted.layers, strict=True):
        assert type(ours) is type(theirs)
        assert getattr(ours, "cumulative_length", None) == getattr(theirs, "cumulative_length", None)
        assert ours.keys.shape == theirs.keys.shape and ours.keys.dtype == theirs.keys.dtype
        first = columns - theirs.keys.shape[2]
        for b, pad in enumerate(pads):
            for name in ("keys", "values"):
                a, b_ = (getattr(layer, name)[b, :, max(0, pad - first) :] for layer in (ours, theirs))
                assert (a - b_).abs().max() <= tolerance * b_.abs().max(), (name, b)


def cache_in(out):
    return out[CACHE_NAME]


GREEDY = {"do_sample": False, "return_dict_in_generate": True}
NAMES = ["llama", "mistral", "gemma3_text", "gpt2", "llama4_text"]
BATCHES = [(11,), (3, 11, 6, 1), (6, 6)]


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("new", [1, 30])
def test_returned_cache_is_plain_decodings(name, lengths, new):
    target, batch = build(name), batch_of([text(n) for n in lengths])
    wanted = plain(target, **batch, max_new_tokens=new, **GREEDY)
    got = spec(target, draft_of(name), **batch, max_new_tokens=new, num_assistant_tokens=4)
    assert got.sequences.tolist() == wanted.sequences.tolist()
    assert_same_caches(cache_in(got), cache_in(wanted), [max(lengths) - n for n in lengths], 1e-5)


def second_turn(sequences, mask, more: int = 5):
    """The text so far and a few new tokens per row, with its mask."""
    rows = len(sequences)
    extra = torch.tensor([text(more, seed=50 + b) for b in range(rows)])
    ids = torch.cat([sequences, extra], 1)
    return {
        "input_ids": ids,
        "attention_mask": torch.nn.functional.pad(mask, (0, ids.shape[1] - mask.shape[1]), value=1),
    }


@pytest.mark.parametrize("lengths", BATCHES)
@pytest.mark.parametrize("name", NAMES)
def test_cache_handed_in_is_extended_in_place_as_plain_does(name, lengths):
    """Three turns on one cache object: plain, speculative, plain again."""
    target, batch = build(name), batch_of([text(n) for n in lengths])
    pads = [max(lengths) - n for n in lengths]
    first = plain(target, **batch, max_new_tokens=12, **GREEDY)
    turn = second_turn(first.sequences, batch["attention_mask"])
    ours, theirs = cache_in(first), copy.deepcopy(cache_in(first))
    got = spec(target, draft_of(name), **turn, max_new_tokens=20, num_assistant_tokens=4, **{CACHE_NAME: ours})
    wanted = plain(target, **turn, max_new_tokens=20, **GREEDY, **{CACHE_NAME: theirs})
    assert got.sequences.tolist() == wanted.sequences.tolist()
    assert cache_in(got) is ours
    assert_same_caches(ours, theirs, pads, 1e-5)
    turn = second_turn(wanted.sequences, turn["attention_mask"], more=2)
    third = [plain(target, **turn, max_new_tokens=10, **GREEDY, **{CACHE_NAME: c}).sequences for c in (ours, theirs)]
    assert third[0].tolist() == third[1].tolist()


@pytest.mark.parity
@pytest.mark.parametrize("name", NAMES)
def test_empty_cache_handed_in_is_filled_even_without_a_dict(name):
    target, batch = build(name), batch_of([text(11)])
    ours, theirs = (DynamicCache(config=target.config) for _ in range(2))
    spec(target, draft_of(name), **batch, max_new_tokens=20, return_dict_in_generate=False, **{CACHE_NAME: ours})
    plain(target, **batch, max_new_tokens=20, do_sample=False, **{CACHE_NAME: theirs})
    assert_same_caches(ours, theirs, [0], 1e-5)


class RaiseAt:
    """A stopping criterion that raises once `new` tokens have come."""

    def __init__(self, length: int, error: type[BaseException]):
        self.length, self.error = length, error

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] >= self.length:
            raise self.error("enough")
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("start", ["filled", "empty", "lazy"])
@pytest.mark.parametrize("name", NAMES)
def test_cache_handed_in_is_put_back_when_the_call_raises(name, start, error):
    target = build(name)
    batch = batch_of([text(11)])
    if start == "filled":
        first = plain(target, **batch, max_new_tokens=12, **GREEDY)
        batch, cache = second_turn(first.sequences, batch["attention_mask"]), cache_in(first)
    else:
        cache = DynamicCache(config=target.config) if start == "empty" else DynamicCache()
    before = copy.deepcopy(cache)
    columns = batch["input_ids"].shape[1]
    with pytest.raises(error, match="enough"):
        spec(
            target,
            draft_of(name),
            **batch,
            max_new_tokens=30,
            stopping_criteria=[RaiseAt(columns + 5, error)],
            **{CACHE_NAME: cache},
        )
    assert len(cache.layers) == len(before.layers)
    for ours, theirs in zip(cache.layers, before.layers, strict=True):
        assert vars(ours).keys() == vars(theirs).keys()
        for key, value in vars(theirs).items():
            mine = getattr(ours, key)
            assert torch.equal(mine, value) if isinstance(value, torch.Tensor) else mine == value, key
    again, afresh = (
        plain(target, **batch, max_new_tokens=8, **GREEDY, **{CACHE_NAME: c}).sequences for c in (cache, before)
    )
    assert again.tolist() == afresh.tolist()
