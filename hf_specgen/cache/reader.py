"""A model together with what it has read: prefill as plain `generate` does it, then ragged forwards.

Every forward of the decoding loop, target's and draft's, goes through `Reader.read`.
"""

import functools

import torch
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from .. import compat
from . import attention, probe, products, widths
from .beside import Beside
from .compiled import Compiled, compiling, wanted
from .kept import last_positions
from .masks import RAGGED_IMPLEMENTATIONS, ragged_masks
from .ragged import Plan, RaggedCache
from .states import RowStates
from .stock import Export, Layout, adopt, own_part


def device_of(model, otherwise: torch.device) -> torch.device:
    """Where a model takes its ids (offloaded models report `meta`; their hooks move the ids themselves). The later
    stages of a pipeline have no embeddings."""
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device if hasattr(embeddings, "weight") else otherwise
    return otherwise if device.type == "meta" else device


def new_cache(model, cross: bool = False):
    """An empty stock cache for a model; `cross`: with a place for the encoder's keys and values."""
    own = DynamicCache(config=compat.text_config(model))
    return EncoderDecoderCache(own, DynamicCache()) if cross else own


def read_prompt(
    model, ids: torch.Tensor, mask: torch.Tensor | None, keep_logits: int = 1, cache=None, start: int = 0, **beside
):
    """Read `[rows, columns]` left-padded ids (mask None: no padding) -> last logits, cache.

    `cache`: to go on from, with the position it ends at, `start`; a mask is then of all columns, read or not.
    `beside`: what the model gets beside the text.
    """
    known = compat.forward_parameters(model)
    if cache is None:
        cache = new_cache(model, cross=any(name.startswith("encoder_") for name in beside))
    inputs = {ids_name(model): ids, compat.cache_argument(model): cache, "use_cache": True, **beside}
    if mask is not None:
        inputs["attention_mask"] = mask
    if compat.takes_positions(model):
        positions = torch.arange(start, start + ids.shape[1], device=ids.device)[None].expand(len(ids), -1)
        inputs["position_ids"] = positions if mask is None else (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    if compat.prepares_inputs(model):
        ids = inputs.pop(ids_name(model))
        first = not start
        inputs = model.prepare_inputs_for_generation(ids, is_first_iteration=first, **inputs)
    if "logits_to_keep" in known:
        inputs["logits_to_keep"] = last_positions(model, keep_logits, ids.shape[1])
    return model(**inputs, return_dict=True).logits[:, -keep_logits:], cache


def groups_of(lengths: list[int]) -> list[list[int]]:
    """Rows of equal length, in the order of their first."""
    groups: dict[int, list[int]] = {}
    for b, length in enumerate(lengths):
        groups.setdefault(length, []).append(b)
    return list(groups.values())


def padded(texts: list[list[int]], device: torch.device) -> torch.Tensor:
    """Texts side by side, `[rows, width]`, padded on the right, for `Reader.read` with their lengths as counts."""
    width = max(map(len, texts))
    return torch.tensor([text + [0] * (width - len(text)) for text in texts], device=device)


def ids_name(model) -> str:
    return "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"


class Reader:
    """One model and its cache. `lengths[b]` = how many positions of row b it has read and still holds.

    Args:
        cache: what it has read so far.
        device: where the model takes its ids.
        beside: what its forwards get beside the text, or None.
        shifts: int64 `[rows]` or `[axes, rows]`: how far a row's position ids are from its places in the cache
            (multimodal rotary positions, position_ids given by the caller); None: not at all.
        collect: outputs to keep per token (hidden states, attentions), by the names of the model's output.
    """

    def __init__(
        self,
        model,
        cache: RaggedCache,
        device: torch.device,
        beside: Beside | None = None,
        shifts: torch.Tensor | None = None,
        collect: tuple[str, ...] = (),
    ):
        self.model, self.cache, self.device = model, cache, device
        self.beside, self.shifts, self.collect = beside, shifts, collect
        self.config = compat.text_config(model)
        known = compat.forward_parameters(model)
        self.takes_positions = compat.takes_positions(model)
        self.keeps_logits = "logits_to_keep" in known
        self.ids_name = ids_name(model)
        self.own_inputs = compat.prepares_inputs(model)
        self.slow_counts = () if cache.states is not None else widths.slow_counts(model)
        self.uncompiled: str | None = None  # why it is not to be compiled, where its owner knows
        self.copied_from = self.copied = None
        self.forwards = 0
        self.context = compat.context_length(model)
        self.order = list(range(len(cache.lengths)))  # per row: its index in the batch
        self.collected: list[list[dict]] = []

    @classmethod
    def from_prefill(
        cls, model, filled: list[tuple[DynamicCache, Layout, list[int]]], room: int, device: torch.device, **options
    ) -> "Reader":
        """A model that has read its prompts into stock caches (see `adopt`). `options`: as for `Reader`."""
        return cls(model, adopt([(own_part(c), layout, rows) for c, layout, rows in filled], room), device, **options)

    @property
    def _takes_masks(self) -> bool:
        """Whether there is a place for ready-made masks. Not where an indexer picks keys: it may pick what a shorter
        row does not have."""
        indexed = any(layer is not None and len(layer.buffers) > 2 for layer in self.cache.kv)
        places = self.takes_positions and (self.shifts is None or self.shifts.dim() == 1)
        fits = self.config._attn_implementation in RAGGED_IMPLEMENTATIONS
        return places and fits and not indexed and not self.beside

    @functools.cached_property
    def ragged_together(self) -> bool:
        """Whether rows at different positions may share a forward; asked when that first happens."""
        with compiling(False):  # a probe has readers of its own
            return self._takes_masks and probe.understands_ragged_masks(self)

    @functools.cached_property
    def reads_alternatives(self) -> bool:
        """Whether tokens may stand beside the text (see `read`)."""
        if self.cache.states is not None or self.collect or not self._takes_masks:
            return False
        if len(self.lengths) > 1 and not self.ragged_together:
            return False
        with compiling(False):
            return probe.understands_alternatives(self)

    @property
    def quick(self):
        """What computes in the model's place (see `products`). `model` may be set to another between forwards."""
        if self.copied_from is not self.model:
            self.copied_from = self.model
            self.copied = self.model if self.collect else products.for_few(self.model)
        return self.copied

    @functools.cached_property
    def compiled(self) -> Compiled | None:
        """Its compiled forwards, if they can be compiled; asked when the first is wanted."""
        return Compiled.of(self)

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def read(
        self, ids: torch.Tensor, counts: list[int], keep: int | None = None, beside: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Read `counts[b]` tokens of each row in one go.

        Args:
            ids: `[rows, width]`; what lies beyond a row's count is padding.
            counts: tokens to read per row, at most `width`.
            keep: how many positions to return logits for, from the right (None: all).
            beside: int64 `[rows, n]`: the last n of the ids are no part of the text. The j-th of them is read as if it
                followed the `beside[b, j]`-th id of its row (from 0), and seen by no other. What is held of them lies
                behind the others' `width - n` positions until the next forward (see `RaggedCache.move`).

        Returns:
            Logits `[rows, keep or width, vocabulary]`, in the model's dtype. The padding's are meaningless.
        """
        lengths = self.lengths
        self.collected = [[] for _ in counts]
        together = lengths.count(lengths[0]) == len(lengths) or self.ragged_together
        if self.cache.states is not None:  # padding would be read into the states
            together = len({*zip(lengths, counts, strict=True)}) == 1 and counts[0] == ids.shape[1]
        logits = self._forward(ids, counts, None, keep, beside) if together else self._in_groups(ids, counts, keep)
        self.cache.lengths[:] = [length + count for length, count in zip(lengths, counts, strict=True)]
        return logits if keep is None else logits[:, -keep:]

    def _in_groups(self, ids: torch.Tensor, counts: list[int], keep: int | None) -> torch.Tensor:
        """One forward per distinct length (and number of tokens, if those go into a state): exact everywhere."""
        groups: dict[tuple, list[int]] = {}
        for b, length in enumerate(self.lengths):
            if counts[b]:
                groups.setdefault((length, counts[b] if self.cache.states is not None else 0), []).append(b)
        logits = None
        for rows in groups.values():
            width = max(counts[b] for b in rows)  # no further: models without position_ids have no place for padding
            part = self._forward(ids[rows, :width], [counts[b] for b in rows], rows, keep)
            if logits is None:
                logits = part.new_zeros(len(counts), keep or ids.shape[1], part.shape[2])
            logits[rows, : part.shape[1]] = part[:, -keep:] if keep else part
        return logits

    def _forward(
        self,
        ids: torch.Tensor,
        counts: list[int],
        rows: list[int] | None,
        keep: int | None,
        beside: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if wanted() and self.compiled is not None:
            logits = self.compiled.read(self, ids, counts, keep)
            if logits is not None:
                return logits
        slow_counts = self.slow_counts if self.quick is self.model else ()
        padding = widths.fast_width(*ids.shape, slow_counts) - ids.shape[1]
        if padding:
            ids = torch.cat([ids, ids[:, -1:].expand(-1, padding)], dim=1)
        plan = self.cache.plan(ids.shape[1], rows, plain=beside is None)
        order = self.order if rows is None else [self.order[b] for b in rows]
        cache = self.cache
        if self.beside is not None and self.beside.cross is not None:
            cache = EncoderDecoderCache(cache, self.beside.cross_of(order))
        inputs = {compat.cache_argument(self.model): cache, "use_cache": True}
        inputs.update(dict.fromkeys((_FLAGS[name] for name in self.collect), True))
        if self.takes_positions:
            positions = _positions(plan, counts, ids.device)
            places = None
            if beside is not None:
                places = (torch.tensor(plan.starts)[:, None] + torch.arange(plan.width)).to(ids.device)
                own = slice(plan.width - padding - beside.shape[1], plan.width - padding)
                positions[:, own] = places[:, :1] + 1 + beside.to(ids.device)
            inputs["position_ids"] = positions if self.shifts is None else self._shifted(positions, order)
        if not plan.uniform:
            inputs["attention_mask"] = ragged_masks(self.config, self.cache, positions, self.model.dtype, places)
        if self.beside or self.own_inputs:  # the model's preparation, as plain decoding calls it for a later step
            inputs.update(self.beside.of(order, ids.shape[1]) if self.beside else {})
            inputs = self.model.prepare_inputs_for_generation(ids, is_first_iteration=False, **inputs)
        else:
            inputs[self.ids_name] = ids
        if self.keeps_logits:  # some preparations ask for the last one only
            kept = widths.fast_width(len(ids), keep + padding, slow_counts) if keep else 0  # the head's, too
            inputs["logits_to_keep"] = last_positions(self.model, min(kept, ids.shape[1]), ids.shape[1])
        self.forwards += 1
        with attention.folding():
            outputs = self.quick(**inputs, return_dict=True)
        self.cache.finish()
        for i, b in enumerate(range(len(counts)) if rows is None else rows):
            if self.collect:
                self.collected[b] = [self._slot(outputs, i, t) for t in range(counts[i])]
        return outputs.logits[:, : outputs.logits.shape[1] - padding]

    def _shifted(self, positions: torch.Tensor, order: list[int]) -> torch.Tensor:
        """`[rows, width]`, or `[axes, rows, width]` for positions of several axes."""
        return positions + self.shifts[..., order, None].to(positions.device)

    def shift_of(self, index: int) -> int:
        """How far the position ids of a row of the batch are ahead of its places in the cache."""
        return 0 if self.shifts is None else int(self.shifts[..., index].max())

    def _slot(self, outputs, i: int, slot: int) -> dict[str, tuple[torch.Tensor, ...]]:
        """What plain decoding would have kept of one token: views, per output name and layer."""
        position = self.cache.current.starts[i] + slot
        found = {}
        for name in self.collect:
            layers = outputs.get(name) or ()
            if "attentions" not in name:
                found[name] = tuple(x[i, slot : slot + 1] for x in layers)
            elif name == "cross_attentions":
                found[name] = tuple(x[i, :, slot : slot + 1] for x in layers)
            else:
                found[name] = tuple(
                    x[i, :, slot : slot + 1, self._seen(layer, i, position)] for layer, x in enumerate(layers)
                )
        return found

    def _seen(self, layer: int, i: int, position: int) -> slice:
        """Which of the keys that row `i` was shown in a layer a plain step at `position` would have been shown."""
        part = self.cache.kv[layer].part
        first = self.cache.first_key(part, i)
        return slice(part.visible_from(position) - first, position + 1 - first)

    def roll_back(self, row: int, length: int) -> None:
        """Forget what row `row` has read beyond `length` positions: or, where states cannot go back by a number, beyond
        the last position before it that they were kept at. `lengths` says where it is now."""
        states = self.cache.states
        self.cache.lengths[row] = length if states is None else states.roll_back(row, length)

    def drop(self, row: int) -> None:
        self.cache.drop(row)
        self.order[row] = self.order[-1]
        self.order.pop()


def read_ends(target: Reader, export: Export, left: dict[int, list[int]]) -> None:
    """Read what rows that have left have not read yet, and take them into the result again.

    Plain decoding feeds the last token of a row that ends before others, so its keys and values are in the cache.

    Args:
        left: tokens by the row's index.
    """
    rows = [(index, tokens) for index, tokens in left.items() if tokens]
    if not rows:
        return
    pieces, lengths = zip(*(export.rows[index] for index, _ in rows), strict=True)
    states = target.cache.states
    if states is not None:
        states = RowStates(states.layers, [export.ends[index] for index, _ in rows], list(lengths))
    cache = RaggedCache.of_rows(
        target.cache.windows,
        pieces,
        list(lengths),
        room=max(len(tokens) for _, tokens in rows),
        states=states,
        others={i: layer for i, layer in enumerate(target.cache.layers) if target.cache.kv[i] is None},
    )
    reader = Reader(target.model, cache, target.device, target.beside, target.shifts)
    reader.order = [index for index, _ in rows]
    reader.read(padded([tokens for _, tokens in rows], target.device), [len(tokens) for _, tokens in rows], keep=1)
    target.forwards += reader.forwards
    for b, (index, _) in enumerate(rows):
        export.take(cache, b, index, cache.lengths[b])


_FLAGS = {
    "hidden_states": "output_hidden_states",
    "attentions": "output_attentions",
    "decoder_hidden_states": "output_hidden_states",
    "decoder_attentions": "output_attentions",
    "cross_attentions": "output_attentions",
}


def _positions(plan: Plan, counts: list[int], device: torch.device) -> torch.Tensor:
    """`[rows, width]`. Padding repeats a row's last position: beyond it there may be none left in the model's table."""
    if plan.uniform and min(counts) == plan.width:
        return torch.arange(plan.starts[0], plan.starts[0] + plan.width, device=device).expand(len(counts), -1)
    starts, ends = torch.tensor(plan.starts)[:, None], torch.tensor(counts).clamp(min=1)[:, None] - 1
    return (starts + torch.minimum(torch.arange(plan.width), ends)).to(device)
