"""load_pair: check a target and a draft, load both where they fit, and switch speculation on, in one call."""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .report import PairReport, require_usable
from .source import Source

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..quantization import Quantization
    from .sides import ModelOrFolder

UNNAMED = ("auto", "balanced", "balanced_low_0", "sequential", "disk")  # in a device_map; accelerate names the devices


@dataclass(frozen=True, repr=False)
class Pair:
    """A target that decodes with its draft: `pair.generate` is `pair.target.generate`, the draft among its defaults."""

    target: PreTrainedModel
    draft: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    """The target's; None where its folder has none."""
    assistant_tokenizer: PreTrainedTokenizerBase | None
    """The draft's, where its ids are not the target's."""
    report: PairReport
    quantization: tuple[str, str]
    """Of the target and the draft; "dense" for none."""

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        return self.target.generate(*args, **kwargs)

    def __repr__(self) -> str:
        models = zip(("target", "draft"), (self.target, self.draft), self.quantization, strict=True)
        lines = [f"{role:8} {_described(model)}, {quantization}" for role, model, quantization in models]
        return "\n".join([*lines, f"verdict  {self.report.verdict}", *(f"- {why}" for why in self.report.reasons)])


def load_pair(
    target: ModelOrFolder,
    draft: ModelOrFolder,
    *,
    draft_quantization: Quantization = None,
    target_quantization: Quantization = None,
    device_map: str | dict[str, Any] | None = "auto",
    draft_device: str | int | torch.device | None = None,
    max_memory: Mapping[int | str, int | str] | None = None,
    dtype: str | torch.dtype = "auto",
    reserve: str | int = "2GiB",
    batch_size: int = 1,
    length: int = 4096,
    allow_pickle: bool = False,
    target_kwargs: Mapping[str, Any] | None = None,
    draft_kwargs: Mapping[str, Any] | None = None,
    **defaults: Any,
) -> Pair:
    """Load two models that fit each other, the draft whole on one device, and enable the target.

    The pair, the packages, both checkpoints and the memory are checked before anything is loaded. If loading fails
    half-way, nothing stays in memory.

    Args:
        target, draft: a folder, a Hub id, or a model (which is taken as it is); also a GGUF file.
        draft_quantization, target_quantization: "nf4", "fp4", "int8" (bitsandbytes), "torchao-int8", "int4" (torchao),
            "awq" (an AWQ checkpoint), "gguf", a quantization config of transformers, or None: as the checkpoint is. The
            draft's head is quantized too, unless a config says otherwise (for AWQ on a CPU only; for GGUF never).
        device_map: of the target, as in `from_pretrained`. "auto" counts the draft's weights, both KV caches for
            `batch_size` rows of `length` tokens, and `reserve` on every device before it places the target.
        draft_device: where the whole draft goes; by default where the target's head is.
        max_memory: as in `from_pretrained`. What does not fit on the accelerators goes to "cpu", and then to "disk" if
            both are named.
        dtype: of what is not quantized; "auto" is each checkpoint's own. AWQ and int4 have that of their kernels.
        allow_pickle: load pickled weights, which can run code.
        target_kwargs, draft_kwargs: more for `from_pretrained`, such as `attn_implementation`. With
            `distributed_config=` (or `tp_plan=`) for the target, under torchrun, each rank loads a whole draft.
        defaults: speculative arguments for every `generate()`: `num_assistant_tokens`, `spec_fallback` … The strategy
            is "rejection" unless `spec_strategy` says otherwise.

    Raises:
        SpecUnsupportedError: the pair is refused, or a back end does not run on its device.
        ImportError: a package is missing; with the pip line.
        CheckpointError, OSError, ValueError: names, checkpoints, quantizations or memory that cannot do.
    """
    from hf_specgen.api import enable

    from .check import check_pair

    defaults = {"spec_strategy": "rejection", **defaults}
    _check_defaults(defaults)
    target_kwargs, draft_kwargs = dict(target_kwargs or {}), dict(draft_kwargs or {})
    ours, theirs = Source(target, target_quantization), Source(draft, draft_quantization)
    tokenizers = {"tokenizer": ours.tokenizer, "assistant_tokenizer": theirs.tokenizer}
    quantizations = {"target_quantization": target_quantization, "draft_quantization": draft_quantization}
    report = require_usable(check_pair(ours.checked, theirs.checked, **tokenizers, **quantizations))
    for side in (ours, theirs):
        side.check_weights(allow_pickle)
    by_itself = ours.model is not None or target_kwargs.keys() & {"distributed_config", "tp_plan", "tp_size"}
    if by_itself or (device_map == "auto" and max_memory is None and not _has_accelerator()):
        device_map = None
    elif device_map == "auto" and theirs.model is not None:  # what is free now is without the draft
        target_kwargs["max_memory"] = max_memory and dict(max_memory)
    elif device_map == "auto":
        from ..planning.plan import plan_pair

        plan = plan_pair(
            ours.facts,
            theirs.facts,
            devices=max_memory,
            **quantizations,
            draft_device=draft_device,
            batch_size=batch_size,
            length=length,
            reserve=reserve,
            dtype=dtype,
        )
        device_map, draft_device = plan.device_map, plan.draft_device
    ours.backend.check(_devices(device_map))
    theirs.backend.check([_device(draft_device) or _head_place(ours.model, device_map)])

    models: list[PreTrainedModel] = []
    try:
        models.append(ours.load(device_map, _head_place(ours.model, device_map), dtype, **target_kwargs))
        home = _device(draft_device) or _head_place(models[0], None)
        models.append(theirs.load({"": home}, home, dtype, draft=True, **draft_kwargs))
        tokenizer = ours.tokenizer or ours.read_tokenizer()
        speculative = {**defaults, "assistant_model": models[1], "tokenizer": tokenizer}
        if theirs.tokenizer is not None or report.verdict in ("mappable", "cross-vocabulary"):
            speculative["assistant_tokenizer"] = theirs.tokenizer or theirs.read_tokenizer()
        enable(models[0], **speculative)
    except BaseException as error:
        models.clear()
        _forget(error)
        raise
    loaded_as = (str(ours.backend), str(theirs.backend))
    return Pair(*models, tokenizer, speculative.get("assistant_tokenizer"), report, loaded_as)


def _check_defaults(defaults: dict[str, Any]) -> None:
    """Wrong names and values are told before anything is loaded."""
    from hf_specgen.config import take_settings

    left = dict(defaults)
    take_settings(left)
    if left:
        raise TypeError(f"load_pair() got {sorted(left)}, which are no arguments of its own, nor speculative ones.")


def _has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


def _device(place: Any) -> torch.device | None:
    """Raises ValueError for a device that this machine lacks."""
    import torch

    if place is None:
        return None
    device = torch.device(place)
    here = torch.accelerator.current_accelerator() if _has_accelerator() else None
    if device.type != "cpu" and (here is None or device.type != here.type):
        raise ValueError(f"{device} is not on this machine{'' if here is None else f', which has {here.type}'}.")
    return device


def _devices(device_map: str | dict[str, Any] | None) -> list[torch.device]:
    """Where a map computes. What is on the disk is brought to the first device."""
    import torch

    if device_map is None:
        return [torch.device("cpu")]
    first = torch.accelerator.current_accelerator() if _has_accelerator() else torch.device("cpu")
    places = dict.fromkeys(device_map.values() if isinstance(device_map, dict) else [device_map])
    return [first if place in UNNAMED else _device(place) for place in places]


def _head_place(model: PreTrainedModel | None, device_map: dict[str, Any] | None) -> torch.device:
    """The device on which the head of a model computes; before the model is loaded, by its map, whose last it is."""
    import torch

    if model is None:
        return _devices({"": [*device_map.values()][-1]} if isinstance(device_map, dict) else device_map)[0]
    head = model.get_output_embeddings()
    if head.weight.device.type == "meta":  # offloaded: its hook brings it where it computes
        return torch.device(head._hf_hook.execution_device)
    return head.weight.device


def _forget(error: BaseException) -> None:
    """Empty the frames that the error's tracebacks hold: a model half loaded would stay in memory with them."""
    import torch

    chain: BaseException | None = error
    while chain is not None:
        traceback.clear_frames(chain.__traceback__)
        chain = chain.__cause__ or chain.__context__
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _described(model: PreTrainedModel) -> str:
    """`folder on cpu, bfloat16`"""
    placed = Counter(map(str, getattr(model, "hf_device_map", {"": model.device}).values()))
    where = (
        next(iter(placed)) if len(placed) == 1 else ", ".join(f"{place} ({n} modules)" for place, n in placed.items())
    )
    name = getattr(model.config, "name_or_path", None) or type(model).__name__
    return f"{name} on {where}, {str(model.dtype).removeprefix('torch.')}"
