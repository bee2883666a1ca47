"""Grouped-query attention without repeated keys and values, inside our own forwards only.

With several queries and a mask, transformers' sdpa path copies K and V once per query head, in every layer and step;
with a single query it leaves the groups to the kernel, whose CPU path then reads K and V once per query head.
Folding a group's heads into the query axis instead reads each key once, `[B, H, Q, D] -> [B, H_kv, H/H_kv * Q, D]`,
the mask repeated likewise. Same kernel, same numbers. (One query, 12 heads over 2 and 4096 positions in bfloat16 on a
Zen 4: 5.2 ms a layer as it is, 0.4 ms folded.)
"""

import contextlib
import contextvars

import torch
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_folded_masks: contextvars.ContextVar[dict | None] = contextvars.ContextVar("hf_specgen_folded_masks", default=None)


@contextlib.contextmanager
def folding():
    """Inside this block (this thread only), sdpa attention folds query groups."""
    _install()
    token = _folded_masks.set({})
    try:
        yield
    finally:
        _folded_masks.reset(token)


def _install() -> None:
    """Put ourselves in front of the registered sdpa function, once. Outside `folding()` it only passes calls on."""
    stock = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if hasattr(stock, "_hf_specgen_folds"):
        return

    def sdpa(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
        masks = _masks_of_this_forward()
        groups = query.shape[1] // key.shape[1]
        unfit = query.shape[2] > 1 if attention_mask is None else attention_mask.shape[1] != 1
        if (
            masks is None
            or groups == 1
            or unfit
            or dropout
            or module.training
            or kwargs.get("position_bias") is not None
            or kwargs.get("softcap")
        ):
            return stock(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
        return _folded(masks, groups, query, key, value, attention_mask, scaling)

    sdpa._hf_specgen_folds = True
    AttentionInterface.register("sdpa", sdpa)


@torch.compiler.assume_constant_result  # asked once per graph: a ContextVar would break it in every layer
def _inside() -> bool:
    return _folded_masks.get() is not None


def _masks_of_this_forward() -> dict | None:
    """Where folded masks are kept, inside `folding()`; None outside. In a graph, while it is traced."""
    if torch.compiler.is_compiling():
        return {} if _inside() else None
    return _folded_masks.get()


def _folded(masks: dict, groups: int, query, key, value, mask, scaling) -> tuple[torch.Tensor, None]:
    batch, heads, width, dim = query.shape
    kv_heads = heads // groups
    if mask is not None:  # a single query without one sees everything
        mask = _folded_mask(masks, groups, mask, query.dtype)
    out = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, kv_heads, groups * width, dim), key, value, attn_mask=mask, scale=scaling
    )
    return out.reshape(batch, heads, width, -1).transpose(1, 2).contiguous(), None


def _folded_mask(masks: dict, groups: int, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if id(mask) not in masks:  # one mask serves all layers; kept alive beside its folded form so that ids stay unique
        expanded = mask[:, :, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)
        if expanded.dtype == torch.bool:
            expanded = torch.zeros_like(expanded, dtype=dtype).masked_fill_(~expanded, float("-inf"))
        masks[id(mask)] = (mask, expanded)
    return masks[id(mask)][1]
