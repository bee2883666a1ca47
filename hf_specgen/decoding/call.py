"""From `generate()`'s prepared inputs to the loop, and from its rows to the result."""

import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.stopping_criteria import StopStringCriteria

from ..cache.compiled import compiling
from ..cache.reader import new_cache, read_ends
from ..cache.stock import Export, own_part, put_back_on_error, refuse_unknown_layers
from ..config import SpecConfig
from ..drafters import Drafter, Source
from ..drafters.encoder import input_name
from ..errors import SpecDraftError, SpecUnsupportedError
from ..lengths import Terms
from ..lengths.costs import expected_step, position_costs
from ..lengths.planner import BLIND, LONGEST
from ..noise import check_generators, row_seeds
from ..processors import custom_processors, own_processors
from ..session import Kept, version_of
from ..stats import Clock, SpecStats, publish
from ..verifiers import Verifier, verifier_for
from . import alternatives
from .checks import (
    check_cache,
    check_call,
    check_images,
    check_lengths,
    check_outputs,
    check_prompt,
    check_row_order,
    check_session,
)
from .loop import Decoding
from .output import KeyColumns, as_dict, sequences_of
from .prefill import prefill, prefill_rest
from .prompt import Prompt, prompt_of_call
from .ranks import Ranks
from .rows import Row
from .stops import Stops
from .stream import Stream


@dataclass
class SpecRequest:
    """What the caller asked for that transformers does not hand on to a custom decoding loop."""

    settings: SpecConfig
    stream: Stream
    draft: Any = None  # a model, a CandidateGenerator (a Drafter is one), or None
    vocabulary: Any = None  # a VocabularyMap, where the draft's ids are not the target's
    tokenizer: Any = None
    synced_gpus: bool = False
    stop_strings: Any = None
    logits_processor: Any = None
    prefix_allowed_tokens_fn: Any = None
    cache: Any = None  # handed in by the caller
    within: bool = (
        False  # a generate() of the model's class (Whisper's) calls the stock one, with processors of its own
    )
    prompt_copies: int = 1  # rows per prompt, as the prefix constraint counts them


@dataclass
class Prepared:
    """What `generate` hands to a decoding method.

    Attributes:
        input_ids: int64 `[rows, columns]`.
        processors, criteria, config: prepared for the whole batch.
        inputs_tensor: what the encoder read, or the ids.
        model_kwargs: the model's other inputs.
    """

    model: PreTrainedModel
    input_ids: torch.Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: GenerationConfig
    inputs_tensor: torch.Tensor | None
    model_kwargs: dict[str, Any]


def decode(call: Prepared, request: SpecRequest, make_drafter):
    """Check, prefill, loop, return. A cache that was handed in is put back as it was if anything raises.

    Args:
        make_drafter: `(device, rows, source) -> Drafter or None`.

    Returns:
        int64 `[rows, columns + new tokens]`, or a `SpecGenerateOutput`.
    """
    clock = Clock(call.input_ids.device)
    if request.cache is not None:
        refuse_unknown_layers(request.cache, "caller")
    with put_back_on_error(request.cache):
        prompt = _checked(call, request)
        source = _encoded(call)
        rows = _rows(call, request, prompt, source)
        drafter: Drafter | None = make_drafter(call.input_ids.device, len(rows), source)
        return _run(call, request, prompt, rows, drafter, clock)


def _checked(call: Prepared, request: SpecRequest) -> Prompt:
    model, config, kwargs = call.model, call.config, call.model_kwargs
    check_call(config, kwargs, request.synced_gpus)
    check_outputs(model, config)
    check_prompt(model, call.input_ids, kwargs, config._pad_token_tensor)
    prompt = prompt_of_call(model, call.input_ids, config, kwargs)
    check_images(model, prompt, kwargs)
    check_lengths(model, prompt, config.max_length)
    check_session(request.settings.spec_session, model, config, kwargs, prompt, request.cache)
    request.stream.check(len(prompt.rows))
    check_generators(len(prompt.rows), request.settings.generator, prompt.ids.device)
    if request.within and len(prompt.rows) > 1:
        check_row_order(model, request.settings.generator, request.stream.by_row)
    if request.cache is not None:
        check_cache(model, config, request.cache, prompt)
    return prompt


def _encoded(call: Prepared) -> Source | None:
    outputs = call.model_kwargs.get("encoder_outputs")
    if outputs is None:
        return None
    mask = call.model_kwargs.get("attention_mask")
    return Source(call.model.get_encoder(), input_name(call.model), call.inputs_tensor, mask, outputs)


def _run(call: Prepared, request: SpecRequest, prompt: Prompt, rows: list[Row], drafter: Drafter | None, clock: Clock):
    model, config = call.model, call.config
    settings, session = request.settings, request.settings.spec_session
    verifier = verifier_for(settings.spec_strategy, config.do_sample)
    stats = SpecStats(strategy=settings.spec_strategy, lossless=verifier.lossless, calls=1)
    stats.rows = [row.stats for row in rows]
    rest = config.max_length - prompt.ids.shape[1]
    room = min(rest, 256) + min(rest, LONGEST) + 1
    with clock.lap("prefill"):
        kept = session.kept("target", model) if session is not None else None
        read = prefill_rest(kept, prompt, room) if kept else prefill(model, prompt, config, call.model_kwargs, room)
    export, result = None, request.cache
    if result is not None or config.return_dict_in_generate:
        result = result if result is not None else new_cache(model, model.config.is_encoder_decoder)
        export = Export(own_part(result), prompt.layout)
    keep = None
    if session is not None:
        keep = Kept(model, kept.version if kept else version_of(model), read.target.cache.windows)
        if drafter is not None:
            drafter.keep_in(session)
    request.stream.prompts(call.input_ids, prompt.rows)
    length = settings.length
    reading = None if clock.cuda else clock.last("prefill")  # a GPU may still be at it, and reads in no time
    ranks = Ranks.of(model, drafter.model if drafter is not None else None)
    terms = _terms(model, drafter, verifier, settings, reading)
    if drafter is not None and drafter.stops_inside and not ranks.groups:
        beside = not settings.compile and alternatives.possible(read.target, rows, verifier)
        terms = replace(terms, inside=True, alternatives=beside)
        drafter.ask(length, beside)
    length.start(terms)
    loop = Decoding(
        read.target,
        rows,
        drafter,
        verifier,
        length,
        stats,
        clock,
        request.stream,
        ranks,
        export,
        keep,
        plain_on_oom=settings.spec_fallback == "plain",
    )
    seeds = row_seeds(len(rows), settings.generator, config.do_sample)  # a refused call draws nothing
    for row, seed in zip(rows, seeds, strict=True):
        row.seed = seed
    clock.restart()
    try:
        with compiling(settings.compile):
            loop.run(read.logits)
    except SpecUnsupportedError as error:  # which promises that nothing has been decoded
        raise SpecDraftError(f"In the middle of the text: {error}") from error
    pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
    sequences = sequences_of(call.input_ids, rows, pad)
    if export is not None:
        new = sequences.shape[1] - call.input_ids.shape[1] - 1
        held = {row.index: export.rows[row.index][1] - row.unseen for row in rows}
        left = {row.index: row.tokens[held[row.index] : row.prompt_length + new] for row in rows}
        read_ends(read.target, export, left)
        export.write(new)
    if session is not None:
        session.keep("target", keep)
        session.keep("draft", drafter.keep if drafter is not None else None)
        length.teach(session.knowledge)
    stats.target_forwards = read.target.forwards + read.forwards
    stats.plain_steps = max(row.emitted for row in stats.rows) - 1
    stats.off_reason = length.why_off
    stats.temperature = (1.0 if config.temperature is None else config.temperature) if config.do_sample else 0.0
    clock.fill(stats)
    publish(stats)
    if stats.off_reason == BLIND and session is None:  # with one, the next call drafts
        _tell_waiting(type(model).__name__, type(request.draft).__name__)
    if not config.return_dict_in_generate:
        return sequences
    if model.config.is_encoder_decoder:
        result = type(result)(export.cache, read.target.beside.cross)
    keys = KeyColumns(prompt.layout, read.target.cache.windows)
    encoded = call.model_kwargs.get("encoder_outputs")
    return as_dict(sequences, rows, stats, result, read.outputs, keys, encoded, extended=not request.within)


@functools.cache
def _tell_waiting(target: str, draft: str) -> None:
    """Once in a process for each kind of pair: a call that returns a tensor shows no statistics."""
    warnings.warn(f"The draft ({draft}) of the {target} was not used: {BLIND}.", stacklevel=2)


def _terms(model, drafter: Drafter | None, verifier: Verifier, settings: SpecConfig, prefill: float | None) -> Terms:
    learned = settings.spec_session.knowledge if settings.spec_session is not None else None
    draft = drafter.network if drafter is not None else None
    position, second = position_costs(model)
    return Terms(
        free=not verifier.follows_draft,
        greedy=not verifier.samples,
        target_step=expected_step(model),
        draft_step=None if draft is None else expected_step(draft),
        position_cost=position,
        second_cost=second,
        prefill=prefill,
        knowledge=learned if learned is not None and learned.costs is not None else settings.knowledge or learned,
    )


def _rows(call: Prepared, request: SpecRequest, prompt: Prompt, source: Source | None) -> list[Row]:
    model, config, count = call.model, call.config, len(prompt.rows)
    if request.within:
        custom = custom_processors(model, request, call.processors, config, prompt.ids.shape[1], call.inputs_tensor)
        request = replace(request, logits_processor=custom)
    request.prompt_copies = next(
        (p._num_beams for p in call.processors if isinstance(p, PrefixConstrainedLogitsProcessor)), 1
    )
    criteria = StoppingCriteriaList(call.criteria)
    if request.stop_strings is not None:
        if request.tokenizer is None:
            raise SpecUnsupportedError("stop_strings need the model's tokenizer: pass tokenizer= to generate().")
        criteria.append(StopStringCriteria(stop_strings=request.stop_strings, tokenizer=request.tokenizer))
    keep = config.return_dict_in_generate
    rows = []
    for b, (ids, masked) in enumerate(zip(prompt.rows, prompt.masked, strict=True)):
        encoder_ids = ids if source is None else source.ids_of(b)
        rows.append(
            Row(
                index=b,
                ids=ids.clone(),
                tokens=ids.tolist(),
                prompt_length=len(ids),
                limit=config.max_length - masked,
                stops=Stops(criteria, call.input_ids[b], masked, b, count),
                processors=own_processors(model, request, config, ids, masked, b, count, encoder_ids),
                unseen=prompt.unseen[b],
                scores=[] if keep and config.output_scores else None,
                logits=[] if keep and config.output_logits else None,
            )
        )
    return rows
