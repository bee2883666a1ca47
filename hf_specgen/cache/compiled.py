"""Compiled steps (`compile=True`): forwards of a few fixed shapes, so that few graphs are compiled and none twice.

A graph sees tensors only: ids `[rows, width]`, where each row stands, and the whole buffers of the cache. Widths, rows
and capacities are rounded up to a few sizes; what lies beyond is masked. Each combination has a graph of its own, which
all calls of a model share. One row with up to 8 drafted tokens takes 6 graphs of the target at most (with any number,
9) and 2 or 3 of the draft; again so many for each power of two below the rows of a batch, and for each doubling of the
text.
"""

import contextlib
import contextvars
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
from transformers.cache_utils import Cache

from .. import compat
from . import attention
from .masks import ragged_masks
from .ragged import MARGIN, RaggedCache, Rolling

BACKEND = "inductor"
"""Of `torch.compile`."""
WIDTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32)
"""Positions per row. What is wider (a long text that a draft catches up with) is read uncompiled."""
LEAST_CAPACITY = 256
"""Slots of a buffer, at least; from here on they double."""

_asked: contextvars.ContextVar[bool] = contextvars.ContextVar("hf_specgen_compile", default=False)


@contextlib.contextmanager
def compiling(wanted: bool | None):
    """Inside this block (this thread only), forwards of readers are compiled where they can be, if that is wanted."""
    token = _asked.set(bool(wanted))
    try:
        yield
    finally:
        _asked.reset(token)


def wanted() -> bool:
    return _asked.get()


class Graph(NamedTuple):
    """The shape of a step.

    Attributes:
        rows, width: of the ids.
        kept: how many positions logits are computed for; None: all.
        capacities: slots per part of the cache (see `Rolling`).
    """

    rows: int
    width: int
    kept: int | None
    capacities: tuple[int, ...]


class Steps:
    """The compiled steps of one model.

    Attributes:
        graphs: by their shape.
        fault: why the model cannot be compiled, once that is known.
    """

    def __init__(self):
        self.graphs: dict[Graph, Callable] = {}
        self.fault: str | None = None


_steps: weakref.WeakKeyDictionary[torch.nn.Module, Steps] = weakref.WeakKeyDictionary()
"""Beside the models, not on them: they are copied and pickled as they were."""
_lock = threading.Lock()


def steps_of(model) -> Steps:
    with _lock:
        return _steps.setdefault(model, Steps())


def obstacle(reader) -> str | None:
    """Why a reader's forwards cannot be compiled; None if they can."""
    model = reader.model
    quantizer = getattr(model, "hf_quantizer", None)
    if reader.uncompiled:
        return reader.uncompiled
    if reader.cache.states is not None or None in reader.cache.kv:
        return "it has layers without keys and values of their own"
    if reader.collect:
        return "hidden states or attentions were asked for"
    if reader.shifts is not None:
        return "its position ids were given, or have several axes"
    if reader.own_inputs:
        return "its class prepares the inputs of each step itself"
    if not reader.ragged_together:
        return "its attention takes no ready-made masks for rows at different positions"
    if quantizer is not None and not quantizer.is_compileable:
        return f"torch.compile does not take its weights ({type(quantizer).__name__})"
    if getattr(model, "_device_mesh", None) is not None:
        return "it is spread over several processes"
    for name, module in model.named_modules():
        # A graph calls the hooks that were there when it was traced, and no others.
        if hasattr(module, "_hf_hook") or module._forward_hooks or module._forward_pre_hooks:
            return f"there are hooks on it ({name or type(module).__name__})"
    return steps_of(model).fault


class Compiled:
    """A reader's compiled forwards.

    Args:
        model: of the reader. Its buffers are the reader's, grown to whole sizes.
    """

    def __init__(self, model):
        self.steps = steps_of(model)
        self.on_gpu = model.device.type == "cuda"
        self.whole: list[torch.Tensor] = []  # the cache's buffers
        self.shown: list[torch.Tensor] = []  # their rows that the graph sees

    @classmethod
    def of(cls, reader) -> "Compiled | None":
        """None, with a warning, where they cannot be compiled."""
        if why := obstacle(reader):
            _warn(reader.model, why)
            return None
        return cls(reader.model)

    def read(self, reader, ids: torch.Tensor, counts: list[int], keep: int | None) -> torch.Tensor | None:
        """As `Reader.read`, for all rows; `lengths` are left to the caller. None: read it uncompiled."""
        count, given = ids.shape
        rows = _rows_of(count, len(reader.cache.kv[0].keys))
        width = next((w for w in WIDTHS if w >= given and rows * w not in reader.slow_counts), None)
        if width is None or self.steps.fault:
            return None
        reader.cache.plan(width)
        graph = Graph(
            rows,
            width,
            kept=keep if keep is not None and keep < width and reader.keeps_logits else None,
            capacities=tuple(_fitted(reader.cache, part) for part in reader.cache.parts),
        )
        kept = None if graph.kept is None else torch.arange(given - keep, given, device=ids.device)
        inputs = (_filled(ids, rows, width), _places(reader.cache, counts, rows, ids.device), kept)
        try:
            with attention.folding():
                logits = self._step(reader, graph)(reader.model, *inputs, self._buffers(reader.cache, rows))
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            self.steps.fault = f"torch.compile fails on it ({type(error).__name__}: {str(error).splitlines()[0]})"
            _warn(reader.model, self.steps.fault)
            return None
        reader.forwards += 1
        logits = logits[:count] if kept is not None else logits[:count, :given]
        return logits.clone() if self.on_gpu else logits  # the next replay writes to the same memory

    def _step(self, reader, graph: Graph) -> Callable:
        with _lock:
            if graph not in self.steps.graphs:
                options = {"guard_filter_fn": _lasting} | ({"triton.cudagraphs": True} if self.on_gpu else {})
                step = _apart(_step_for(reader))
                self.steps.graphs[graph] = torch.compile(
                    step, backend=BACKEND, fullgraph=True, dynamic=False, options=options
                )
        if self.on_gpu:
            torch.compiler.cudagraph_mark_step_begin()
        return self.steps.graphs[graph]

    def _buffers(self, cache: RaggedCache, rows: int) -> list[torch.Tensor]:
        """The first rows of all buffers: the same tensors as long as they are the same memory, for CUDA graphs."""
        whole = [x for layer in cache.kv for x in layer.buffers]
        same = len(self.shown) == len(whole) and len(self.shown[0]) == rows
        if not same or any(x is not y for x, y in zip(whole, self.whole, strict=True)):
            self.whole, self.shown = whole, [x[:rows] for x in whole]
            for x in self.shown if self.on_gpu else ():
                torch._dynamo.mark_static_address(x)
        return self.shown


def _warn(model, why: str) -> None:
    warnings.warn(f"compile=True: {type(model).__name__} decodes uncompiled: {why}.", stacklevel=2)


def _rows_of(count: int, room: int) -> int:
    """How many rows a graph has for `count` of `room`: all, or a power of two. The rows beyond are those that left."""
    return min(1 << (count - 1).bit_length(), room)


def _filled(ids: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    filled = ids.new_zeros(rows, width)
    filled[: len(ids), : ids.shape[1]] = ids
    return filled


def _places(cache: RaggedCache, counts: list[int], rows: int, device: torch.device) -> torch.Tensor:
    """int64 `[rows, 2 + parts]`: each row's first position, the number of its positions but one, and per part of the
    cache the position of its first slot. In one tensor, for one copy to the device."""
    bases = [part.bases for part in cache.parts]
    places = [list(row) for row in zip(cache.lengths, [max(n, 1) - 1 for n in counts], *bases, strict=True)]
    return torch.tensor(places + [[0] * (2 + len(bases))] * (rows - len(places)), device=device)


def _fitted(cache: RaggedCache, part: Rolling) -> int:
    """Grow the buffers of a part to a whole size, and say to which."""
    layers = [layer for layer in cache.kv if layer.part is part]
    present = layers[0].keys.shape[2]
    capacity = max(LEAST_CAPACITY, 1 << (present - 1).bit_length())
    if part.window is not None and present <= (most := part.window + max(part.window // 2, 4 * MARGIN)):
        capacity = min(capacity, most)
    if capacity > present:
        for layer in layers:
            layer.buffers = [torch.nn.functional.pad(x, (0, 0, 0, capacity - present)) for x in layer.buffers]
    return capacity


def _apart(function: Callable) -> Callable:
    """A copy with code of its own: torch counts recompilations, and looks for graphs, by code object."""
    return types.FunctionType(
        function.__code__.replace(), function.__globals__, function.__name__, closure=function.__closure__
    )


def _lasting(guards) -> list[bool]:
    """Which guards a graph keeps: transformers' list of model classes grows whenever one is first made, and every graph
    would be compiled again."""
    return ["_CAN_RECORD_REGISTRY" not in guard.name for guard in guards]


class _StepCache(Cache):
    """What a model sees in a compiled step: it writes at each row's slots, and is shown the whole buffers.

    Args:
        buffers: `[rows, heads, capacity, head_dim]`, two per layer.
        parts: with bases `[rows]`.
        part_of: per layer, the index of its part.
        starts: int64 `[rows]`: each row's first position.
        width: positions per row.
    """

    def __init__(self, buffers: list[torch.Tensor], parts: list[Rolling], part_of: tuple, starts, width: int):
        self.buffers, self.parts, self.part_of, self.starts = buffers, parts, part_of, starts
        self.lengths = starts
        self.rows = torch.arange(len(starts), device=starts.device)[:, None]
        reach = torch.arange(width, device=starts.device)
        self.slots = [(starts - part.bases)[:, None] + reach for part in parts]

    def update(self, key_states, value_states, layer_idx: int, *args, **kwargs):
        found = self.buffers[2 * layer_idx : 2 * layer_idx + 2]
        for x, new in zip(found, (key_states, value_states), strict=True):
            x[self.rows, :, self.slots[self.part_of[layer_idx]]] = new.transpose(1, 2).to(x.dtype)
        return tuple(found)

    def visible_slots(self, part: Rolling) -> int:
        layer = self.part_of.index(self.parts.index(part))
        return self.buffers[2 * layer].shape[2]

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor:
        return self.starts.max()

    @property
    def is_sliding(self) -> list[bool]:
        return [self.parts[i].window is not None for i in self.part_of]

    @property
    def is_linear(self) -> list[bool]:
        return [False] * len(self.part_of)

    is_dummy = is_linear


def _step_for(reader) -> Callable:
    """A forward of tensors only, for graphs of this reader's model."""
    config, windows = reader.config, tuple(part.window for part in reader.cache.parts)
    part_of = tuple(reader.cache.parts.index(layer.part) for layer in reader.cache.kv)
    ids_name, cache_name, keeps_logits = reader.ids_name, compat.cache_argument(reader.model), reader.keeps_logits

    def step(model, ids, places, kept, buffers):
        starts, last, *bases = places.unbind(1)
        positions = starts[:, None] + torch.minimum(torch.arange(ids.shape[1], device=ids.device), last[:, None])
        parts = [Rolling(window, base) for window, base in zip(windows, bases, strict=True)]
        cache = _StepCache(buffers, parts, part_of, starts, ids.shape[1])
        inputs = {ids_name: ids, cache_name: cache, "use_cache": True, "position_ids": positions}
        inputs["attention_mask"] = ragged_masks(config, cache, positions, model.dtype)
        if keeps_logits:
            inputs["logits_to_keep"] = 0 if kept is None else kept
        return model(**inputs, return_dict=True).logits

    return step
