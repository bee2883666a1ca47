"""load_pair: check a target and a draft, load both where they fit, and switch speculation on, in one call."""

from __future__ import annotations

import gc
import os
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .arguments import check_defaults, check_sizes, checked_dtype, checked_kwargs
from .origin import Origin
from .places import check_device_map, check_max_memory, device_at, devices_of, has_accelerator, head_place
from .report import PairReport, require_usable

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..quantization import Quantization
    from .sides import ModelOrFolder


@dataclass(frozen=True, repr=False)
class Pair:
    """A target that decodes with its draft, which is among the defaults of its `generate`."""

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
        """As `target.generate`; tensors go to where the target takes its ids (an offloaded one's `device` is meta)."""
        import torch

        from hf_specgen.cache.reader import device_of

        def placed(x: Any) -> Any:
            return x.to(device_of(self.target, x.device)) if isinstance(x, torch.Tensor) else x

        return self.target.generate(*map(placed, args), **{name: placed(x) for name, x in kwargs.items()})

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
            is "rejection" unless `spec_strategy` or a `spec_config` says otherwise.

    Raises:
        SpecUnsupportedError: the pair is refused, or a back end does not run on its device.
        ImportError: a package is missing; with the pip line.
        CheckpointError, OSError, ValueError: names, checkpoints, quantizations or memory that cannot do.
    """
    from hf_specgen.api import enable

    from .check import check_pair

    if "spec_config" not in defaults:
        defaults = {"spec_strategy": "rejection", **defaults}
    check_defaults(defaults)
    check_sizes(batch_size, length, reserve)
    check_device_map(device_map)
    device_at(draft_device, "draft_device")
    if max_memory is not None:
        if device_map != "auto":
            raise ValueError(f'max_memory= is for device_map="auto", not for {device_map!r}: pass one of the two.')
        check_max_memory(max_memory)
    asked = {"device_map": device_map != "auto", "max_memory": max_memory is not None}
    asked_of_draft = {"draft_device": draft_device is not None}
    for name, given, of_side in (("target", target, asked), ("draft", draft, asked_of_draft)):
        kwargs = target_kwargs if name == "target" else draft_kwargs
        useless = [argument for argument, here in {**of_side, f"{name}_kwargs": bool(kwargs)}.items() if here]
        if useless and not isinstance(given, (str, os.PathLike)):
            raise ValueError(f"The {name} is loaded already, so {useless[0]}= would do nothing: leave it out.")
    target_kwargs = checked_kwargs("target_kwargs", target_kwargs)
    draft_kwargs = checked_kwargs("draft_kwargs", draft_kwargs)
    dtype = checked_dtype(dtype)

    ours, theirs = Origin("target", target, target_quantization), Origin("draft", draft, draft_quantization)
    tokenizers = {"tokenizer": ours.tokenizer, "assistant_tokenizer": theirs.tokenizer}
    quantizations = {"target_quantization": target_quantization, "draft_quantization": draft_quantization}
    report = require_usable(check_pair(ours.checked, theirs.checked, **tokenizers, **quantizations))
    for side in (ours, theirs):
        side.check_weights(allow_pickle)
    gc.collect()  # a target that was enabled holds itself: one dropped a moment ago is still in memory
    by_itself = ours.model is not None or target_kwargs.keys() & {"distributed_config", "tp_plan", "tp_size"}
    if by_itself:
        device_map = None
    elif device_map == "auto":
        sizes = {"batch_size": batch_size, "length": length, "reserve": reserve, "dtype": dtype, **quantizations}
        remote = target_kwargs["trust_remote_code"] or draft_kwargs["trust_remote_code"]
        device_map, draft_device = _planned(ours, theirs, max_memory, draft_device, remote, **sizes)
    home = device_at(draft_device, "draft_device")
    ours.backend.check(devices_of(device_map))
    theirs.backend.check([home or head_place(ours.model, device_map)])
    for side in (ours, theirs):
        side.backend.dtype(dtype, head_place(ours.model, device_map))
    tokenizer = ours.tokenizer or ours.read_tokenizer(target_kwargs["trust_remote_code"])
    speculative = {**defaults, "tokenizer": tokenizer}
    if theirs.tokenizer is not None or report.ids_differ:
        read = theirs.tokenizer or theirs.read_tokenizer(draft_kwargs["trust_remote_code"])
        speculative["assistant_tokenizer"] = read

    models: list[PreTrainedModel] = []
    try:
        models.append(ours.load(device_map, head_place(ours.model, device_map), dtype, **target_kwargs))
        home = home or head_place(models[0], None)
        models.append(theirs.load({"": home}, home, dtype, draft=True, **draft_kwargs))
        enable(models[0], assistant_model=models[1], **speculative)
    except BaseException as error:
        models.clear()
        _forget(error)
        raise
    loaded_as = ours.loaded_as(models[0]), theirs.loaded_as(models[1])
    return Pair(models[0], models[1], tokenizer, speculative.get("assistant_tokenizer"), report, loaded_as)


def _planned(ours: Origin, theirs: Origin, max_memory: Any, draft_device: Any, remote: bool, **sizes: Any) -> tuple:
    """(device_map, draft_device). Without accelerators all is loaded as it comes, if the memory is enough.

    Raises:
        ValueError: no room, or no plan to be had.
    """
    from ..planning.plan import SpecMemoryError, plan_pair

    alone = max_memory is None and not has_accelerator()
    try:
        plan = plan_pair(ours.facts, theirs.facts, devices=max_memory, draft_device=draft_device, **sizes)
    except SpecMemoryError:
        raise
    except (ImportError, ValueError) as error:
        if alone:  # sizes that are not known are no reason to refuse
            return None, draft_device
        if remote:
            raise ValueError(f"A model with code of its own cannot be planned: pass device_map=. ({error})") from error
        raise
    if alone:
        return None, draft_device
    return plan.device_map, None if theirs.model is not None else plan.draft_device


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
