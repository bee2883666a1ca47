"""What a forward costs: a first estimate from what it has to read, then what the clock says."""

from __future__ import annotations

import statistics
from collections import deque

import torch

from .. import compat
from ..checkpoints.memory import active_experts

BANDWIDTH = {"cuda": 1.5e12, "xpu": 0.8e12, "mps": 0.2e12, "cpu": 20e9}
"""Bytes of weights read per second, roughly: only ratios of two models' estimates are used."""
LAYER_SECONDS = {"cuda": 3.5e-4, "xpu": 5e-4, "mps": 5e-4, "cpu": 2.5e-4}
"""What a layer costs besides: Python and launches. On a GPU a small draft in eager mode costs little else."""
POSITION_COST = {"cuda": 0.01, "xpu": 0.01, "mps": 0.03, "cpu": 0.06}
"""One more position in a forward, as a part of a forward of one: decoding is bound by the reading of weights, the more
so the more a device can compute. On the CPU (measured: bfloat16, AMD Zen 4) 0.03 to 0.1."""
SLOW_CPU = {torch.float32: (0.02, 0.3), torch.float16: (0.9, 0.0)}
"""On a CPU in other dtypes (the same machine): one more position, and what any forward of several costs besides: these
take another kernel in float32 (see `cache.widths`), and go one by one in float16."""
KEPT = 7
"""Measurements of a kind that are kept: their median bears three disturbed ones."""
DISTURBED = 2.5
"""What takes so many times as long as expected is taken for a disturbance, until it happens again."""
PRIOR = 8.0
"""Weight of the expected slope, in measurements one position apart."""


def position_costs(model) -> tuple[float, float]:
    """One more position, and any second one besides, as parts of a forward of one position."""
    kind = model.device.type
    if kind == "cpu" and model.dtype in SLOW_CPU and not getattr(model, "is_quantized", False):
        return SLOW_CPU[model.dtype]
    return POSITION_COST.get(kind, POSITION_COST["cpu"]), 0.0


def bytes_read(model) -> int:
    """What one forward of one position reads of the weights: all but the input embeddings (unless they are the head
    too) and the experts that are not asked."""
    config = compat.text_config(model)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    skipped = None
    if embedding is not None and hasattr(embedding, "weight") and getattr(head, "weight", None) is not embedding.weight:
        skipped = embedding.weight
    share = active_experts(config.to_dict())
    found = 0.0
    for tensors in (model.named_parameters(), model.named_buffers()):
        for name, tensor in tensors:
            if tensor is not skipped:
                size = tensor.numel() * tensor.element_size()
                found += size * share if ".experts." in name else size
    return int(found)


def expected_step(model) -> float:
    """Estimated seconds of a forward of one position. No clock is looked at: equal models give equal estimates."""
    kind = model.device.type if model.device.type in BANDWIDTH else "cpu"
    layers = getattr(compat.text_config(model), "num_hidden_layers", None) or 1
    return bytes_read(model) / BANDWIDTH[kind] + layers * LAYER_SECONDS[kind]


class Costs:
    """Seconds of forwards, by rows and width.

    Positions are taken to cost alike: `level · (1 + slope · (rows · width − 1))`, fitted to what was measured at the
    number of rows nearest to the one asked, so that one measurement tells something of all the others; `second` is
    what any forward of more than one position costs besides, as a part of one. Devices work in steps: where a width
    itself was measured, its median counts beside the fit.
    """

    def __init__(self, target_step: float, draft_step: float | None, position_cost: float, second: float = 0.0):
        self.target_step, self.draft_step = target_step, draft_step
        self.position_cost, self.second = position_cost, second
        self.measured: dict[tuple[int, int], deque[float]] = {}
        self.drafts: dict[int, deque[float]] = {}  # by rows: parts of a target step of that moment
        self._medians: dict[tuple[int, int], float] = {}
        self._doubts: dict[tuple[int, int], bool] = {}  # by rows and width; the draft's at width 0
        self._fits: dict[int, tuple[float, float]] = {}
        self._targets: dict[tuple[int, int], float] = {}

    def knows(self, rows: int, width: int) -> bool:
        return (rows, width) in self.measured

    @property
    def usual_rows(self) -> int:
        """How many rows most of the measured forwards had; 1 if none was measured."""
        seen: dict[int, int] = {}
        for (rows, _), times in self.measured.items():
            seen[rows] = seen.get(rows, 0) + len(times)
        return max(seen, key=lambda rows: (seen[rows], -rows), default=1)

    def target(self, rows: int, width: int) -> float:
        """One forward of the target: `width` positions in each of `rows` rows."""
        if (rows, width) not in self._targets:
            level, slope = self._fit(rows)
            found = (level + slope * (rows * width - 1)) * self._several(rows * width)
            if (rows, width) in self._medians:
                weight = len(self.measured[rows, width])
                found = (self._medians[rows, width] * weight + found) / (weight + 1)
            self._targets[rows, width] = found
        return self._targets[rows, width]

    def position(self, rows: int) -> float:
        """One more position in each of `rows` rows."""
        return self._fit(rows)[1] * self._several(2) * rows

    def _several(self, positions: int) -> float:
        return 1 + self.second if positions > 1 else 1.0

    def draft(self, rows: int) -> float:
        """One forward of the draft: one position in each of `rows` rows."""
        if not self.drafts:  # what the target shows of the machine holds for the draft too
            return (self.draft_step or self.target_step / 10) / self.target_step * self.target(rows, 1)
        near = min(self.drafts, key=lambda known: abs(known - rows))
        return statistics.median(self.drafts[near]) * self.target(near, 1) * self._shape(rows) / self._shape(near)

    def observe_target(self, rows: int, width: int, seconds: float) -> None:
        known = any(seen == rows for seen, _ in self.measured)  # of other numbers of rows, little is known
        expected = self.target(rows, width) if known else seconds
        if self._disturbed((rows, width), seconds, expected):
            return
        (only,) = self._medians.values() if len(self._medians) == 1 else (0.0,)
        if seconds * DISTURBED < only:  # what came first was disturbed: memory, kernels, caches
            self.measured.clear()
            self._medians.clear()
        seen = self.measured.setdefault((rows, width), deque(maxlen=KEPT))
        if seconds > expected * DISTURBED:
            seen.clear()
        seen.append(seconds)
        self._medians[rows, width] = statistics.median(seen)
        self._fits.clear()
        self._targets.clear()

    def observe_draft(self, rows: int, seconds: float, width: int, target: float) -> None:
        """Count a forward of the draft in a round whose target forward, of `width` positions, took `target`: set in
        relation to it, a disturbance that slows down a whole round does not count against the draft."""
        part = seconds / (target * self.target(rows, 1) / self.target(rows, width))
        expected = self.draft(rows) / self.target(rows, 1)
        if self._disturbed((rows, 0), part, expected):
            return
        seen = self.drafts.setdefault(rows, deque(maxlen=KEPT))
        if part > expected * DISTURBED:
            seen.clear()
        seen.append(part)

    def _disturbed(self, what: tuple[int, int], seen: float, expected: float) -> bool:
        """Whether a measurement is to be left out: far above what is expected, and not for the second time."""
        far = seen > expected * DISTURBED
        first = far and not self._doubts.get(what, False)
        self._doubts[what] = first
        return first

    def _shape(self, rows: int) -> float:
        return 1 + self.position_cost * (rows - 1)

    def _fit(self, rows: int) -> tuple[float, float]:
        """Seconds of one position, and of each further one, near so many rows: least squares through the medians of
        each width and a line of the slope to be expected, as heavy as `PRIOR` measurements."""
        if rows not in self._fits:
            self._fits[rows] = self._fitted(rows)
        return self._fits[rows]

    def _fitted(self, rows: int) -> tuple[float, float]:
        if not self._medians:
            return self.target_step, self.target_step * self.position_cost
        near = min((known for known, _ in self._medians), key=lambda known: abs(known - rows))
        points = [
            (near * width - 1, seconds / self._several(near * width), float(len(self.measured[near, width])))
            for (known, width), seconds in self._medians.items()
            if known == near
        ]
        total = sum(w for _, _, w in points)
        x_mean, y_mean = sum(x * w for x, _, w in points) / total, sum(y * w for _, y, w in points) / total
        expected = y_mean / (1 + self.position_cost * x_mean) * self.position_cost
        spread = sum(w * (x - x_mean) ** 2 for x, _, w in points)
        prior = PRIOR * near**2
        slope = (sum(w * (x - x_mean) * (y - y_mean) for x, y, w in points) + prior * expected) / (spread + prior)
        slope = max(slope, 0.0)
        return max(y_mean - slope * x_mean, y_mean / 10), slope

    def to_dict(self) -> dict:
        return {
            "target": [[*key, seconds] for key, seconds in sorted(self._medians.items())],
            "draft": [
                [rows, statistics.median(seen) * self.target(rows, 1)] for rows, seen in sorted(self.drafts.items())
            ],
        }

    def take(self, data: dict) -> None:
        """Start from what `to_dict` has written."""
        for rows, width, seconds in data["target"]:
            self.measured[int(rows), int(width)] = deque([float(seconds)], maxlen=KEPT)
            self._medians[int(rows), int(width)] = float(seconds)
        for rows, seconds in data["draft"]:
            self.drafts[int(rows)] = deque([float(seconds) / self.target(rows, 1)], maxlen=KEPT)
