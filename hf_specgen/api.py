"""`enable`, `disable` and the mixin: how speculation gets into `generate()`."""

import contextlib
import copy
import functools
import inspect
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.candidate_generator import CandidateGenerator
from transformers.generation.utils import GenerateDecoderOnlyOutput
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_managed_module

from . import compat
from .config import ARGUMENTS, OURS, SpecConfig, rows_of, take_settings, temperature_of
from .decoding.call import Prepared, SpecRequest, decode
from .decoding.checks import check_arguments, check_draft, check_model
from .decoding.output import SpecGenerateOutput
from .decoding.stream import Stream
from .drafters import Drafter, Source, drafter_for, with_lookup
from .errors import SpecUnsupportedError
from .lengths import GoodputLength
from .pairing import pair_up
from .stats import SpecStats, publish
from .unwrap import unwrap

_STOCK_GENERATE = compat.original(GenerationMixin.generate)
_POSITIONAL = tuple(inspect.signature(_STOCK_GENERATE).parameters)[1:]


OTHER_VOCABULARY = (
    "The draft has another vocabulary than the target: tokens are matched by the text they stand for, and fewer are "
    "accepted than of a draft with the target's tokenizer. If that is meant, pass tokenizer= and assistant_tokenizer=."
)
_DEFAULTS = {*ARGUMENTS, "spec_config", "assistant_model", "tokenizer", "assistant_tokenizer"}
_ON = ("spec_strategy", "spec_config")
"""Either of them makes a call speculative."""
_ALONE_IN_VAIN = tuple(name for name in OURS if name not in (*_ON, "compile", "generator"))
"""Settings that say nothing without one of those; the two names may be those of a model's own arguments."""


def _inherited(model, name: str):
    """A model class's own method, past the mixin and past what `enable()` has wrapped."""
    for cls in type(model).__mro__:
        if name in vars(cls) and cls is not SpecGenerationMixin:
            return compat.original(vars(cls)[name])
    raise AttributeError(name)


def _for_plain(kwargs: dict[str, Any], by_hand: bool) -> dict[str, Any]:
    """The arguments of a call that is not speculative.

    Args:
        by_hand: it was switched off: what belongs to speculation goes with it, but for a generator, which must not.
    """
    if kwargs.get("custom_generate") and not by_hand:  # whose arguments may have any name
        return kwargs
    if by_hand and kwargs.pop("generator", None) is not None:
        raise SpecUnsupportedError("generator= needs a spec_strategy; plain decoding draws from torch's own.")
    given = [name for name in _ALONE_IN_VAIN if kwargs.get(name) is not None]
    if given and not by_hand:
        raise SpecUnsupportedError(
            f'{given[0]}={kwargs[given[0]]!r} needs a spec_strategy: pass spec_strategy="rejection" too (or a '
            f"spec_config), or leave {given[0]} out to decode plainly."
        )
    return {name: value for name, value in kwargs.items() if name not in (*_ON, *_ALONE_IN_VAIN)}


class SpecGenerationMixin(GenerationMixin):
    """`generate()` with `spec_strategy=` or `spec_config=`. Without them, every method is the class's own.

    Used by `enable` on models as they are, or as a base class: `class MyLlama(SpecGenerationMixin, LlamaForCausalLM)`.
    """

    @torch.no_grad()
    @functools.wraps(_STOCK_GENERATE, assigned=())  # the signature; not the name, by which it is pickled
    def generate(self, *args, **kwargs):
        """As `GenerationMixin.generate`, with these arguments more (see `SpecConfig`):

        spec_strategy: "rejection", "block" or "coupled"; None decodes as ever.
        spec_config: a `SpecConfig`, or the folder of one: what `hf-specgen tune` has found, for all that is not said.
        spec_source: "hybrid", "draft", "lookup" or "none": where drafts come from.
        spec_fallback: "plain" to decode without the draft what cannot be decoded exactly with it.
        generator: a `torch.Generator`, or a list of one (or None) per row.
        spec_session: a `SpecSession`, for conversations.
        assistant_model may also be a transformers `CandidateGenerator` or a `Drafter`.

        Raises:
            SpecUnsupportedError: before the first token, naming the cause and the way out.
        """
        defaults = kwargs.pop("spec_defaults", {})  # of `enable`; not for a call that wants it otherwise
        if kwargs.get("spec_config") is None:
            kwargs.pop("spec_config", None)
        by_hand = "spec_strategy" in kwargs and kwargs["spec_strategy"] is None  # switched off
        asked = not by_hand and any(name in kwargs for name in _ON)
        if by_hand or (not asked and kwargs.get("custom_generate")):
            defaults = {}
        if not asked and not any(name in defaults for name in _ON):
            return _inherited(self, "generate")(self, *args, **_for_plain(kwargs, by_hand))
        settings = SimpleNamespace(**{name: x for name, x in defaults.items() if name in (*ARGUMENTS, "spec_config")})
        if kwargs.get("assistant_model", defaults.get("assistant_model")) is not defaults.get("assistant_model"):
            defaults = {name: x for name, x in defaults.items() if name != "assistant_tokenizer"}  # of another draft
        kwargs = {name: x for name, x in defaults.items() if name not in vars(settings)} | kwargs
        kwargs.update(zip(_POSITIONAL, args, strict=False))
        stream = Stream(kwargs.get("streamer"))
        try:
            out = _with_fallback(self, kwargs, stream, settings)
        except BaseException:
            with contextlib.suppress(Exception):  # whoever listens to an iterator streamer must not wait for ever
                stream.end()
            raise
        stream.end()
        return out

    def _assisted_decoding(self, input_ids, *args, spec_request: SpecRequest | None = None, **kwargs):
        """Our loop for a call with `spec_strategy`; the class's own for any other."""
        if spec_request is None:
            return _inherited(self, "_assisted_decoding")(self, input_ids, *args, **kwargs)
        processors, criteria, config = (
            kwargs.pop(name) for name in ("logits_processor", "stopping_criteria", "generation_config")
        )

        inputs_tensor = kwargs.pop("inputs_tensor", None)

        def make_drafter(device: torch.device, rows: int, source: Source | None) -> Drafter | None:
            return SpecGenerationMixin._get_candidate_generator(
                self, config, input_ids=input_ids, spec_request=spec_request, device=device, rows=rows, source=source
            )

        call = Prepared(self, input_ids, processors, criteria, config, inputs_tensor, kwargs)
        return decode(call, spec_request, make_drafter)

    def _get_candidate_generator(self, generation_config, *args, spec_request: SpecRequest | None = None, **kwargs):
        """The `Drafter` of a call with `spec_strategy` (None without a draft), else the class's own generator."""
        if spec_request is None:
            return _inherited(self, "_get_candidate_generator")(self, generation_config, *args, **kwargs)
        never, settings = compat.placeholder_ids(self), spec_request.settings
        if settings.spec_source == "none":
            return None
        drafter = drafter_for(
            spec_request.draft if settings.spec_source != "lookup" else None,
            generation_config,
            settings.assistant_confidence_threshold,
            vocabulary=spec_request.vocabulary,
            never=never,
            draft_vocab_size=settings.draft_vocab_size,
            may_trim=isinstance(settings.length, GoodputLength) and not settings.compile,
            **{name: kwargs[name] for name in ("device", "rows", "source")},
        )
        return with_lookup(drafter, settings, generation_config, never)


def _with_fallback(model, kwargs, stream: Stream, defaults: SimpleNamespace):
    """Decode speculatively, or plainly if that was refused and the caller wants it so. `defaults`: of `enable`."""
    draft = kwargs.pop("assistant_model", None)
    given, own = kwargs.get("generation_config"), model.generation_config
    asked, enabled = kwargs.pop("spec_config", None), getattr(defaults, "spec_config", None)
    if asked is not None:
        enabled = None
    asked, enabled = (_tuned(model, draft, config, kwargs, given) for config in (asked, enabled))
    settings = take_settings(kwargs, asked, given, defaults, enabled, own, getattr(draft, "generation_config", None))
    if _needs_no_loop(settings, stream):
        return _plain(model, kwargs, settings, stream, off_reason=settings.length.why_off)
    try:
        return _speculate(model, draft, settings, stream, {k: v for k, v in kwargs.items() if k != "streamer"})
    except SpecUnsupportedError as error:
        if settings.spec_fallback != "plain":
            raise
        if settings.generator is not None and _may_draw(kwargs, given, own):
            raise SpecUnsupportedError(
                'generator= and spec_fallback="plain": plain decoding, which this call needs, draws from torch\'s own '
                f"generator. Call torch.manual_seed() and drop generator=. Why plain decoding: {error}"
            ) from error
        warnings.warn(f"Decoding without the draft: {error}", stacklevel=4)
        return _plain(model, kwargs, settings, stream, fallback_reason=str(error))


def _may_draw(kwargs, *configs) -> bool:
    """Whether tokens may be sampled. Whisper goes by its temperature alone."""
    return temperature_of(kwargs, *configs) > 0 or kwargs.get("temperature") is not None


def _tuned(model, draft, config, kwargs, given) -> SpecConfig | None:
    """What a `spec_config` says for this call, if it is this pair's."""
    if config is None:
        return None
    config = SpecConfig.of(config)
    if config.tuned is not None:
        config.tuned.check(model, draft)
    return config.at(temperature_of(kwargs, given, model.generation_config), rows_of(kwargs))


def _speculate(model, draft, settings, stream, kwargs):
    """Check the pair and the call, then let the class's own `generate` prepare the inputs for our loop."""
    check_model(model, "target")
    draft = None if settings.spec_source == "none" else check_draft(model, draft, settings)
    tokenizer, assistant_tokenizer = kwargs.pop("tokenizer", None), kwargs.pop("assistant_tokenizer", None)
    vocabulary = None
    if draft is not None and not isinstance(draft, CandidateGenerator):
        vocabulary = pair_up(model, draft, tokenizer, assistant_tokenizer)
        if vocabulary is not None and not vocabulary.one_to_one and None in (tokenizer, assistant_tokenizer):
            warnings.warn(OTHER_VOCABULARY, stacklevel=5)
    check_arguments(kwargs, kwargs.get("generation_config"), model.generation_config)
    _heal(model, kwargs, tokenizer)
    request = SpecRequest(
        settings=settings,
        draft=draft,
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        stream=stream,
        synced_gpus=_needs_lockstep(model, kwargs.pop("synced_gpus", None)),
        stop_strings=_take_stop_strings(model, kwargs),
        logits_processor=kwargs.get("logits_processor"),
        prefix_allowed_tokens_fn=kwargs.get("prefix_allowed_tokens_fn"),
        cache=compat.pop_cache(dict(kwargs)),
        within=_inherited(model, "generate") is not _STOCK_GENERATE,
    )

    def loop(
        model, input_ids, logits_processor, stopping_criteria, generation_config, inputs_tensor=None, **model_kwargs
    ):
        return SpecGenerationMixin._assisted_decoding(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            spec_request=request,
            inputs_tensor=inputs_tensor,
            **model_kwargs,
        )

    return _inherited(model, "generate")(model, custom_generate=loop, **kwargs)


def _heal(model, kwargs, tokenizer) -> None:
    """Heal the prompt's last token before the call, as plain decoding does in it (a custom loop gets no tokenizer)."""
    configs = (kwargs.get("generation_config"), model.generation_config)
    settings = (kwargs.get("token_healing"), *(getattr(config, "token_healing", None) for config in configs))
    if not next((value for value in settings if value is not None), False):
        return
    ids, mask = compat.prompt_of(kwargs), kwargs.get("attention_mask")
    if tokenizer is None or ids is None or mask is None:
        raise SpecUnsupportedError("token_healing=True needs tokenizer=, input_ids and attention_mask= in the call.")
    healed = model.heal_tokens(ids, tokenizer)
    if healed.shape != ids.shape:
        raise SpecUnsupportedError(
            f"token_healing=True makes {healed.shape[1]} columns of {ids.shape[1]}, which the attention mask does not "
            "fit. Heal the prompt first (model.heal_tokens) and pass it with its own mask."
        )
    kwargs.pop("inputs", None)
    kwargs |= {"input_ids": healed, "token_healing": False}


def _needs_no_loop(settings: SpecConfig, stream: Stream) -> bool:
    """Whether a call without drafts asks for nothing but what plain decoding does, at no cost at all."""
    asked = settings.generator is not None or settings.spec_session is not None or stream.by_row or settings.compile
    return settings.spec_source == "none" and settings.spec_strategy != "coupled" and not asked


def _plain(model, kwargs, settings, stream: Stream, **reason: Any):
    """Plain decoding in place of a refused call, or of one without drafts, told apart in the statistics."""
    if stream.streamer is not None:
        kwargs["streamer"] = stream.for_plain
    kwargs.pop("assistant_tokenizer", None)
    out = _inherited(model, "generate")(model, **kwargs)
    stream.ended = True
    stats = SpecStats(strategy=settings.spec_strategy, lossless=True, calls=1, **reason)
    publish(stats)
    if isinstance(out, torch.Tensor):
        return out
    if type(out) is not GenerateDecoderOnlyOutput:  # beams, encoder-decoders
        out["spec_stats"] = stats
        return out
    prompt = compat.prompt_of(kwargs)
    columns = 0 if prompt is None else prompt.shape[1]
    mask = torch.zeros_like(out.sequences[:, columns:], dtype=torch.bool)
    return SpecGenerateOutput(**out, spec_stats=stats, draft_mask=mask)


def _needs_lockstep(model, synced_gpus: bool | None) -> bool:
    """transformers' own default for `synced_gpus`."""
    if synced_gpus is not None:
        return synced_gpus
    several = (
        torch.distributed.is_available()
        and torch.distributed.is_initialized()
        and torch.distributed.get_world_size() > 1
    )
    return several and (is_deepspeed_zero3_enabled() or is_fsdp_managed_module(model))


def _take_stop_strings(model, kwargs):
    """Take stop strings out of the call: a custom loop gets no tokenizer from transformers, which then would raise."""
    given, own = kwargs.get("generation_config"), model.generation_config
    found = [kwargs.pop("stop_strings", None), getattr(given, "stop_strings", None), getattr(own, "stop_strings", None)]
    if found[1] is not None:
        kwargs["generation_config"] = copy.deepcopy(given)
        kwargs["generation_config"].stop_strings = None
    if found[2] is not None:
        kwargs["stop_strings"] = None  # only the call itself outranks the model's config
    return next((strings for strings in found if strings is not None), None)


def _generate_everywhere(self, *args, **kwargs):
    return SpecGenerationMixin.generate(self, *args, **kwargs)


_EVERY = object()  # not None, which is a variable that was never set


def enable(model=_EVERY, **defaults):
    """Let `model.generate()` take `spec_strategy=`; without a model, let every generation model take it.

    `defaults` are speculative arguments for calls in code that does not know them:
    `enable(model, assistant_model=draft, spec_strategy="rejection")` (or `spec_config="folder"` in place of the
    strategy) turns speculation on in every `model.generate()`, in pipelines and evaluation harnesses. What a call says
    itself, or a GenerationConfig given to it, comes first; `spec_strategy=None` in a call decodes plainly.

    On a model, one attribute is set (`generate`), as transformers itself does for models with a custom generate; the
    model stays what it was: picklable, deep-copyable (a draft among the defaults goes with it), savable, of the same
    type. PEFT, compile and data-parallel wrappers are looked through.

    Returns:
        The model, as it was given.
    """
    wrong = sorted(set(defaults) - _DEFAULTS)
    if model is None:
        raise TypeError("enable() got None. Pass a model, or nothing at all for every generation model.")
    if wrong or (defaults and (model is _EVERY or all(defaults.get(name) is None for name in _ON))):
        what = f"enable() got {wrong}" if wrong else "enable() got defaults without a model or a spec_strategy"
        raise TypeError(f"{what}. It takes a model and spec_strategy=, with any of {', '.join(sorted(_DEFAULTS))}.")
    if model is _EVERY:
        if GenerationMixin.generate is _STOCK_GENERATE:
            wrapper = functools.wraps(_STOCK_GENERATE)(_generate_everywhere)
            wrapper._hf_specgen_wraps = _STOCK_GENERATE
            GenerationMixin.generate = wrapper
        return None
    inner = unwrap(model)
    if not isinstance(inner, GenerationMixin):
        raise TypeError(f"enable() takes a transformers generation model, not a {type(inner).__name__}.")
    if defaults:
        defaults = {"spec_defaults": _checked(inner, defaults)}
    replaced = vars(inner).get("generate")  # a repository's custom generate, which `disable` puts back
    if _is_ours(replaced):
        replaced = getattr(replaced, "replaced", None)
    inner.generate = functools.partial(SpecGenerationMixin.generate, inner, **defaults)
    if replaced is not None:
        inner.generate.replaced = replaced
    return model


def _checked(model, defaults: dict) -> dict:
    """`enable`'s defaults, in which wrong values are told at once; without those that are None."""
    defaults = {name: value for name, value in defaults.items() if value is not None}
    draft, config = defaults.get("assistant_model"), None
    if "spec_config" in defaults:
        config = defaults["spec_config"] = SpecConfig.of(defaults["spec_config"])
    settings = take_settings(dict(defaults), config)
    if settings.spec_source != "none":
        check_draft(model, draft, settings)
    if config is not None and config.tuned is not None:
        config.tuned.check(model, draft)
    return defaults


def _is_ours(bound) -> bool:
    return isinstance(bound, functools.partial) and bound.func is SpecGenerationMixin.generate


def disable(model=_EVERY):
    """Undo `enable` with the same argument. Harmless if there is nothing to undo.

    Returns:
        The model, as it was given.
    """
    if model is _EVERY:
        GenerationMixin.generate = _STOCK_GENERATE
        return None
    inner = unwrap(model)
    bound = vars(inner).get("generate")
    if _is_ours(bound):
        del inner.generate
        if hasattr(bound, "replaced"):
            inner.generate = bound.replaced
    return model
