"""From `generate()`'s prepared inputs to the loop, and from its rows to the result."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.stopping_criteria import StopStringCriteria

from .. import compat
from ..cache.reader import Reader, device_of
from ..cache.stock import Export, left_padding, refuse_unknown_layers, restore, snapshot
from ..config import SpecConfig
from ..drafters import Drafter
from ..errors import SpecUnsupportedError
from ..lengths import SCHEDULES
from ..noise import row_seeds
from ..processors import own_processors
from ..stats import Clock, SpecStats, publish
from ..verifiers import verifier_for
from .checks import check_call, check_lengths, check_prompt
from .loop import Decoding
from .output import as_dict, sequences_of
from .rows import Row
from .stops import Stops


@dataclass
class SpecRequest:
    """What the caller asked for that transformers does not hand on to a custom decoding loop."""

    settings: SpecConfig
    draft: Any = None  # a model, a CandidateGenerator (a Drafter is one), or None
    tokenizer: Any = None
    streamer: Any = None
    synced_gpus: bool = False
    stop_strings: Any = None
    logits_processor: Any = None
    prefix_allowed_tokens_fn: Any = None
    cache: Any = None  # handed in by the caller
    position_ids: Any = None  # likewise
    prompt_copies: int = 1  # rows per prompt, as the prefix constraint counts them


def decode(
    model, request: SpecRequest, make_drafter, input_ids, logits_processor, stopping_criteria, config, model_kwargs
):
    """Check, prefill, loop, return. A cache that was handed in is put back as it was if anything raises.

    Args:
        make_drafter: `(device, rows) -> Drafter or None`.
        input_ids: int64 `[rows, columns]`; the other arguments as `generate` prepares them for a decoding method.

    Returns:
        int64 `[rows, columns + new tokens]`, or a `SpecGenerateOutput`.
    """
    clock = Clock(input_ids.device)
    check_call(config, model_kwargs, request.synced_gpus)
    mask = model_kwargs.get("attention_mask")
    check_prompt(input_ids, mask, model_kwargs.get("inputs_embeds"), config._pad_token_tensor)
    packed_ids, pads = _pack_left(input_ids, model_kwargs)
    check_lengths(model, pads, packed_ids.shape[1], config.max_length)
    _check_positions(request, packed_ids, model_kwargs)
    if request.streamer is not None and len(input_ids) > 1:
        raise SpecUnsupportedError("A streamer shows one row, and this call has more. Stream one prompt at a time.")
    saved = _check_cache(request, packed_ids, model_kwargs, config)
    rows = _rows(model, request, packed_ids, pads, logits_processor, stopping_criteria, config)
    drafter: Drafter | None = make_drafter(input_ids.device, len(rows))

    verifier = verifier_for(request.settings.spec_strategy, config.do_sample)
    stats = SpecStats(strategy=request.settings.spec_strategy, lossless=verifier.lossless, calls=1)
    stats.rows = [row.stats for row in rows]
    try:
        rest = config.max_length - packed_ids.shape[1]
        room = min(rest, 256) + min(rest, request.settings.num_assistant_tokens) + 1
        with clock.lap("prefill"):
            outputs = model._prefill(packed_ids, config, model_kwargs)
            first_logits = outputs.logits[:, -1].to(input_ids.device, torch.float32, copy=True)
            cache = compat.cache_of(outputs)
            del outputs
            target = Reader.from_prefill(model, cache, pads, room, device_of(model, input_ids.device))
        export = None
        if request.cache is not None or config.return_dict_in_generate:
            fresh = request.cache
            if fresh is None:
                fresh = DynamicCache(config=compat.text_config(model))
            export = Export(fresh, pads)
        if request.streamer is not None:
            request.streamer.put(input_ids.cpu())
        loop = Decoding(
            target,
            rows,
            drafter,
            verifier,
            SCHEDULES[request.settings.num_assistant_tokens_schedule](request.settings.num_assistant_tokens),
            stats,
            clock,
            export,
            request.streamer,
            plain_on_oom=request.settings.spec_fallback == "plain",
        )
        clock.restart()
        loop.run(first_logits)
        sequences = sequences_of(
            input_ids, rows, None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        )
        cache = export.write(sequences.shape[1] - 1) if export is not None else None
    except BaseException:
        if saved is not None:
            restore(request.cache, saved)
        raise
    if request.streamer is not None:
        request.streamer.end()
    stats.target_forwards = target.forwards + 1
    stats.plain_steps = max(row.emitted for row in stats.rows) - 1
    clock.fill(stats)
    publish(stats)
    return as_dict(sequences, rows, stats, cache) if config.return_dict_in_generate else sequences


def _pack_left(input_ids: torch.Tensor, model_kwargs: dict) -> tuple[torch.Tensor, list[int]]:
    """Rows padded on the right are moved to the right edge, as plain decoding wants them; also in `model_kwargs`."""
    mask = model_kwargs.get("attention_mask")
    if mask is None:
        return input_ids, [0] * len(input_ids)
    pads = left_padding(mask)
    if bool(mask[:, -1].all()):
        return input_ids, pads
    columns = mask.shape[1]
    ends = columns - mask.flip(1).long().argmax(1)  # one past each row's last token
    order = (torch.arange(columns, device=mask.device) + ends[:, None]) % columns
    for name in ("attention_mask", "inputs_embeds"):
        if (x := model_kwargs.get(name)) is not None:
            model_kwargs[name] = torch.stack([row[o] for row, o in zip(x, order.to(x.device), strict=True)])
    mask = model_kwargs["attention_mask"]
    if model_kwargs.get("position_ids") is not None:
        model_kwargs["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
    return input_ids.gather(1, order.to(input_ids.device)), pads


def _check_positions(request: SpecRequest, ids: torch.Tensor, model_kwargs: dict) -> None:
    if request.position_ids is None:
        return
    mask = model_kwargs.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask
    usual = mask.long().cumsum(-1) - 1
    given = model_kwargs["position_ids"]
    if given.shape != usual.shape or bool(((given != usual) & mask.bool()).any()):
        raise SpecUnsupportedError(
            "position_ids differ from 0, 1, 2, … of each row's tokens. Drop them, or decode plainly."
        )


def _check_cache(request: SpecRequest, ids: torch.Tensor, model_kwargs: dict, config) -> list[dict] | None:
    """A cache handed in must be a plain one, read a true beginning of the ids, and have a place for each column."""
    cache = request.cache
    if cache is None:
        return None
    refuse_unknown_layers(cache, "caller")
    mask = model_kwargs.get("attention_mask")
    columns = mask.shape[1] if mask is not None else getattr(config, "_mask_length", ids.shape[1])
    if columns != ids.shape[1] or cache.get_seq_length() >= ids.shape[1]:
        raise SpecUnsupportedError(
            f"The cache holds {cache.get_seq_length()} columns and input_ids {ids.shape[1]}, with a mask of {columns}. "
            "Pass the whole text, of which the cache has read the beginning: the draft has to read it too."
        )
    return snapshot(cache)


def _rows(model, request: SpecRequest, ids, pads, logits_processor, stopping_criteria, config) -> list[Row]:
    count = len(ids)
    request.prompt_copies = next(
        (p._num_beams for p in logits_processor if isinstance(p, PrefixConstrainedLogitsProcessor)), 1
    )
    if request.stop_strings is not None:
        if request.tokenizer is None:
            raise SpecUnsupportedError("stop_strings need the model's tokenizer: pass tokenizer= to generate().")
        stopping_criteria.append(StopStringCriteria(stop_strings=request.stop_strings, tokenizer=request.tokenizer))
    seeds = row_seeds(count, request.settings.generator, ids.device, config.do_sample)
    rows = []
    for b, pad in enumerate(pads):
        prompt = ids[b, pad:]
        limit = config.max_length - pad
        keep = config.return_dict_in_generate
        rows.append(
            Row(
                index=b,
                ids=prompt.clone(),
                tokens=prompt.tolist(),
                prompt_length=len(prompt),
                limit=limit,
                seed=seeds[b],
                stops=Stops(stopping_criteria, pad, own_copies=count > 1),
                processors=own_processors(model, request, config, prompt, pad, b, count),
                scores=[] if keep and config.output_scores else None,
                logits=[] if keep and config.output_logits else None,
            )
        )
    return rows
