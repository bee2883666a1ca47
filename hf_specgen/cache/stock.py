"""transformers' own cache: taken over after the prefill, filled again at the end, put back after an error.

Stock caches hold one column per column of the padded input; ours hold one slot per position of the unpadded row.
"""

import contextlib
from collections.abc import Iterator

import torch
from transformers import cache_utils
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache

from ..compat import DUMMY_LAYERS
from ..errors import SpecUnsupportedError
from .ragged import Piece, RaggedCache
from .states import RowStates, keeps_state, state_of, with_states

KNOWN_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    cache_utils.DynamicIndexedLayer,
    cache_utils.LinearAttentionLayer,
    cache_utils.LinearAttentionAndFullAttentionLayer,
    cache_utils.LinearAttentionAndSlidingWindowAttentionLayer,
    *DUMMY_LAYERS,
)


SPARSE_LAYERS = ("MiniMaxM3VLSparseCacheLayer",)
"""Layers that live in a model's own file: keys, values, and the keys of an index."""


class Layout:
    """Which columns of a padded batch hold the rows' texts, in order.

    Args:
        mask: bool or int `[rows, columns]`, 0 where a column is no text of the row; None: all of them are.
        rows, columns: of the batch.
    """

    def __init__(self, mask: torch.Tensor | None, rows: int, columns: int):
        self.columns = columns
        if mask is None:
            mask = torch.ones(rows, columns, dtype=torch.bool)
        mask = mask.bool().cpu()
        self.lengths: list[int] = mask.sum(1).tolist()
        self.pads = [columns - length for length in self.lengths]
        self.index = [
            None if bool(row[pad:].all()) else row.nonzero().flatten() for row, pad in zip(mask, self.pads, strict=True)
        ]

    def columns_of(self, row: int, low: int, high: int) -> slice | torch.Tensor:
        """Where positions low … high-1 of a row are; positions beyond the prompt follow its last column."""
        index = self.index[row]
        if index is None:
            return slice(low + self.pads[row], high + self.pads[row])
        beyond = torch.arange(max(low - len(index), 0), max(high - len(index), 0)) + self.columns
        return torch.cat([index[low:high], beyond])

    def from_column(self, row: int, first: int) -> int:
        """The first position of a row that lies in column `first` or behind it."""
        index = self.index[row]
        return max(0, first - self.pads[row]) if index is None else int((index < first).sum())


def refuse_unknown_layers(cache: Cache, whose: str) -> None:
    """Recurrent, compressed, quantized, static … layers cannot be rolled back by a number."""
    if type(cache) is not DynamicCache or cache.offloading:
        kind = "an offloaded DynamicCache" if getattr(cache, "offloading", False) else type(cache).__name__
        raise SpecUnsupportedError(
            f"The {whose}'s cache is {kind}; speculative decoding works on a plain DynamicCache. "
            "Leave out cache_implementation= and the cache argument, or decode without spec_strategy."
        )
    for index, layer in enumerate(cache.layers):
        if type(layer) not in KNOWN_LAYERS and type(layer).__name__ not in SPARSE_LAYERS:
            raise SpecUnsupportedError(
                f"Layer {index} of the {whose}'s cache is a {type(layer).__name__}, which cannot be rolled back to an "
                "earlier token here (compressed, quantized or static). Decode without spec_strategy, or pass "
                'spec_fallback="plain".'
            )


def holds_kv(layer) -> bool:
    """Whether a filled stock layer has keys and values (dummies, states and layers that were skipped have none)."""
    return getattr(layer, "keys", None) is not None


def columns_held(cache: Cache) -> int:
    """How many columns a stock cache has read; 0 too where it holds states alone, which do not say."""
    own = own_part(cache)
    return own.get_seq_length() if any(map(holds_kv, own.layers)) else 0


def index_keys_of(layer) -> torch.Tensor | None:
    """What sparse attention keeps beside keys and values to pick from, `[rows, heads, columns, head_dim]`; or None."""
    if getattr(layer, "indexer_keys", None) is not None:
        return layer.indexer_keys[:, None]
    return getattr(layer, "idx_keys", None)


def own_part(cache: Cache) -> DynamicCache:
    """The self-attention part of an encoder-decoder's cache, or the cache."""
    return cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache


def window_of(layer) -> int | None:
    return layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None


def adopt(filled: list[tuple[DynamicCache, Layout, list[int]]], room: int) -> RaggedCache:
    """Take over filled stock caches, layer by layer, freeing each as it goes.

    Args:
        filled: caches, `[rows, heads, columns, head_dim]` per layer, with their layouts and the rows they hold
            (indices in the new cache). Emptied.
        room: positions to make room for beyond the ones read.
    """
    order = [(row, source, place) for source, (_, _, rows) in enumerate(filled) for place, row in enumerate(rows)]
    order = [(source, place) for _, source, place in sorted(order)]

    def layers() -> Iterator:
        for olds in zip(*(cache.layers for cache, _, _ in filled), strict=True):
            if not holds_kv(olds[0]):
                yield None
                continue
            yield window_of(olds[0]), [_piece(olds[source], filled[source][1], place) for source, place in order]
            for old in olds:
                old.keys = old.values = None

    lengths = [filled[source][1].lengths[place] for source, place in order]
    sample = filled[0][0].layers
    stateful = {i: layer for i, layer in enumerate(sample) if keeps_state(layer)}
    states = None
    if stateful:
        rows = [{i: state_of(filled[source][0].layers[i], place) for i in stateful} for source, place in order]
        states = RowStates(stateful, rows, lengths)
    others = {i: layer for i, layer in enumerate(sample) if not holds_kv(layer) and i not in stateful}
    return RaggedCache.assemble(layers(), lengths, room, states=states, others=others)


def _piece(layer, layout: Layout, row: int) -> Piece:
    first = layout.columns - layer.keys.shape[2]  # a sliding layer has dropped the columns before this one
    base = layout.from_column(row, first)
    where = layout.columns_of(row, base, layout.lengths[row])
    where = slice(where.start - first, None) if isinstance(where, slice) else where - first
    tensors = [layer.keys[row, :, where], layer.values[row, :, where]]
    if (more := index_keys_of(layer)) is not None:
        tensors.append(more[row, :, where])
    return Piece(tensors, base)


@contextlib.contextmanager
def put_back_on_error(cache: DynamicCache | None):
    """Inside this block a cache (or none) may be emptied or cropped; if it raises, the cache is as it was."""
    saved = snapshot(cache) if cache is not None else None
    try:
        yield
    except BaseException:
        if saved is not None:
            restore(cache, saved)
        raise


def snapshot(cache: DynamicCache) -> list[dict]:
    """What `restore` needs: the layers' attributes. A stock update replaces keys and values, but it writes into states:
    those are copied."""
    saved = []
    for layer in cache.layers:
        attributes = dict(layer.__dict__)
        if keeps_state(layer):
            attributes = {
                name: {k: x.clone() if isinstance(x, torch.Tensor) else x for k, x in value.items()}
                if isinstance(value, dict)
                else value
                for name, value in attributes.items()
            }
        saved.append(attributes)
    return saved


def restore(cache: DynamicCache, saved: list[dict]) -> None:
    del cache.layers[len(saved) :]  # a lazy cache may have grown layers
    for layer, attributes in zip(cache.layers, saved, strict=True):
        layer.__dict__.clear()
        layer.__dict__.update(attributes)


class Export:
    """Collects the rows as they leave and writes them into a stock cache, in the columns of the text so far."""

    def __init__(self, cache: DynamicCache, layout: Layout):
        self.cache = cache
        self.layout = layout
        self.rows: dict[int, tuple[list[Piece | None], int]] = {}
        self.windows: list[int | None] = []
        self.states: RowStates | None = None
        self.ends: dict[int, dict] = {}

    def take(self, ragged: RaggedCache, row: int, index: int, length: int) -> None:
        """Keep row `row` of `ragged`, `length` positions long, as row `index` of the result."""
        self.rows[index] = (ragged.pieces(row, length), length)
        self.windows = ragged.windows
        if ragged.states is not None:
            self.states = ragged.states
            self.ends[index] = ragged.states.kept[row][-1][1]

    def write(self, new: int) -> DynamicCache:
        """Fill the stock cache, `new` columns beyond the prompt. Columns after a finished row's end hold zeros."""
        for window in self.windows[len(self.cache.layers) :]:  # a cache that was made without the model's config
            new_layer = DynamicLayer() if window is None else DynamicSlidingWindowLayer(sliding_window=window)
            self.cache.layers.append(new_layer)
        for i, layer in enumerate(self.cache.layers):
            if self.states is not None and i in self.states.layers:
                states = [self.ends[index][i] for index in range(len(self.ends))]
                layer.__dict__.update(with_states(self.states.layers[i], states).__dict__)
            if self.rows[0][0][i] is not None:
                self._write_kv(i, layer, new)
        return self.cache

    def _write_kv(self, i: int, layer, new: int) -> None:
        window, columns = window_of(layer), self.layout.columns + new
        first = 0 if window is None else max(0, columns - window + 1)
        filled = []
        for number, sample in enumerate(self.rows[0][0][i].tensors):
            full = sample.new_zeros(len(self.rows), sample.shape[0], columns - first, sample.shape[2])
            for index, (pieces, length) in self.rows.items():
                length = min(length, self.layout.lengths[index] + new)
                low = max(pieces[i].base, self.layout.from_column(index, first))  # the first that both hold
                if low < length:
                    at = self.layout.columns_of(index, low, length)
                    at = slice(at.start - first, at.stop - first) if isinstance(at, slice) else at - first
                    full[index, :, at] = pieces[i].tensors[number][:, low - pieces[i].base :]
            filled.append(full)
        layer.keys, layer.values, *index_keys = filled
        if window is not None:
            layer.cumulative_length = columns
        if not layer.is_initialized:
            layer.device, layer.dtype, layer.is_initialized = layer.keys.device, layer.keys.dtype, True
        if index_keys and hasattr(layer, "idx_keys"):
            layer.idx_keys = index_keys[0]
        elif index_keys:
            layer.indexer_keys = index_keys[0][:, 0]
            layer.indexer_dtype, layer.indexer_device = layer.indexer_keys.dtype, layer.indexer_keys.device
            layer.is_indexer_initialized = True
