"""What two checkpoints, by their headers, add to a report: what is missing, sizes, the ratio of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint, NoWeightsError, read_checkpoint
from ..checkpoints.config import read_json
from ..checkpoints.hub import headers_of, name_of
from ..checkpoints.memory import WeightFormat, bytes_per_token, kv_bytes, weight_bytes, weight_format
from .heads import head_by_tensors
from .report import PairReport, Weights

SHOWN = 5


def add_weights(report: PairReport, models: Sequence[Any], quantizations: Sequence[Any]) -> PairReport:
    """The report with `Weights` of each side that is a folder.

    Args:
        models: target and draft.
        quantizations: that they will be loaded with; None as they are.

    Raises:
        CheckpointError: weights that are corrupt, or only partly there.
    """
    found: dict[str, Any] = {}
    faults, notes = [], []
    reads = {}
    for role, folder, quantization in zip(("target", "draft"), models, quantizations, strict=True):
        if not isinstance(folder, Path) or not (folder / "config.json").exists():
            continue
        config = read_json(folder / "config.json")
        try:
            checkpoint = _checkpoint(folder, config)
        except NoWeightsError as error:
            notes.append(f"The {role}'s weights were not checked: {error}")
            continue
        if checkpoint.tensors:
            form = _format(quantization, head=role == "draft")
            found[f"{role}_weights"] = _summary(checkpoint, config, form and (quantization, form))
            reads[role] = bytes_per_token(config, checkpoint, form=form)
        faults += _faults(role, folder, checkpoint)
        notes += _notes(role, checkpoint)
    if len(reads) == 2:
        found["parameter_ratio"] = found["draft_weights"].parameters / found["target_weights"].parameters
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
    except ValueError:
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
        return Checkpoint.of(headers_of(name), config)  # a Hub repository, of which only the small files are here


def _summary(checkpoint: Checkpoint, config: dict[str, Any], chosen: tuple[Any, WeightFormat] | None) -> Weights:
    stored, size = checkpoint.quantization, checkpoint.bytes
    how = None if stored is None else f"{stored.method}{f' {stored.bits}-bit' if stored.bits else ''}"
    if chosen is not None:
        how, size = str(chosen[0]), weight_bytes(config, checkpoint, form=chosen[1])
    return Weights(checkpoint.parameters, size, checkpoint.dtype, how, kv_bytes(config, 1, 1))


def _faults(role: str, folder: Path, checkpoint: Checkpoint) -> list[str]:
    if kind := head_by_tensors(list(checkpoint.tensors)):
        return [f"The {role} {folder} holds the tensors of {kind}, not of a causal LM. Pass a whole causal LM instead."]
    if checkpoint.missing:
        return [
            f"The {role} {folder} lacks {_listed(checkpoint.missing)}: transformers would make them up at random. "
            "Download it again, or save it anew."
        ]
    return []


def _notes(role: str, checkpoint: Checkpoint) -> list[str]:
    if checkpoint.pickled:
        return [f"The {role}'s weights are pickled: load_pair takes them only with allow_pickle=True."]
    if checkpoint.unexpected:
        return [f"The {role}'s model has no place for {_listed(checkpoint.unexpected)}."]
    return []


def _listed(names: tuple[str, ...]) -> str:
    return f"{len(names)} tensors ({', '.join(names[:SHOWN])}{', …' if len(names) > SHOWN else ''})"
