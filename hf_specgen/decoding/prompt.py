"""The prompts of a call: which ids the rows have, where they lie in the cache, at which positions they go on."""

from dataclasses import dataclass

import torch

from .. import compat
from ..cache.stock import Layout, columns_held
from ..errors import SpecUnsupportedError

PER_COLUMN = ("inputs_embeds", "token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids")


@dataclass
class Prompt:
    """The prompts of a call.

    Attributes:
        ids: int64 `[rows, columns]`, padding on the left; no columns where only embeddings were given.
        rows: the rows' own ids, int64 `[length]` each.
        layout: where the rows' texts lie in the columns of the cache after the prefill.
        unseen: per row, positions in front of its ids of which the caller gave none (embeddings, an earlier turn).
        shifts: see `Reader`.
    """

    ids: torch.Tensor
    rows: list[torch.Tensor]
    layout: Layout
    unseen: list[int]
    shifts: torch.Tensor | None = None

    @property
    def masked(self) -> list[int]:
        """Per row, how many of its columns in `ids` hold no text."""
        return [self.ids.shape[1] - len(row) for row in self.rows]


def mask_name(model) -> str:
    return "decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask"


def later_inputs(model, model_kwargs: dict) -> dict:
    """What `generate` hands to every forward after the first, beside text, positions and cache."""
    own = {mask_name(model), "position_ids", "inputs_embeds", "decoder_input_ids", "use_cache", "logits_to_keep"}
    own |= {"output_attentions", "output_hidden_states", *compat.CACHE_NAMES, *compat.PREFILL_ONLY}
    return {k: v for k, v in model_kwargs.items() if k not in own and v is not None}


def media_of(model, model_kwargs: dict) -> list[str]:
    """The names of the images, sounds and videos that a decoder reads among its text (an encoder has read its own).

    transformers gives an empty dict where there are none.
    """
    if model.config.is_encoder_decoder:
        return []
    given = {name: model_kwargs.get(name) for name in compat.PREFILL_ONLY}
    return [name for name, x in given.items() if x is not None and not (isinstance(x, dict) and not x)]


def prompt_of_call(model, ids: torch.Tensor, config, model_kwargs: dict) -> Prompt:
    """The prompts among `generate`'s prepared inputs; rows padded on the right are moved, also in `model_kwargs`."""
    name = mask_name(model)
    ids = _pack_left(ids, name, model_kwargs)
    mask, embeds = model_kwargs.get(name), model_kwargs.get("inputs_embeds")
    cache = compat.pop_cache(dict(model_kwargs))
    total = ids.shape[1]
    if mask is not None:
        total = mask.shape[1]
    elif embeds is not None and not ids.shape[1] and not model.config.is_encoder_decoder:
        total = embeds.shape[1]
    elif cache is not None and columns_held(cache):
        total = max(total, getattr(config, "_mask_length", 0))
    layout = Layout(mask, len(ids), total)
    before = total - ids.shape[1]  # columns without ids
    seen = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask[:, before:].bool().to(ids.device)
    rows = [row[held] for row, held in zip(ids, seen, strict=True)]
    unseen = [length - len(row) for length, row in zip(layout.lengths, rows, strict=True)]
    return Prompt(ids, rows, layout, unseen, _shifts(model, model_kwargs, layout))


def _pack_left(ids: torch.Tensor, mask_name: str, model_kwargs: dict) -> torch.Tensor:
    """Padding on the right goes to the left, as plain decoding wants it; padding between tokens stays."""
    mask = model_kwargs.get(mask_name)
    if mask is None or bool(mask[:, -1].all()):
        return ids
    columns = mask.shape[1]
    if (cache := compat.pop_cache(dict(model_kwargs))) is not None and columns_held(cache):
        raise SpecUnsupportedError(
            "A cache that was handed in and a mask that ends with padding: what is moved to the left would leave the "
            "cache's columns behind. Pad on the left."
        )
    if ids.shape[1] not in (0, columns):
        raise SpecUnsupportedError(
            f"The mask ends with padding and has {columns} columns, input_ids {ids.shape[1]}. Pass ids for all of them."
        )
    ends = columns - mask.flip(1).long().argmax(1)  # one past each row's last token
    order = (torch.arange(columns, device=mask.device) + ends[:, None]) % columns
    for name in (mask_name, *PER_COLUMN):
        if (x := model_kwargs.get(name)) is not None and x.shape[1] == columns:
            model_kwargs[name] = torch.stack([row[o] for row, o in zip(x, order.to(x.device), strict=True)])
    if (positions := model_kwargs.get("position_ids")) is not None:
        places = order.to(positions.device).expand(*positions.shape[:-2], -1, -1)
        positions = positions.expand(*positions.shape[:-2], len(mask), -1)
        model_kwargs["position_ids"] = positions.gather(-1, places)
    return ids.gather(1, order.to(ids.device)) if ids.shape[1] else ids


def _shifts(model, model_kwargs: dict, layout: Layout) -> torch.Tensor | None:
    """How far position ids go on from the place in the cache: plain decoding adds one to the prompt's last for each
    token. None: not at all."""
    positions = model_kwargs.get("position_ids")
    if positions is None or model.config.is_encoder_decoder:
        return None
    last = positions[..., -1].expand(*positions.shape[:-2], len(layout.lengths)).cpu()
    shifts = last + 1 - torch.tensor(layout.lengths)
    return shifts if shifts.any() else None
