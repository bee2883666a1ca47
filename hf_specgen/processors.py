"""Logits processors on every slot of a block, each slot seeing exactly the text that plain decoding would show it.

Three kinds. Pointwise ones (temperature, top-p, …) read scores only: they run once on all slots, flattened. Built-in
ones that read the text see `prefix + draft[:i]` of the unpadded row. Custom ones may keep state: the live object sees
the true text only, once per emitted token, as in plain decoding; drafted slots are shown to a copy.

A grammar knows nothing of a text that it forbids, or that goes on behind its end, and may say so with an error. Plain
decoding never shows it one. A drafted slot behind an EOS, or behind a token that the processed scores leave out, can
give no token: it is not processed. Other ends (stop strings, criteria) are judged later, so an error at a drafted slot
counts only once the text has come true.
"""

import copy
from collections.abc import Sequence

import torch
from transformers import LogitsProcessorList
from transformers.generation import logits_process

from . import compat
from .copying import own_copy
from .errors import SpecUnsupportedError

POINTWISE = (
    logits_process.TemperatureLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopHLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.LogitNormalization,
    logits_process.SuppressTokensLogitsProcessor,
)
STATEFUL_BUILT_IN = (logits_process.SynthIDTextWatermarkLogitsProcessor,)
FUNCTIONS = (logits_process.PrefixConstrainedLogitsProcessor,)  # built in, but what they do is the caller's
REFUSED = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.ClassifierFreeGuidanceLogitsProcessor,
)


class RowProcessors:
    """The processors of one row, in plain decoding's order.

    Args:
        ends: ids that end the row.

    Attributes:
        strict: whether one of them may be at a loss with a text that plain decoding would not show it.
        failed: in this round, the first slot at which one of them raised an error, and the error; or None.
    """

    def __init__(self, processors: LogitsProcessorList, ends: Sequence[int] = ()):
        self.live = list(processors)
        self.pointwise = all(type(p) in POINTWISE for p in self.live)
        self.stateful = [not _stateless(p) for p in self.live]
        self.strict = any(not _built_in(p) or isinstance(p, FUNCTIONS) for p in self.live)
        self.ends = frozenset(ends)
        self.failed: tuple[int, Exception] | None = None
        for p in self.live:
            if isinstance(p, REFUSED):
                raise SpecUnsupportedError(
                    f"{type(p).__name__} (guidance_scale) runs the model on a second prompt with a cache of its own, "
                    "which drafted tokens would spoil. Decode without spec_strategy."
                )
        if any(self.stateful):
            self.trial()  # a processor that cannot be copied is refused before the first token

    def trial(self) -> list:
        """The processors, with copies in place of those that keep state."""
        return [own_copy(p, "logits processor") if s else p for p, s in zip(self.live, self.stateful, strict=True)]


def apply(processors: list, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Run processors on `ids` `[rows, length]` and `scores` float32 `[rows, vocabulary]`."""
    for processor in processors:
        scores = processor(ids, scores)
    return scores


def on_draft(rows: list, trials: list[list | None] | None, scores: torch.Tensor, step: int) -> torch.Tensor:
    """The draft's scores `[rows, vocabulary]` for its `step`-th token; the rows' buffers hold the tokens before it.

    Args:
        trials: of `trials_for_draft`; None in a row's place: it drafts no more, and gets zeros.
    """
    if trials is None:
        pointwise = rows[0].processors.live
        return apply(pointwise, _no_text(scores), scores) if pointwise else scores
    slots = zip(rows, trials, scores.split(1), strict=True)
    return torch.cat(
        [torch.zeros_like(own) if trial is None else _on_drafted(row, trial, own, step) for row, trial, own in slots]
    )


def _on_drafted(row, trial: list, scores: torch.Tensor, step: int) -> torch.Tensor:
    try:
        return apply(trial, _text(row, step), scores)
    except Exception:  # whatever a caller's processor raises
        if not step:  # not a drafted text, but the row's own
            raise
        return torch.full_like(scores, float("-inf"))  # nothing can be drafted behind it


def trials_for_draft(rows: list) -> list[list | None] | None:
    """Copies for one round of drafting; None if no row's processors look at the text."""
    return None if all(row.processors.pointwise for row in rows) else [row.processors.trial() for row in rows]


def on_target(rows: list, proposal, logits: torch.Tensor) -> torch.Tensor:
    """The target's processed scores, float32 `[rows, width + 1 + alternatives, vocabulary]`.

    Args:
        proposal: what was drafted. Slots beyond a row's count, and those that can give no token, are left as they are,
            where that costs nothing.
        logits: float32, same shape. Not changed.
    """
    if all(row.processors.pointwise for row in rows):
        if not rows[0].processors.live:
            return logits
        flat = logits.flatten(0, 1)
        return apply(rows[0].processors.live, _no_text(flat), flat).view_as(logits)
    scores, counts = logits.clone(), proposal.counts.tolist()
    for b, row in enumerate(rows):
        _on_slots(row, proposal.tokens[b, : counts[b]], scores[b])
    return scores


def _on_slots(row, drafted: torch.Tensor, scores: torch.Tensor) -> None:
    """Process a row's slots `[slots, vocabulary]` in place."""
    own = row.processors
    own.failed = None
    row.ids[row.length : row.length + len(drafted)] = drafted
    scores[:1] = apply(own.live, _text(row, 0), scores[:1].clone())
    trial = own.trial() if len(drafted) else []
    tokens = drafted.tolist() if own.strict else []
    for i in range(1, len(drafted) + 1):
        if own.strict and (tokens[i - 1] in own.ends or not _possible(tokens[i - 1], scores[i - 1])):
            return
        try:
            scores[i : i + 1] = apply(trial, _text(row, i), scores[i : i + 1].clone())
        except Exception as error:  # whatever a caller's processor raises: `catch_up` raises it if the text comes true
            own.failed = i, error
            return


def _possible(token: int, scores: torch.Tensor) -> bool:
    """Whether a token can come of processed scores `[vocabulary]`. Of scores that leave out all, greedy decoding takes
    one nevertheless."""
    return bool(scores[token] > float("-inf")) or bool(scores.amax() == float("-inf"))


def _text(row, drafted: int) -> torch.Tensor:
    """The row's text with so many drafted tokens, `[1, length + drafted]`."""
    return row.ids[None, : row.length + drafted].clone()


def catch_up(row, emitted: int, logits: torch.Tensor) -> None:
    """Show the live processors the slots behind the first that turned out true, so that they end as plain leaves them.

    Args:
        row: before its new tokens are counted into its length (its buffer holds them).
        emitted: tokens that the round gave; slot i led to the i-th.
        logits: `[slots, vocabulary]` of this row, as the target gave them.

    Raises:
        Exception: what a processor raised at one of these slots.
    """
    if row.processors.failed is not None and row.processors.failed[0] < emitted:
        raise row.processors.failed[1]
    if any(row.processors.stateful):
        for i in range(1, emitted):
            apply(row.processors.live, _text(row, i), logits[i : i + 1].clone())


def _no_text(scores: torch.Tensor) -> torch.Tensor:
    return torch.zeros(scores.shape[0], 1, dtype=torch.long, device=scores.device)


def _built_in(processor) -> bool:
    return type(processor).__module__ == logits_process.__name__


def _stateless(processor) -> bool:
    return _built_in(processor) and not isinstance(processor, STATEFUL_BUILT_IN)


def custom_processors(model, request, prepared: list, config, columns: int, inputs_tensor) -> LogitsProcessorList:
    """Those of `prepared` (what `generate` gives a decoding method) that its config does not explain.

    For models whose class adds processors on its way to the stock `generate`, where ours cannot see them.
    """
    explained = model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=columns,
        encoder_input_ids=inputs_tensor,
        prefix_allowed_tokens_fn=request.prefix_allowed_tokens_fn,
        device=inputs_tensor.device,
        model_kwargs={},
    )
    kinds = {type(p) for p in explained}
    return LogitsProcessorList(p for p in prepared if type(p) not in kinds or not _same_as_any(p, explained))


def _same_as_any(processor, others: list) -> bool:
    return any(type(o) is type(processor) and _equal(vars(o), vars(processor)) for o in others)


def _equal(a, b) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def own_processors(
    model, request, config, ids: torch.Tensor, pad: int, row: int, rows: int, encoder_ids: torch.Tensor | None
) -> RowProcessors:
    """What `generate` would build for this row alone.

    Args:
        request: the call's `logits_processor` and `prefix_allowed_tokens_fn`.
        config: the prepared GenerationConfig of the call. Its absolute lengths count columns, so they shrink by `pad`.
        ids: `[length]`, the unpadded prompt.
        row, rows: this row's index and how many there are; a custom processor is the caller's own only if alone.
        encoder_ids: `[length]`, what an encoder read for this row (the prompt, where there is none), or None.
    """
    config = copy.copy(config)
    config.max_length = config.max_length - pad
    config.min_length = max(0, config.min_length - pad) if config.min_length is not None else None
    config.num_return_sequences = 1
    custom = LogitsProcessorList(request.logits_processor or [])
    if rows > 1:
        for processor in custom:
            if isinstance(processor, logits_process.WhisperNoSpeechDetection):
                raise SpecUnsupportedError(
                    "no_speech_threshold keeps one probability per row of the batch in one processor, which rows that "
                    "are decoded apart cannot share. Transcribe one audio at a time, or leave it out."
                )
        custom = LogitsProcessorList(
            p if _stateless(p) else InBatch(own_copy(p, "logits processor"), row, rows) for p in custom
        )
    custom = LogitsProcessorList(_without_padding(p, pad) for p in custom)
    allowed = request.prefix_allowed_tokens_fn
    if allowed is not None:
        batch_id = row // request.prompt_copies
        allowed = _for_row(allowed, batch_id)
    return RowProcessors(
        model._get_logits_processor(
            generation_config=config,
            input_ids_seq_length=ids.shape[0],
            encoder_input_ids=None if encoder_ids is None else encoder_ids[None],
            prefix_allowed_tokens_fn=allowed,
            logits_processor=custom,
            device=ids.device,
            model_kwargs={},
        ),
        compat.ends_of(config),
    )


class InBatch:
    """A custom processor in a batch. It may have something of its own for each row, so it is shown as many rows as
    there are, each of them the row in question (without its padding), and what it says in that row's place counts."""

    def __init__(self, processor, row: int, rows: int):
        self.processor, self.row, self.rows = processor, row, rows
        self.__name__ = getattr(processor, "__name__", type(processor).__name__)

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        out = self.processor(ids.expand(self.rows, -1), scores.expand(self.rows, -1).clone())
        return out[self.row : self.row + 1]


def _without_padding(processor, pad: int):
    """Whisper's count columns from where the answer begins."""
    if not pad or not hasattr(processor, "set_begin_index"):
        return processor
    processor = copy.copy(processor)
    processor.set_begin_index(processor.begin_index - pad)
    return processor


def _for_row(function, batch_id: int):
    return lambda _, sent: function(batch_id, sent)
