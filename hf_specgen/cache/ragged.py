"""A KV cache in which every row has its own length, and rolling back is lowering a number.

Rows are stored without their padding: the token at position j of a row sits in slot j of a preallocated buffer
`[rows, heads, capacity, head_dim]`. A layer that looks back only `window` positions keeps a rolling part of each row:
slot = position - base, and when the buffer is full the part that can still be seen is moved to its start.
What a slot holds beyond the row's length is never attended to, so nothing has to be cropped, copied or realigned.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from transformers.cache_utils import Cache

from .states import RowStates

MARGIN = 32  # positions behind a window that are kept, so that a rolled-back row still finds its past
ROUND = 64  # capacities are multiples of this


@dataclass
class Plan:
    """Where one forward writes, and what it sees. Made by `RaggedCache.plan`, read by every layer."""

    rows: torch.Tensor | None  # rows taking part, None = all in order
    starts: list[int]  # per row taking part: position of its first query
    width: int  # queries per row
    uniform: bool  # the model sees a plain cache: all starts are equal
    device_copies: dict = field(default_factory=dict)

    def on(self, name: str, device: torch.device, make) -> torch.Tensor:
        """An index tensor, made once per forward and device (a sharded model has several)."""
        key = (name, device)
        if key not in self.device_copies:
            self.device_copies[key] = make().to(device)
        return self.device_copies[key]


@dataclass
class Piece:
    """What a layer holds of one row: keys and values `[heads, positions, head_dim]` (and an indexer's keys, with one
    head); the first is that of position `base`."""

    tensors: list[torch.Tensor]
    base: int

    def first(self, positions: int) -> "Piece":
        """The same up to position `positions`."""
        return Piece([x[:, : max(0, positions - self.base)] for x in self.tensors], self.base)


class Rolling:
    """Base positions of the rows in all layers that share one window (None = everything is kept, base 0)."""

    def __init__(self, window: int | None, bases: list[int]):
        self.window = window
        self.bases = bases

    def visible_from(self, start: int) -> int:
        """First position that a query at `start` may still attend to (windows count the query itself)."""
        return 0 if self.window is None else max(0, start - self.window + 1)


class LayerView:
    """What a model may look at in a layer of our cache, and where sparse attention keeps more in it."""

    def __init__(self, cache: "RaggedCache", index: int):
        self._cache, self._index = cache, index

    @property
    def is_initialized(self) -> bool:
        return self._cache.kv[self._index] is not None

    @property
    def keys(self) -> torch.Tensor:
        return self._cache.kv[self._index].keys

    def update_index(self, keys: torch.Tensor) -> torch.Tensor:
        """The keys of MiniMax-M3's block index, `[rows, 1, width, head_dim]`."""
        return self._cache.kv[self._index].update(self._cache, keys, first=2)[0]

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """The positions of what has been read, by axis, `[3, rows, positions]` (Qwen4): of text."""
        plan = self._cache.current
        device = self._cache.kv[self._index].keys.device
        return torch.arange(plan.starts[0], device=device).expand(3, len(plan.starts), -1)

    @indexer_position_ids.setter
    def indexer_position_ids(self, _) -> None:
        """They follow from the lengths."""


class RaggedLayer:
    """One layer's buffers, each `[rows, heads, capacity, head_dim]`: keys, values, and where attention is sparse an
    indexer's keys. `part` is shared by layers of one window."""

    def __init__(self, buffers: list[torch.Tensor], part: Rolling):
        self.buffers, self.part = buffers, part
        self.is_sliding = part.window is not None

    @property
    def keys(self) -> torch.Tensor:
        return self.buffers[0]

    @property
    def values(self) -> torch.Tensor:
        return self.buffers[1]

    def update(self, cache: "RaggedCache", *new: torch.Tensor, first: int = 0) -> list[torch.Tensor]:
        """Write the current forward's keys and values (or, from buffer `first` on, what else is held), and return what
        it attends to."""
        plan, bases = cache.current, self.part.bases
        buffers = self.buffers[first : first + len(new)]
        n, end = len(plan.starts), plan.starts[0] + plan.width
        if plan.uniform and plan.rows is None and bases.count(bases[0]) == n:
            low = self.part.visible_from(plan.starts[0]) - bases[0]
            start, high = plan.starts[0] - bases[0], end - bases[0]
            for x, given in zip(buffers, new, strict=True):
                x[:n, :, start:high] = given
            return [x[:n, :, low:high] for x in buffers]

        device = self.keys.device
        rows = plan.on("rows", device, lambda: plan.rows if plan.rows is not None else torch.arange(n))
        slots = plan.on(f"slots{self.part.window}", device, lambda: cache.slots(self.part))
        for x, given in zip(buffers, new, strict=True):
            x[rows[:, None], :, slots] = given.transpose(1, 2).to(x.dtype)  # autocast: not always the prefill's
        if not plan.uniform:
            stop = cache.visible_slots(self.part)
            return [x[:n, :, :stop] for x in buffers]
        # A group of equal length: its rows are gathered into what a plain cache would hold.
        low = self.part.visible_from(plan.starts[0])
        seen = plan.on(f"seen{self.part.window}", device, lambda: cache.gather_slots(self.part, low, end))
        return [x[rows[:, None], :, seen].transpose(1, 2) for x in buffers]


class RaggedCache(Cache):
    """Drop-in for `DynamicCache` inside one forward. `lengths[b]` = positions of row b that hold its text.

    Args:
        kv: per layer its keys and values, or None.
        states: of the layers that keep a state instead, or beside (recurrent, convolutional); None: there are none.
        others: stock layers that hold nothing, by index: models look at them.
    """

    def __init__(
        self,
        kv: list[RaggedLayer | None],
        lengths: list[int],
        states: RowStates | None = None,
        others: dict[int, object] | None = None,
    ):
        self.kv, self.states = kv, states
        self.layers = [(others or {}).get(i) or LayerView(self, i) for i in range(len(kv))]  # for models to look at
        self.lengths = lengths
        self.offloading = False
        self.layer_class_to_replicate = None
        self.parts = list({id(layer.part): layer.part for layer in kv if layer is not None}.values())
        self.margin = MARGIN
        self.current: Plan | None = None

    def reserve(self, positions: int) -> None:
        """Promise that no rollback will exceed `positions`: rolling layers keep that much behind their window."""
        self.margin = max(self.margin, positions)

    @classmethod
    def assemble(
        cls, layers: Iterable[tuple[int | None, list[Piece]] | None], lengths: list[int], room: int, **more
    ) -> "RaggedCache":
        """Copy rows from elsewhere into new buffers, layer by layer (so that a generator can free what was read).

        Args:
            layers: per layer its window (None: everything is kept) and one piece per row; None for a layer without
                keys and values of its own.
            lengths: positions per row.
            room: positions to make room for beyond them.
            more: `states` and `others`.
        """
        parts: dict[int | None, Rolling] = {}
        built: list[RaggedLayer | None] = []
        for item in layers:
            if item is None:
                built.append(None)
                continue
            window, pieces = item
            part = parts.setdefault(window, Rolling(window, [piece.base for piece in pieces]))
            capacity = max(lengths) + room
            if window is not None:
                capacity = min(capacity, window + max(window // 4, 2 * MARGIN))
                capacity = max(capacity, max(piece.tensors[0].shape[1] for piece in pieces) + MARGIN)
            buffers = []
            for rows in zip(*(piece.tensors for piece in pieces), strict=True):
                buffer = rows[0].new_zeros(len(rows), rows[0].shape[0], _rounded(capacity), rows[0].shape[2])
                for b, row in enumerate(rows):
                    buffer[b, :, : row.shape[1]] = row
                buffers.append(buffer)
            built.append(RaggedLayer(buffers, part))
        return cls(built, lengths, **more)

    @classmethod
    def of_rows(
        cls, windows: list[int | None], rows: Sequence[list[Piece | None]], lengths: list[int], room: int, **more
    ) -> "RaggedCache":
        """As `assemble`, from what each row holds, layer by layer (see `pieces`)."""
        layers = zip(windows, zip(*rows, strict=True), strict=True)
        return cls.assemble(
            ((window, list(held)) if held[0] is not None else None for window, held in layers), lengths, room, **more
        )

    def pieces(self, row: int, length: int) -> list[Piece | None]:
        """A copy of what a row holds of its first `length` positions, per layer."""
        found = []
        for layer in self.kv:
            if layer is None:
                found.append(None)
                continue
            base = layer.part.bases[row]
            found.append(Piece([x[row, :, : length - base].clone() for x in layer.buffers], base))
        return found

    @property
    def windows(self) -> list[int | None]:
        """Per layer: how far it looks back (None: over everything; also for layers that hold nothing)."""
        return [None if layer is None else layer.part.window for layer in self.kv]

    # ---- what a forward needs -------------------------------------------------------------------------------------
    def plan(self, width: int, rows: list[int] | None = None, plain: bool = True) -> Plan:
        """Prepare a forward of `width` queries per row (for `rows`, or all): make room, set what the model will see.

        `plain`: rows of equal length may be shown to it as a plain cache, which needs no mask.
        """
        chosen = range(len(self.lengths)) if rows is None else rows
        starts = [self.lengths[b] for b in chosen]
        self._make_room(width)
        uniform = plain and starts.count(starts[0]) == len(starts)
        self.current = Plan(None if rows is None else torch.tensor(rows), starts, width, uniform)
        if self.states is not None:
            for i, layer in self.states.load(list(chosen)).items():
                self.layers[i] = layer
        return self.current

    def finish(self) -> None:
        """The planned forward has run: keep the states it has led to."""
        if self.states is not None:
            plan = self.current
            rows = range(len(plan.starts)) if plan.rows is None else plan.rows.tolist()
            self.states.save(list(rows), self.layers, [start + plan.width for start in plan.starts])

    def move(self, row: int, position: int, to: int) -> None:
        """What is held of a row as of `position` is what it holds of position `to` from now on."""
        for layer in self.kv:
            if layer is not None:
                base = layer.part.bases[row]
                for x in layer.buffers:
                    x[row, :, to - base] = x[row, :, position - base]

    def update(self, key_states, value_states, layer_idx: int, *args, **kwargs):
        return tuple(self.kv[layer_idx].update(self, key_states, value_states))

    def update_indexer(self, indexer_key_states, layer_idx: int):
        (keys,) = self.kv[layer_idx].update(self, indexer_key_states[:, None], first=2)
        return keys[:, 0]

    def _chosen_bases(self, part: Rolling) -> torch.Tensor:
        rows = self.current.rows
        return torch.tensor(part.bases if rows is None else [part.bases[b] for b in rows.tolist()])

    def slots(self, part: Rolling) -> torch.Tensor:
        """`[rows, width]`: where the current queries are written."""
        starts = torch.tensor(self.current.starts) - self._chosen_bases(part)
        return starts[:, None] + torch.arange(self.current.width)

    def gather_slots(self, part: Rolling, low: int, high: int) -> torch.Tensor:
        """`[rows, high - low]`: the slots of positions low … high-1."""
        return torch.arange(low, high) - self._chosen_bases(part)[:, None]

    def visible_slots(self, part: Rolling) -> int:
        """How many leading slots the current forward looks at."""
        return max(s - b for s, b in zip(self.current.starts, part.bases, strict=True)) + self.current.width

    def first_key(self, part: Rolling, i: int) -> int:
        """Position of the first key that the `i`-th row of the current forward is shown."""
        plan = self.current
        return part.visible_from(plan.starts[0]) if plan.uniform else part.bases[i]

    # ---- what transformers' own mask code asks for (uniform forwards) -----------------------------------------------
    def get_seq_length(self, layer_idx: int = 0) -> int:
        if layer_idx and self.kv[layer_idx] is None and self.is_dummy[layer_idx]:
            return 0
        return max(self.current.starts) if self.current else max(self.lengths)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        start = self.get_seq_length()
        layer = self.kv[layer_idx] or next((x for x in self.kv if x is not None), None)
        low = layer.part.visible_from(start) if layer is not None else 0
        return start + query_length - low, low

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    is_compileable = False
    is_initialized = True

    @property
    def is_sliding(self) -> list[bool]:
        return [layer is not None and layer.is_sliding for layer in self.kv]

    @property
    def is_linear(self) -> list[bool]:
        states = self.states.layers if self.states is not None else ()
        return [layer is None and i in states for i, layer in enumerate(self.kv)]

    @property
    def is_dummy(self) -> list[bool]:
        states = self.states.layers if self.states is not None else ()
        return [layer is None and i not in states for i, layer in enumerate(self.kv)]

    @property
    def batch_size(self) -> int:
        return len(self.current.starts) if self.current else len(self.lengths)

    # ---- room -------------------------------------------------------------------------------------------------------
    def _make_room(self, width: int) -> None:
        """Grow, or roll, so that every row can take `width` more positions."""
        for part in self.parts:
            layers = [layer for layer in self.kv if layer is not None and layer.part is part]
            capacity = layers[0].keys.shape[2]
            needed = max(length - base for length, base in zip(self.lengths, part.bases, strict=True)) + width
            if needed <= capacity:
                continue
            if part.window is not None:
                keep = part.window - 1 + self.margin
                shifts = [max(0, length - keep - base) for length, base in zip(self.lengths, part.bases, strict=True)]
                for layer in layers:
                    _roll(layer, shifts, self.lengths, part.bases)
                part.bases[:] = [base + shift for base, shift in zip(part.bases, shifts, strict=True)]
                needed = keep + width
            if needed > capacity:  # geometric growth: copies cost a constant per token
                for layer in layers:
                    layer.buffers = [_grown(x, _rounded(max(needed, capacity * 5 // 4))) for x in layer.buffers]

    def drop(self, row: int) -> None:
        """A row leaves: the last one takes its place."""
        last = len(self.lengths) - 1
        if row != last:
            for layer in self.kv:
                if layer is not None:
                    used = self.lengths[last] - layer.part.bases[last]
                    for x in layer.buffers:
                        x[row, :, :used] = x[last, :, :used]
        for values in (self.lengths, *(part.bases for part in self.parts)):
            values[row] = values[last]
            values.pop()
        if self.states is not None:
            self.states.drop(row)


def _roll(layer: RaggedLayer, shifts: list[int], lengths: list[int], bases: list[int]) -> None:
    for b, shift in enumerate(shifts):
        if shift:
            used = lengths[b] - bases[b]
            for x in layer.buffers:
                x[b, :, : used - shift] = x[b, :, shift:used].clone()


def _rounded(capacity: int) -> int:
    return -(-capacity // ROUND) * ROUND


def _grown(x: torch.Tensor, capacity: int) -> torch.Tensor:
    bigger = x.new_zeros(*x.shape[:2], capacity, x.shape[3])
    bigger[:, :, : x.shape[2]] = x
    return bigger
