"""What two checkpoints, by their headers, add to a report: what is missing, sizes, the ratio of costs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint, CheckpointError, NoWeightsError, read_checkpoint
from ..checkpoints.config import read_config
from ..checkpoints.hub import headers_of, name_of
from ..checkpoints.memory import WeightFormat, bytes_per_token, kv_bytes, weight_bytes, weight_format
from .heads import head_by_tensors
from .report import PairReport, Weights

SHOWN = 5
UNKNOWN_SIZES = (ValueError, TypeError, LookupError, ArithmeticError)
"""What an estimate raises for a config that does not say enough, or says it in words unknown here."""
CAUSAL_LM = re.compile(r"(CausalLM\w*|LMHeadModel|ConditionalGeneration\w*)$")
OTHER_TASK = re.compile(r"(Model|For\w+)$")


def add_weights(report: PairReport, models: Sequence[Any], quantizations: Sequence[Any]) -> PairReport:
    """The report with `Weights` of each side that is a folder.

    Args:
        models: target and draft.
        quantizations: that they will be loaded with; None as they are.

    Raises:
        CheckpointError: weights that are corrupt, or only partly there, of a pair that is not refused anyway.
    """
    found: dict[str, Any] = {}
    faults, notes = [], []
    reads = {}
    for role, folder, quantization in zip(("target", "draft"), models, quantizations, strict=True):
        if not isinstance(folder, Path) or not (folder / "config.json").exists():
            continue
        config = read_config(folder)
        try:
            checkpoint = _checkpoint(folder, config)
        except CheckpointError as error:
            if report.verdict != "refused" and not isinstance(error, NoWeightsError):
                raise
            notes.append(f"The {role}'s weights were not checked: {error}")
            continue
        if checkpoint.tensors:
            form = _format(quantization, head=role == "draft")
            try:
                reads[role] = bytes_per_token(config, checkpoint, form=form)
                found[f"{role}_weights"] = _summary(checkpoint, config, form and (quantization, form))
            except UNKNOWN_SIZES as error:
                notes.append(f"The {role}'s memory and cost were not estimated ({type(error).__name__}: {error}).")
        faults += _faults(role, folder, config, checkpoint)
        notes += _notes(role, folder, config, checkpoint)
    parameters = [found[key].parameters for key in ("target_weights", "draft_weights") if key in found]
    if len(parameters) == 2 and parameters[0] and reads["target"]:
        found["parameter_ratio"] = parameters[1] / parameters[0]
        found["cost_ratio"] = reads["draft"] / reads["target"]
        if found["cost_ratio"] > 0.5:
            notes.append(
                f"The draft reads {found['cost_ratio']:.2f} of the target's bytes per token: it can hardly win. "
                "Below 0.3 is usual; a smaller or quantized draft may do."
            )
    if faults and report.verdict != "refused":
        return replace(report, verdict="refused", reasons=(*faults, *report.reasons, *notes), **found)
    return replace(report, reasons=(*report.reasons, *notes), **found) if found or notes else report


def _format(quantization: Any, head: bool) -> WeightFormat | None:
    try:
        return weight_format(quantization, head=head)
    except UNKNOWN_SIZES:
        if isinstance(quantization, str):
            raise
        return None  # a transformers config whose sizes are not known here: an estimate less, no obstacle


def _checkpoint(folder: Path, config: dict[str, Any]) -> Checkpoint:
    try:
        return read_checkpoint(folder, config, allow_pickle=True)
    except NoWeightsError:
        name = name_of(folder)
        if name is None:
            raise
    try:
        return Checkpoint.of(headers_of(name), config)  # a Hub repository, of which only the small files are here
    except FileNotFoundError as error:  # offline, or pickled only
        raise NoWeightsError(str(error)) from None


def _summary(checkpoint: Checkpoint, config: dict[str, Any], chosen: tuple[Any, WeightFormat] | None) -> Weights:
    stored, size = checkpoint.quantization, checkpoint.bytes
    how = None if stored is None else f"{stored.method}{f' {stored.bits}-bit' if stored.bits else ''}"
    if chosen is not None:
        how, size = _name_of(chosen[0]), weight_bytes(config, checkpoint, form=chosen[1])
    return Weights(checkpoint.parameters, size, checkpoint.dtype, how, kv_bytes(config, 1, 1))


def _name_of(quantization: Any) -> str:
    if isinstance(quantization, str):
        return quantization
    from ..quantization.given import method_of

    return method_of(quantization)


def _faults(role: str, folder: Path, config: dict[str, Any], checkpoint: Checkpoint) -> list[str]:
    if kind := head_by_tensors(list(checkpoint.tensors)):
        return [f"The {role} {folder} holds the tensors of {kind}, not of a causal LM. Pass a whole causal LM instead."]
    if checkpoint.missing and (other := _other_task(config)):
        return [
            f"The {role} {folder} is a {other}, not a causal LM: it lacks {_listed(checkpoint.missing)}. Pass a whole "
            "causal LM instead."
        ]
    if checkpoint.missing:
        return [
            f"The {role} {folder} lacks {_listed(checkpoint.missing)}: transformers would make them up at random. "
            "Download it again, or save it anew."
        ]
    return []


def _notes(role: str, folder: Path, config: dict[str, Any], checkpoint: Checkpoint) -> list[str]:
    notes = []
    if checkpoint.pickled:
        notes.append(f"The {role}'s weights are pickled: load_pair takes them only with allow_pickle=True.")
    if checkpoint.unexpected:
        other = _other_task(config)
        kind = f" (its config calls it a {other}; a causal LM is loaded from it)" if other else ""
        notes.append(f"The {role}'s model has no place for {_listed(checkpoint.unexpected)}{kind}.")
    if (folder / "adapter_config.json").exists():
        notes.append(
            f"The {role}'s folder also holds an adapter_config.json: transformers loads that adapter with it if peft "
            "is installed."
        )
    return notes


def _other_task(config: dict[str, Any]) -> str | None:
    """The architecture, where it is none that generates text: a reward model's, a base model's without a head."""
    named = config.get("architectures") or ()
    return next((n for n in named if OTHER_TASK.search(n) and not CAUSAL_LM.search(n)), None)


def _listed(names: tuple[str, ...]) -> str:
    return f"{len(names)} tensors ({', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''})"
