"""measure_pair: what a draft will bring, before anybody deploys it.

The target decodes some prompts plainly. The draft reads each text in one forward, which gives the acceptance for every
K at once (`teacher.py`, `forecast.py`); one that writes text of its own drafts against it with every K (`free_run.py`).
Rounds of the decoding loop with each K in turn give the costs (`timing.py`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import compat
from ..api import SpecGenerationMixin
from ..cache.reader import device_of
from ..config import SpecConfig
from ..decoding.checks import check_draft, check_model
from ..drafters import ModelDrafter, TextDrafter, drafter_for
from ..errors import SpecUnsupportedError
from ..pairing.check import pair_up
from ..unwrap import unwrap
from .forecast import Outlook, outlook
from .free_run import free_run
from .measurement import Measurement, Sample, measurement_of
from .prompts import Messages, encode, read_prompts
from .teacher import agreement
from .timing import Sweep, Watch

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["Measurement", "measure_pair", "read_prompts"]

ROUNDS = 5
"""Timed for each K, at least."""
SWEEP_TOKENS = 64
"""Decoded in one call whose rounds are timed, at least."""


@torch.no_grad()
def measure_pair(
    target: PreTrainedModel,
    draft: PreTrainedModel,
    prompts: Sequence[str | Messages],
    *,
    tokenizer: PreTrainedTokenizerBase,
    assistant_tokenizer: PreTrainedTokenizerBase | None = None,
    max_new_tokens: int = 64,
    max_assistant_tokens: int = 8,
    do_sample: bool = False,
    listener: Callable[[str, int, int], None] = lambda *step: None,
    **generation: Any,
) -> Measurement:
    """Measure a loaded pair on prompts, decoded one at a time, for K = 1 … `max_assistant_tokens`.

    The figures hold for calls with these arguments and one row, `spec_strategy="rejection"` and a constant K. Takes two
    to three times as long as decoding the prompts plainly, longer with a draft that writes text of its own: it drafts
    with every K. Sampling draws from torch's global generator.

    Args:
        prompts: texts (a user's message each, where the tokenizer has a chat template) or lists of chat messages.
        tokenizer, assistant_tokenizer: the target's and the draft's (None: the one beside its checkpoint).
        listener: is told what comes next, how many prompts are done, and of how many.
        generation: further arguments of `generate()`: temperature, top_p, …

    Raises:
        SpecUnsupportedError: the pair or the call cannot be decoded speculatively.
        ValueError: no prompts, nothing to draft.
    """
    largest = min(max_assistant_tokens, max_new_tokens - 2)  # the prefill gives one token, a round one beyond its draft
    if largest < 1:
        raise ValueError(
            f"max_new_tokens={max_new_tokens}, max_assistant_tokens={max_assistant_tokens}: with less than 3 and 1 "
            "there is nothing to draft."
        )
    if not prompts:
        raise ValueError("There are no prompts to measure with.")
    pair = Pair(target, draft, (tokenizer, assistant_tokenizer), largest, {"do_sample": do_sample, **generation})
    inputs = [encode(tokenizer, prompt).to(pair.device) for prompt in prompts]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of lengths that so few tokens cannot have
        pair.sweep(inputs[0], itertools.repeat(1), new=4)  # to warm up; refuses what cannot be decoded speculatively
        pair.decode(inputs[0], new=4)
    turns, samples = itertools.cycle(range(1, largest + 1)), []
    for done, one in enumerate(inputs):
        listener("measuring", done, len(inputs))
        expected, watch = pair.decode(one, max_new_tokens)
        sweep = pair.sweep(one, turns, max(max_new_tokens, SWEEP_TOKENS))
        samples.append(
            Sample(
                one["input_ids"].shape[1],
                expected,
                watch.first_token_seconds,
                watch.step_seconds,
                sweep.begin_seconds,
                sweep.rounds,
            )
        )
    for i in range(largest):  # few prompts: again, until each K has been seen often enough
        widths = [width for sample in samples for width, _, _ in sample.rounds]
        if min(map(widths.count, range(1, largest + 1))) >= ROUNDS:
            break
        sample, one = samples[i % len(samples)], inputs[i % len(samples)]
        sample.rounds.extend(pair.sweep(one, turns, max(max_new_tokens, SWEEP_TOKENS)).rounds)
    return measurement_of(samples, largest, max_new_tokens=max_new_tokens, do_sample=do_sample)


class Pair:
    """A target and a draft, the largest K, and the arguments of every call."""

    def __init__(self, target, draft, tokenizers, largest: int, options: dict[str, Any]):
        self.target = unwrap(target)
        check_model(self.target, "target")
        self.draft = check_draft(self.target, draft, SpecConfig(spec_strategy="rejection"))
        if self.target.config.is_encoder_decoder:
            raise SpecUnsupportedError(
                f"{type(self.target).__name__} reads prompts with an encoder, and measure_pair has the draft read "
                "prompt and answer as one text. Compare calls of generate() with and without the draft."
            )
        self.vocabulary = pair_up(self.target, self.draft, *tokenizers)
        self.largest = largest
        self.options = {"tokenizer": tokenizers[0], **options}  # for stop_strings
        self.device = device_of(self.target, torch.device("cpu"))

    def decode(self, inputs, new: int) -> tuple[Outlook, Watch]:
        """The target's own answer: what to expect of the draft on it, and the time it took."""
        options = {**self.options, "max_new_tokens": new}
        watch = Watch()
        out = SpecGenerationMixin.generate(
            self.target, **inputs, **options, streamer=watch, output_scores=True, return_dict_in_generate=True
        )
        processors, config = self._prepared(inputs, options)
        context = compat.context_length(self.target)
        drafter = self._drafter(config)
        if isinstance(drafter, TextDrafter):
            return free_run(drafter, out.sequences[0], out.scores, config, context, self.largest), watch
        text = agreement(drafter, out.sequences[0], out.scores, processors, config, context)
        return outlook(text, self.largest), watch

    def sweep(self, inputs, turns: Iterator[int], new: int) -> Sweep:
        """One speculative call with the Ks of `turns`. It does not end before `new` tokens: only its times count."""
        room = compat.context_length(self.target) - inputs["input_ids"].shape[1]
        options = {**self.options, "max_new_tokens": int(max(1, min(new, room)))}
        options |= {"eos_token_id": None, "stop_strings": None}
        sweep = Sweep(self._drafter(self._prepared(inputs, options)[1]), turns)
        SpecGenerationMixin.generate(
            self.target,
            **inputs,
            **options,
            assistant_model=sweep,
            spec_strategy="rejection",
            num_assistant_tokens=new,
            num_assistant_tokens_schedule="constant",
        )
        return sweep

    def _drafter(self, config: GenerationConfig) -> ModelDrafter:
        never = compat.placeholder_ids(self.target)
        return drafter_for(
            self.draft,
            config,
            threshold=None,
            device=self.device,
            rows=1,
            source=None,
            never=never,
            vocabulary=self.vocabulary,
        )

    def _prepared(self, inputs, options: dict[str, Any]) -> tuple[LogitsProcessorList, GenerationConfig]:
        """What `generate` hands to a decoding loop for this call."""

        def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **_):
            return logits_processor, generation_config

        options = {**options, "stop_strings": None}  # transformers hands no tokenizer to such a call
        return SpecGenerationMixin.generate(self.target, **inputs, **options, custom_generate=loop)
