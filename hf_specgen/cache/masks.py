"""Ready-made attention masks for forwards in which every row is at another position.

transformers takes a 4-D mask as it is; models whose layers differ (full, sliding, chunked) take one per layer type,
in a dict: the same two forms that `generate` itself hands over with a static cache.
"""

import torch

from .ragged import RaggedCache, Rolling

RAGGED_IMPLEMENTATIONS = ("sdpa", "eager")
"""Attention back ends that take a 4-D mask. Others (flash, flex) run rows in groups of equal length."""


def ragged_masks(
    config, cache: RaggedCache, positions: torch.Tensor, dtype: torch.dtype, places: torch.Tensor | None = None
):
    """Masks of the forward that `cache.current` describes.

    Args:
        config: the text config of the model.
        positions: `[rows, width]`, position of each query.
        dtype: of the model, for the additive masks that eager attention wants.
        places: `[rows, width]`, where a query's key is held, if some of them stand beside the text (see `Reader.read`):
            the position of a later slot. Each sees itself and what is held of the positions before its own.

    Returns:
        A mask `[rows, 1, width, slots]` (bool for sdpa: True = attend; additive for eager), or a dict by layer type.
    """
    eager = config._attn_implementation == "eager"
    by_type = getattr(config, "layer_types", None)
    kinds = set(by_type) if by_type is not None else {_only_kind(config)}
    masks = {kind: _mask(config, kind, cache, positions, places) for kind in kinds}
    if eager:
        masks = {kind: _additive(mask, dtype) for kind, mask in masks.items()}
    return masks if by_type is not None else masks.popitem()[1]


def _only_kind(config) -> str:
    if getattr(config, "sliding_window", None) is not None:
        return "sliding_attention"
    return "chunked_attention" if getattr(config, "attention_chunk_size", None) is not None else "full_attention"


def _mask(config, kind: str, cache: RaggedCache, positions: torch.Tensor, places: torch.Tensor | None) -> torch.Tensor:
    window = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}.get(kind)
    window = getattr(config, window) if window else None
    part = next((p for p in cache.parts if p.window == window), None) or Rolling(None, [0] * len(cache.lengths))
    bases = torch.as_tensor(part.bases, device=positions.device)[:, None, None]
    keys = torch.arange(cache.visible_slots(part), device=positions.device) + bases  # [rows, 1, slots]: positions held
    queries = positions[:, :, None]
    mask = keys <= queries if places is None else keys < queries
    if kind == "sliding_attention":
        mask &= keys > queries - window
    elif kind == "chunked_attention":
        mask &= keys // window == queries // window
    if places is not None:
        mask |= keys == places[:, :, None]
    return mask[:, None]


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)
