"""From `generate()`'s prepared inputs to the loop, and from its rows to the result."""

from dataclasses import dataclass, replace
from typing import Any

from transformers.generation.logits_process import PrefixConstrainedLogitsProcessor
from transformers.generation.stopping_criteria import StopStringCriteria

from ..cache.reader import new_cache
from ..cache.stock import Export, own_part, refuse_unknown_layers, restore, snapshot
from ..config import SpecConfig
from ..drafters import Drafter, ModelDrafter, Source
from ..drafters.encoder import input_name
from ..errors import SpecUnsupportedError
from ..lengths import SCHEDULES
from ..noise import row_seeds
from ..processors import custom_processors, own_processors
from ..session import Kept, version_of
from ..stats import Clock, SpecStats, publish
from ..verifiers import verifier_for
from .checks import check_cache, check_call, check_lengths, check_prompt, check_session
from .loop import Decoding
from .output import KeyWidths, as_dict, sequences_of
from .prefill import prefill, resumed
from .prompt import Prompt, prompt_of_call
from .rows import Row
from .stops import Stops
from .stream import Stream


@dataclass
class SpecRequest:
    """What the caller asked for that transformers does not hand on to a custom decoding loop."""

    settings: SpecConfig
    stream: Stream
    draft: Any = None  # a model, a CandidateGenerator (a Drafter is one), or None
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


def decode(
    model,
    request: SpecRequest,
    make_drafter,
    input_ids,
    logits_processor,
    stopping_criteria,
    config,
    inputs_tensor,
    model_kwargs,
):
    """Check, prefill, loop, return. A cache that was handed in is put back as it was if anything raises.

    Args:
        make_drafter: `(device, rows, source) -> Drafter or None`.
        input_ids: int64 `[rows, columns]`; the other arguments as `generate` prepares them for a decoding method.
        inputs_tensor: what the encoder read, if there is one.

    Returns:
        int64 `[rows, columns + new tokens]`, or a `SpecGenerateOutput`.
    """
    clock = Clock(input_ids.device)
    check_call(config, model_kwargs, request.synced_gpus)
    check_prompt(model, input_ids, model_kwargs, config._pad_token_tensor)
    prompt = prompt_of_call(model, input_ids, config, model_kwargs)
    check_lengths(model, prompt, config.max_length)
    check_session(request.settings.spec_session, model, config, model_kwargs, prompt, request.cache)
    request.stream.check(len(prompt.rows))
    saved = None
    if request.cache is not None:
        refuse_unknown_layers(request.cache, "caller")
        check_cache(model, request.cache, prompt)
        saved = snapshot(request.cache)
    source = None
    if (encoded := model_kwargs.get("encoder_outputs")) is not None:
        mask = model_kwargs.get("attention_mask")
        source = Source(model.get_encoder(), input_name(model), inputs_tensor, mask, encoded)
    if request.within:
        request = replace(
            request,
            logits_processor=custom_processors(
                model, request, logits_processor, config, prompt.ids.shape[1], inputs_tensor
            ),
        )
    rows = _rows(model, request, prompt, source, logits_processor, stopping_criteria, config)
    drafter: Drafter | None = make_drafter(input_ids.device, len(rows), source)

    settings, session = request.settings, request.settings.spec_session
    verifier = verifier_for(settings.spec_strategy, config.do_sample)
    stats = SpecStats(strategy=settings.spec_strategy, lossless=verifier.lossless, calls=1)
    stats.rows = [row.stats for row in rows]
    try:
        rest = config.max_length - prompt.ids.shape[1]
        room = min(rest, 256) + min(rest, settings.num_assistant_tokens) + 1
        with clock.lap("prefill"):
            kept = session.kept("target", model) if session is not None else None
            read = resumed(kept, prompt, room) if kept else prefill(model, prompt, config, model_kwargs, room)
        export = None
        if request.cache is not None or config.return_dict_in_generate:
            result = request.cache if request.cache is not None else new_cache(model, model.config.is_encoder_decoder)
            export = Export(own_part(result), prompt.layout)
        request.stream.prompts(input_ids, prompt.rows)
        keep = None
        if session is not None:
            keep = Kept(model, version_of(model), read.target.cache.windows)
            if isinstance(drafter, ModelDrafter):
                drafter.keep_in(session)
        loop = Decoding(
            read.target,
            rows,
            drafter,
            verifier,
            SCHEDULES[settings.num_assistant_tokens_schedule](settings.num_assistant_tokens),
            stats,
            clock,
            request.stream,
            export,
            keep,
            plain_on_oom=settings.spec_fallback == "plain",
        )
        clock.restart()
        loop.run(read.logits)
        pad = None if config._pad_token_tensor is None else int(config._pad_token_tensor)
        sequences = sequences_of(input_ids, rows, pad)
        if export is not None:
            export.write(sequences.shape[1] - input_ids.shape[1] - 1)
    except BaseException:
        if saved is not None:
            restore(request.cache, saved)
        raise
    if session is not None:
        session.keep("target", keep)
        session.keep("draft", drafter.keep if isinstance(drafter, ModelDrafter) else None)
    stats.target_forwards = read.target.forwards + read.forwards
    stats.plain_steps = max(row.emitted for row in stats.rows) - 1
    clock.fill(stats)
    publish(stats)
    if not config.return_dict_in_generate:
        return sequences
    if model.config.is_encoder_decoder:
        result = type(result)(export.cache, read.target.beside.cross)
    widths = KeyWidths(prompt.layout.columns, read.target.cache.windows)
    encoded = model_kwargs.get("encoder_outputs")
    return as_dict(sequences, rows, stats, result, read.outputs, widths, encoded, extended=not request.within)


def _rows(
    model, request: SpecRequest, prompt: Prompt, source: Source | None, logits_processor, stopping_criteria, config
) -> list[Row]:
    count = len(prompt.rows)
    request.prompt_copies = next(
        (p._num_beams for p in logits_processor if isinstance(p, PrefixConstrainedLogitsProcessor)), 1
    )
    if request.stop_strings is not None:
        if request.tokenizer is None:
            raise SpecUnsupportedError("stop_strings need the model's tokenizer: pass tokenizer= to generate().")
        stopping_criteria.append(StopStringCriteria(stop_strings=request.stop_strings, tokenizer=request.tokenizer))
    seeds = row_seeds(count, request.settings.generator, prompt.ids.device, config.do_sample)
    keep = config.return_dict_in_generate
    rows = []
    for b, (ids, masked) in enumerate(zip(prompt.rows, prompt.masked, strict=True)):
        rows.append(
            Row(
                index=b,
                ids=ids.clone(),
                tokens=ids.tolist(),
                prompt_length=len(ids),
                limit=config.max_length - masked,
                seed=seeds[b],
                stops=Stops(stopping_criteria, prompt.ids[b], masked, b, count),
                processors=own_processors(
                    model, request, config, ids, masked, b, count, ids if source is None else source.ids_of(b)
                ),
                unseen=prompt.unseen[b],
                scores=[] if keep and config.output_scores else None,
                logits=[] if keep and config.output_logits else None,
            )
        )
    return rows
