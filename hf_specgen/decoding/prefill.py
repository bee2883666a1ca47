"""The target reads the prompts: in one forward, as plain decoding does, or in groups of equal length."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput

from .. import compat
from ..cache import probe
from ..cache.beside import Beside, merged_cross
from ..cache.reader import Reader, device_of, groups_of, new_cache
from ..cache.stock import Layout, columns_held
from ..errors import SpecUnsupportedError
from ..session import Kept, read_rest, resume
from .prompt import PER_COLUMN, Prompt, later_inputs, mask_name, media_of


@dataclass
class Prefill:
    """`logits`: float32 `[rows, vocabulary]` after the prompts. `outputs`: per name, what plain keeps of this step."""

    target: Reader
    logits: torch.Tensor
    outputs: dict[str, tuple[torch.Tensor, ...]]
    forwards: int


def collected_names(model, config) -> tuple[str, ...]:
    """The outputs that the call asks for, by the names of the model's output."""
    if not config.return_dict_in_generate:
        return ()
    prefix = "decoder_" if model.config.is_encoder_decoder else ""
    names = [prefix + "hidden_states"] if config.output_hidden_states else []
    if config.output_attentions:
        names += [prefix + "attentions"] + (["cross_attentions"] if prefix else [])
    return tuple(names)


def prefill_rest(kept: Kept, prompt: Prompt, room: int) -> Prefill:
    """The target reads what it does not hold from the last call of its session."""
    texts, home = [row.tolist() for row in prompt.rows], prompt.ids.device
    target = resume(kept, list(range(len(texts))), texts, room, device_of(kept.model, home))
    logits = read_rest(target, texts).to(home, torch.float32)
    return Prefill(target, logits, {}, 0)


def prefill(model, prompt: Prompt, config, model_kwargs: dict, room: int) -> Prefill:
    """Read the prompts. Rows of other lengths go apart where padding would shift a model's positions."""
    home, rows = prompt.ids.device, len(prompt.rows)
    alone = any(prompt.layout.pads) and not media_of(model, model_kwargs) and probe.padding_counts(model)
    groups = groups_of(prompt.layout.lengths) if alone else [list(range(rows))]
    filled, logits, outputs, cross = [], [None] * rows, [], []
    for group in groups:
        kwargs = _of_group(model, prompt, model_kwargs, group) if alone else model_kwargs
        ids = (
            prompt.ids[group][:, max(0, prompt.ids.shape[1] - prompt.layout.lengths[group[0]]) :]
            if alone
            else prompt.ids
        )
        out = _forward(model, ids, config, kwargs)
        for b, x in zip(group, out.logits[:, -1].to(home, torch.float32, copy=True), strict=True):
            logits[b] = x
        cache = compat.cache_of(out)
        filled.append((cache, Layout(None, len(group), ids.shape[1]) if alone else prompt.layout, group))
        cross.append(cache)
        outputs.append({name: out.get(name) or () for name in collected_names(model, config)})
        del out
    beside = Beside(later_inputs(model, model_kwargs), rows, merged_cross(cross, groups))
    target = Reader.from_prefill(
        model,
        filled,
        room,
        device_of(model, home),
        beside=beside or None,
        shifts=prompt.shifts,
        collect=collected_names(model, config),
    )
    return Prefill(target, torch.stack(logits), _merged_outputs(outputs, groups, rows), len(groups))


def _forward(model, ids, config, kwargs) -> ModelOutput:
    given = compat.pop_cache(dict(kwargs))
    try:
        return model._prefill(ids, config, kwargs)
    except RuntimeError as error:
        if given is None or isinstance(error, torch.OutOfMemoryError) or not columns_held(given):
            raise
        raise SpecUnsupportedError(
            f"The target could not go on from the cache that was handed in ({error}). "
            "Pass the cache that this model returned for the beginning of this text."
        ) from error


def _of_group(model, prompt: Prompt, model_kwargs: dict, rows: list[int]) -> dict:
    """`model_kwargs` of some rows of one length, without their padding."""
    length, pick = prompt.layout.lengths[rows[0]], Beside({}, len(prompt.rows)).pick
    found = {}
    for name, value in model_kwargs.items():
        if name in PER_COLUMN and isinstance(value, torch.Tensor):
            value = value[:, value.shape[1] - length :]
        found[name] = pick(value, rows)
    found.pop(mask_name(model), None)
    if (positions := model_kwargs.get("position_ids")) is not None:
        positions = positions[..., positions.shape[-1] - length :].expand(*positions.shape[:-2], len(prompt.rows), -1)
        found["position_ids"] = positions[..., torch.tensor(rows, device=positions.device), :]
    compat.pop_cache(found)
    found[compat.name_of_cache(model_kwargs)] = new_cache(model, cross=model.config.is_encoder_decoder)
    return found


def _merged_outputs(outputs: list[dict], groups: list[list[int]], rows: int) -> dict:
    """Hidden states and attentions of all rows, padded on the left with zeros."""
    if len(outputs) == 1:
        return outputs[0]
    merged = {}
    for name in outputs[0]:
        layers = []
        for parts in zip(*(o[name] for o in outputs), strict=True):
            shape = [max(p.shape[d] for p in parts) for d in range(1, parts[0].dim())]
            full = parts[0].new_zeros(rows, *shape)
            for group, part in zip(groups, parts, strict=True):
                corner = tuple(slice(f - p, None) for f, p in zip(shape, part.shape[1:], strict=True))
                full[(group, *corner)] = part
            layers.append(full)
        merged[name] = tuple(layers)
    return merged
