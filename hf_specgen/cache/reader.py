"""A model together with what it has read: prefill as plain `generate` does it, then ragged forwards.

Every forward of the decoding loop, target's and draft's, goes through `Reader.read`.
"""

import functools

import torch
from transformers.cache_utils import DynamicCache

from .. import compat
from . import attention, probe
from .masks import RAGGED_IMPLEMENTATIONS, ragged_masks
from .ragged import Plan, RaggedCache
from .stock import adopt


def device_of(model, otherwise: torch.device) -> torch.device:
    """Where a model takes its ids (offloaded models report `meta`; their hooks move the ids themselves)."""
    embeddings = model.get_input_embeddings()
    device = embeddings.weight.device if embeddings is not None else otherwise
    return otherwise if device.type == "meta" else device


def read_prompt(
    model, ids: torch.Tensor, mask: torch.Tensor | None, keep_logits: int = 1
) -> tuple[torch.Tensor, DynamicCache]:
    """Prefill of a draft: `[rows, columns]` left-padded ids (mask None: no padding) -> last logits, cache."""
    cache = DynamicCache(config=compat.text_config(model))
    known = compat.forward_parameters(type(model))
    inputs = {"input_ids": ids, compat.cache_argument(model): cache, "use_cache": True}
    if mask is not None:
        inputs["attention_mask"] = mask
        if "position_ids" in known:
            inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    if "logits_to_keep" in known:
        inputs["logits_to_keep"] = keep_logits
    return model(**inputs, return_dict=True).logits[:, -keep_logits:], cache


class Reader:
    """One model and its cache. `lengths[b]` = how many tokens of row b it has read and still holds."""

    def __init__(self, model, cache: RaggedCache, device: torch.device):
        self.model = model
        self.cache = cache
        self.device = device
        self.config = compat.text_config(model)
        known = compat.forward_parameters(type(model))
        self.takes_positions = "position_ids" in known
        self.keeps_logits = "logits_to_keep" in known
        self.forwards = 0
        self.context = compat.context_length(model)

    @classmethod
    def from_prefill(cls, model, cache: DynamicCache, pads: list[int], room: int, device: torch.device) -> "Reader":
        return cls(model, adopt(cache, pads, room), device)

    @functools.cached_property
    def ragged_together(self) -> bool:
        """Whether rows at different positions may share a forward; asked when that first happens."""
        masks = self.takes_positions and self.config._attn_implementation in RAGGED_IMPLEMENTATIONS
        return masks and probe.understands_ragged_masks(self)

    @property
    def lengths(self) -> list[int]:
        return self.cache.lengths

    def read(self, ids: torch.Tensor, counts: list[int], keep: int | None = None) -> torch.Tensor:
        """Read `counts[b]` tokens of each row in one go.

        Args:
            ids: `[rows, width]`; what lies beyond a row's count is padding.
            counts: tokens to read per row, at most `width`.
            keep: how many positions to return logits for, from the right (None: all).

        Returns:
            Logits `[rows, keep or width, vocabulary]`, in the model's dtype. The padding's are meaningless.
        """
        lengths = self.lengths
        if lengths.count(lengths[0]) == len(lengths) or self.ragged_together:
            logits = self._forward(ids, counts, None, keep)
        else:
            logits = self._in_groups(ids, counts, keep)
        self.cache.lengths[:] = [length + count for length, count in zip(lengths, counts, strict=True)]
        return logits if keep is None else logits[:, -keep:]

    def _in_groups(self, ids: torch.Tensor, counts: list[int], keep: int | None) -> torch.Tensor:
        """One forward per distinct length: exact for every architecture."""
        groups: dict[int, list[int]] = {}
        for b, length in enumerate(self.lengths):
            groups.setdefault(length, []).append(b)
        logits = None
        for rows in groups.values():
            if not any(counts[b] for b in rows):
                continue
            part = self._forward(ids[rows], [counts[b] for b in rows], rows, keep)
            if logits is None:
                logits = part.new_zeros(len(counts), *part.shape[1:])
            logits[rows] = part
        return logits

    def _forward(self, ids: torch.Tensor, counts: list[int], rows: list[int] | None, keep: int | None) -> torch.Tensor:
        plan = self.cache.plan(ids.shape[1], rows)
        inputs = {"input_ids": ids, compat.cache_argument(self.model): self.cache, "use_cache": True}
        if self.takes_positions:
            inputs["position_ids"] = positions = _positions(plan, counts, ids.device)
        if not plan.uniform:
            inputs["attention_mask"] = ragged_masks(self.config, self.cache, positions, self.model.dtype)
        if self.keeps_logits:
            inputs["logits_to_keep"] = keep or 0
        self.forwards += 1
        with attention.folding():
            return self.model(**inputs, return_dict=True).logits

    def roll_back(self, row: int, length: int) -> None:
        """Forget what row `row` has read beyond `length` tokens."""
        self.cache.lengths[row] = length

    def drop(self, row: int) -> None:
        self.cache.drop(row)


def _positions(plan: Plan, counts: list[int], device: torch.device) -> torch.Tensor:
    """`[rows, width]`. Padding repeats a row's last position: beyond it there may be none left in the model's table."""
    if plan.uniform and min(counts) == plan.width:
        return torch.arange(plan.starts[0], plan.starts[0] + plan.width, device=device).expand(len(counts), -1)
    starts, ends = torch.tensor(plan.starts)[:, None], torch.tensor(counts).clamp(min=1)[:, None] - 1
    return (starts + torch.minimum(torch.arange(plan.width), ends)).to(device)
