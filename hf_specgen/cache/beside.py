"""What a forward gets beside tokens, positions and cache: token types, encoder outputs, a model's own arguments.

Plain decoding keeps them in `model_kwargs` and hands them to every step; here each forward gets the rows it decodes.
"""

import torch
from transformers.cache_utils import Cache, DynamicCache
from transformers.utils import ModelOutput

TOKEN_TYPES = {"token_type_ids": "last", "mm_token_type_ids": "zero", "moe_mm_token_type_ids": "last"}
"""Inputs with one value per token, and what plain decoding gives new tokens: the last one's value, or zero (text)."""


def merged_cross(caches: list[Cache], groups: list[list[int]]) -> DynamicCache | None:
    """The encoder's keys and values in the filled caches of groups of rows, in the order of the rows; or None."""
    crosses = [getattr(cache, "cross_attention_cache", None) for cache in caches]
    if crosses[0] is None or len(crosses) == 1:
        return crosses[0]
    where = torch.tensor([b for group in groups for b in group]).argsort()
    merged = DynamicCache()
    for i, layers in enumerate(zip(*(cross.layers for cross in crosses), strict=True)):
        merged.update(*(torch.cat([getattr(x, name) for x in layers])[where] for name in ("keys", "values")), i)
    return merged


class Beside:
    """Inputs of one model, by row of the batch.

    Args:
        inputs: as `generate` keeps them. Tensors, and tensors in model outputs, whose first dimension is the batch's
            belong to its rows; anything else goes to every forward as it is.
        rows: of the batch.
        cross: keys and values of the encoder's output, which every decoder layer has made in its first forward.
    """

    def __init__(self, inputs: dict, rows: int, cross: DynamicCache | None = None):
        self.rows, self.cross = rows, cross
        self.fill = {}
        for name, rule in TOKEN_TYPES.items():
            if (given := inputs.get(name)) is not None:
                self.fill[name] = given[:, -1] if rule == "last" else torch.zeros_like(given[:, -1])
        self.inputs = {k: v for k, v in inputs.items() if k not in TOKEN_TYPES and v is not None}

    def __bool__(self) -> bool:
        return bool(self.fill or self.inputs)

    def of(self, rows: list[int], width: int) -> dict:
        """The inputs of a forward of `width` tokens for each of these rows (indices in the batch)."""
        found = {name: self.pick(value, rows) for name, value in self.inputs.items()}
        for name, values in self.fill.items():
            found[name] = self.pick(values, rows)[:, None].expand(-1, width)
        return found

    def cross_of(self, rows: list[int]) -> DynamicCache:
        """The encoder's keys and values for these rows."""
        if rows == list(range(self.rows)):
            return self.cross
        picked = DynamicCache()
        for i, layer in enumerate(self.cross.layers):
            picked.update(self.pick(layer.keys, rows), self.pick(layer.values, rows), i)
        return picked

    def pick(self, value, rows: list[int]):
        """The part of an input that belongs to these rows."""
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == self.rows:
            if rows == list(range(self.rows)):
                return value
            return value[torch.tensor(rows, device=value.device)]
        if isinstance(value, ModelOutput):
            return type(value)(**{name: self.pick(x, rows) for name, x in value.items()})
        return value
