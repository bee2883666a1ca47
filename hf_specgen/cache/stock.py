"""transformers' own cache: taken over after the prefill, filled again at the end, put back after an error.

Stock caches hold one column per column of the padded input; ours hold one slot per position of the unpadded row.
"""

import torch
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ..compat import DUMMY_LAYERS
from ..errors import SpecUnsupportedError
from .ragged import MARGIN, RaggedCache, RaggedLayer, Rolling, _rounded


def refuse_unknown_layers(cache: Cache, whose: str) -> None:
    """Recurrent, compressed, quantized, static … layers cannot be rolled back by a number."""
    if type(cache) is not DynamicCache or cache.offloading:
        kind = "an offloaded DynamicCache" if getattr(cache, "offloading", False) else type(cache).__name__
        raise SpecUnsupportedError(
            f"The {whose}'s cache is {kind}; speculative decoding works on a plain DynamicCache. "
            "Leave out cache_implementation= and the cache argument, or decode without spec_strategy."
        )
    for index, layer in enumerate(cache.layers):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer, *DUMMY_LAYERS):
            raise SpecUnsupportedError(
                f"Layer {index} of the {whose}'s cache is a {type(layer).__name__}, whose state cannot be rolled "
                "back to an earlier token (recurrent, hybrid or compressed attention). Decode without spec_strategy, "
                'or pass spec_fallback="plain".'
            )


def adopt(cache: DynamicCache, pads: list[int], room: int) -> RaggedCache:
    """Take over a filled stock cache, layer by layer, freeing each as it goes.

    Args:
        cache: `[rows, heads, columns, head_dim]` per layer, left-padded. Emptied.
        pads: padding columns on the left of each row.
        room: positions to make room for beyond the ones read.
    """
    columns = cache.get_seq_length()
    lengths = [columns - pad for pad in pads]
    parts: dict[int | None, Rolling] = {}
    layers: list[RaggedLayer | None] = []
    for old in cache.layers:
        if isinstance(old, DUMMY_LAYERS):  # reads another layer's keys and values
            layers.append(None)
            continue
        window = old.sliding_window if isinstance(old, DynamicSlidingWindowLayer) else None
        first = columns - old.keys.shape[2]  # a sliding layer has dropped the columns before this one
        if window not in parts:
            parts[window] = Rolling(window, [max(0, first - pad) for pad in pads])
        part = parts[window]
        if window is None:
            capacity = _rounded(max(lengths) + room)
        else:
            capacity = _rounded(min(max(lengths) + room, window + max(window // 4, 2 * MARGIN)))
            capacity = max(capacity, _rounded(old.keys.shape[2] + MARGIN))
        buffers = []
        for x in (old.keys, old.values):
            buffer = x.new_zeros(x.shape[0], x.shape[1], capacity, x.shape[3])
            for b, pad in enumerate(pads):
                text = x[b, :, max(0, pad - first) :]
                buffer[b, :, : text.shape[1]] = text
            buffers.append(buffer)
        old.keys = old.values = None
        layers.append(RaggedLayer(*buffers, part))
    return RaggedCache(layers, lengths)


def snapshot(cache: DynamicCache) -> list[dict]:
    """What `restore` needs: the layers' attributes (a stock update replaces tensors, it never writes into them)."""
    return [dict(layer.__dict__) for layer in cache.layers]


def restore(cache: DynamicCache, saved: list[dict]) -> None:
    del cache.layers[len(saved) :]  # a lazy cache may have grown layers
    for layer, attributes in zip(cache.layers, saved, strict=True):
        layer.__dict__.clear()
        layer.__dict__.update(attributes)


class Export:
    """Collects the rows as they leave and writes them into a stock cache, in the columns of `sequences[:, :-1]`
    (of left-padded rows; rows that came padded on the right were moved)."""

    def __init__(self, cache: DynamicCache, pads: list[int]):
        self.cache = cache
        self.pads = pads
        self.rows: dict[int, tuple[list, int]] = {}

    def take(self, ragged: RaggedCache, row: int, index: int, length: int) -> None:
        """Keep row `row` of `ragged`, `length` positions long, as row `index` of the result."""
        parts = []
        for layer in ragged.layers:
            if layer is None:
                parts.append(None)
                continue
            base = layer.part.bases[row]
            parts.append((*(x[row, :, : length - base].clone() for x in layer.buffers()), base))
        self.rows[index] = (parts, length)

    def write(self, columns: int) -> DynamicCache:
        """Fill the stock cache: `columns` = its new length. Columns after a finished row's end hold zeros."""
        for i, layer in enumerate(self.cache.layers):
            if isinstance(layer, DUMMY_LAYERS):
                continue
            window = layer.sliding_window if isinstance(layer, DynamicSlidingWindowLayer) else None
            first = 0 if window is None else max(0, columns - window + 1)
            sample = self.rows[0][0][i]
            for name, which in (("keys", 0), ("values", 1)):
                x = sample[which]
                full = x.new_zeros(len(self.rows), x.shape[0], columns - first, x.shape[2])
                for index, (parts, length) in self.rows.items():
                    text, base = parts[i][which], parts[i][2]
                    low = max(base, first - self.pads[index], 0)  # first position that both hold
                    if low < length:
                        column = low + self.pads[index] - first
                        full[index, :, column : column + length - low] = text[:, low - base :]
                setattr(layer, name, full)
            if window is not None:
                layer.cumulative_length = columns
            if not layer.is_initialized:
                layer.device, layer.dtype, layer.is_initialized = full.device, full.dtype, True
        return self.cache


def left_padding(mask: torch.Tensor) -> list[int]:
    """Padding columns of each row of a `[rows, columns]` mask that has no holes."""
    return (mask.shape[1] - mask.bool().sum(dim=1)).tolist()
