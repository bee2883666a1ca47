"""What differs between the supported transformers versions (5.17 and newer), in one place."""

import functools
import inspect
from collections.abc import Callable

from transformers import GenerationMixin, cache_utils
from transformers.generation import utils as generation_utils

CACHE_NAMES = ("cache", "past_key_values", "cache_params")  # newest first: 5.21 renamed the second into the first

CACHE_NAME: str = next(
    n for n in CACHE_NAMES if n in inspect.signature(GenerationMixin.prepare_inputs_for_generation).parameters
)
"""The name under which this transformers passes the KV cache around in `generate` and its outputs."""


DUMMY_LAYERS: tuple[type, ...] = tuple(
    getattr(cache_utils, name) for name in ("DummyLayer",) if hasattr(cache_utils, name)
)
"""Cache layers that hold nothing, because their layer reads another one's keys and values (newer versions only)."""


CHUNKS_BEHIND_CACHE: bool = hasattr(generation_utils, "_slice_mm_encoder_output")
"""Whether a prefill in chunks goes on from a filled cache (older versions read the whole text onto it)."""

PREFILL_ONLY: tuple[str, ...] = (
    *generation_utils.MULTIMODAL_INPUTS_TO_DROP_OUTSIDE_PREFILL,
    "image_grid_thw",
    "video_grid_thw",
    "second_per_grid_ts",
)
"""Images, sound, video: inputs of a model's first forward only."""


@functools.lru_cache(maxsize=256)
def _forward(model_class: type) -> dict[str, inspect.Parameter]:
    """The arguments of a class's `forward`; those of the inherited one too where it hands on `**kwargs`."""
    found = {}
    for cls in model_class.__mro__:
        if "forward" not in vars(cls):
            continue
        parameters = inspect.signature(vars(cls)["forward"]).parameters
        found = {**parameters, **found}
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values()):
            break
    return found


def forward_parameters(model) -> frozenset[str]:
    """Names of the arguments that the model's `forward` (perhaps wrapped) names itself: what `generate` goes by."""
    return frozenset(inspect.signature(model.forward).parameters)


def takes_positions(model) -> bool:
    """Whether each forward of the model is told the positions of its ids."""
    return "position_ids" in forward_parameters(model) and not model.config.is_encoder_decoder


def takes_cache(model_class: type) -> bool:
    """Whether the class's `forward` takes a transformers `Cache` (XLM's `cache` is a dict of its own)."""
    parameters = _forward(model_class)
    annotations = [str(parameters[n].annotation) for n in CACHE_NAMES if n in parameters]
    return any(not a.startswith("dict") for a in annotations)


def cache_argument(model) -> str:
    """The name under which this model's `forward` takes its KV cache (remote code may still use an older one)."""
    known = _forward(type(model))
    return next((n for n in (CACHE_NAME, *CACHE_NAMES) if n in known), CACHE_NAME)


def text_config(model):
    """The config of the part of a model that decodes text."""
    return model.config.get_text_config(decoder=True)


def context_length(model) -> float:
    """Positions that the model's config promises; infinite where it names none."""
    config = text_config(model)
    named = (getattr(config, name, None) for name in ("max_position_embeddings", "max_target_positions"))
    return next((n for n in named if n), float("inf"))


def keeps_state(model) -> bool:
    """Whether layers of the model keep a recurrent or convolutional state instead of, or beside, keys and values."""
    layers = cache_utils.DynamicCache(config=text_config(model)).layers
    return any(isinstance(layer, cache_utils.LinearAttentionCacheLayerMixin) for layer in layers)


def prepares_inputs(model) -> bool:
    """Whether the model's class changes what `generate` hands to its forward."""
    return type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation


def placeholder_ids(model) -> list[int]:
    """Ids that stand for images, video or sound in a prompt."""
    kinds = ("image", "video", "audio", "vision")
    names = [f"{kind}_token_{end}" for kind in kinds for end in ("id", "index")]
    found = (getattr(model.config, name, None) for name in names)
    return sorted({i for i in found if isinstance(i, int)})


def ends_of(config) -> list[int]:
    """The EOS ids of a GenerationConfig that `generate` has prepared."""
    return [] if config._eos_token_tensor is None else config._eos_token_tensor.flatten().tolist()


def prompt_of(kwargs: dict):
    """The ids among `generate`'s keyword arguments, under either name, or None."""
    return kwargs["inputs"] if kwargs.get("inputs") is not None else kwargs.get("input_ids")


def pop_cache(kwargs: dict):
    """Take the KV cache out of `generate`'s keyword arguments, whatever its name; None if there is none."""
    found = [kwargs.pop(n, None) for n in CACHE_NAMES]
    return next((c for c in found if c is not None), None)


def name_of_cache(kwargs: dict) -> str:
    """The name under which the KV cache is among `generate`'s prepared arguments."""
    return next((n for n in CACHE_NAMES if kwargs.get(n) is not None), CACHE_NAME)


def cache_of(outputs):
    """The KV cache in a model's output, or None."""
    return next((c for n in CACHE_NAMES if (c := outputs.get(n)) is not None), None)


def original(function: Callable) -> Callable:
    """Strip our own wrapper, if `enable()` has put one there."""
    return getattr(function, "_hf_specgen_wraps", function)
