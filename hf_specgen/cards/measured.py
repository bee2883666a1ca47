"""What a card is made from: the folder of a bench and a certificate, and whether they are those of its pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from ..benchmarking.loading import CHECKPOINT, Side
from ..benchmarking.record import Record
from ..benchmarking.store import COMMANDS, read_manifest, read_records
from ..benchmarking.summary import Parting, summarize
from ..quantization import Backend
from ..verifying.certificate import FAULTY, FORMAT, LOSSLESS, ROUNDING, verdict_of

ROLES = ("target", "draft")
OURS = ("ours", "draft", "lookup")
"""Contenders that are this package, by family: the others are what they are compared with."""


class Pair(NamedTuple):
    """A card's two models. No weights are read."""

    target: Side
    draft: Side


class BenchRun(NamedTuple):
    manifest: dict[str, Any]
    records: list[Record]

    @property
    def partings(self) -> list[Parting]:
        """Where our greedy texts left plain's."""
        ours = (summary for summary in summarize(self.records) if summary.contender.family in OURS)
        return list(dict.fromkeys(part for summary in ours for part in summary.partings))


def read_bench(folder: Path, pair: Pair) -> BenchRun:
    """
    Raises:
        FileNotFoundError, ValueError: there is none, it is broken, or it measured another pair.
    """
    manifest, records = read_manifest(folder), read_records(folder)
    wanted = {"versions": dict, "device": str, "threads": int, "prompts": dict, "settings": dict, "target": dict}
    for name, kind in wanted.items():
        if not isinstance(manifest.get(name), kind):
            raise ValueError(f"The manifest in {folder} has no {name!r} that can be read: pass another folder.")
    commands = manifest.setdefault(COMMANDS, [])
    if not isinstance(commands, list) or not all(isinstance(command, str) for command in commands):
        raise ValueError(f"The manifest in {folder} has {COMMANDS!r} that are no list of texts: pass another folder.")
    for role, side in zip(ROLES, pair, strict=True):
        told, own = manifest.get(role) or {}, side.fingerprint()
        _same("--bench", folder, role, told, own)
        if told.get("quantization") != own.get("quantization"):
            raise ValueError(
                f"--bench {folder} measured the {role} with quantization {told.get('quantization')}, not "
                f"{own.get('quantization')}: pass the same --draft-quantization, or another folder."
            )
    if not any(record.error is None for record in records):
        raise ValueError(f"--bench {folder} holds no call that went through: there is nothing to write of.")
    return BenchRun(manifest, records)


def read_certificate(file: Path, pair: Pair) -> dict[str, Any]:
    """As `Certificate.to_dict` gives it.

    Raises:
        FileNotFoundError, ValueError: there is none, it is broken, or it is of another pair.
    """
    if not file.is_file():
        raise FileNotFoundError(f"There is no file {file}: pass what hf-specgen verify --out has written.")
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}), and so no certificate.") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT or told.get("verdict") not in _VERDICTS:
        raise ValueError(f"{file} is no certificate of this version: pass what hf-specgen verify --out has written.")
    for name, kind in _PARTS.items():
        if not isinstance(told.get(name), kind):
            raise ValueError(f"{file} is no whole certificate: {name!r} is {told.get(name)!r:.40}.")
    _check_verdict(file, told)
    for role, side in zip(ROLES, pair, strict=True):
        _same("--certificate", file, role, told[role], side.fingerprint())
        _same_quantization(file, role, told[role].get("quantization"), side)
    return told


_VERDICTS = (LOSSLESS, ROUNDING, FAULTY)
_PARTS = {"target": dict, "draft": dict, "machine": dict, "greedy": dict, "sampling": list, "settings": dict}
_PARTS |= {"prompts": dict, "faults": list, "date": str, "seconds": (int, float), "lossless": bool}


def _check_verdict(file: Path, told: dict[str, Any]) -> None:
    """What it says must follow from what it holds."""
    try:
        tests = [told["greedy"]["flips"]["passed"], *(law["passed"] for law in told["sampling"])]
        found = verdict_of((text["verdict"] for text in told["greedy"]["texts"]), tests)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} is no whole certificate ({error!r}): make it again.") from None
    said = told["verdict"], told["lossless"], bool(told["faults"])
    if said != (found, found != FAULTY, found == FAULTY):
        raise ValueError(
            f"{file} says {told['verdict']} (lossless: {told['lossless']}) and lists {len(told['faults'])} faults, but "
            f"its tests come to {found}: it was changed."
        )


def not_compared(told: dict[str, Any] | None, pair: Pair) -> list[str]:
    """The roles whose weights cannot be said to be those that were measured, in a certificate or a manifest: one of the
    two has no weights' files (a model that was loaded already, a Hub id whose weights are not here)."""
    sides = zip(ROLES, pair, strict=True)
    return [
        role for role, side in sides if told and not (CHECKPOINT in told[role] and CHECKPOINT in side.fingerprint())
    ]


def _same(option: str, path: Path, role: str, told: dict[str, Any], own: dict[str, Any]) -> None:
    if told.get("config") != own["config"]:
        raise ValueError(
            f"{option} {path} is of another {role}, {told.get('name') or 'without a name'!r}, whose config.json is not "
            f"that of {own['name']!r}: pass what was measured with this pair."
        )
    if CHECKPOINT in own and told.get(CHECKPOINT, own[CHECKPOINT]) != own[CHECKPOINT]:
        raise ValueError(
            f"{option} {path} is of another {role} with the same config.json: its weights are not those of "
            f"{own['name']!r}. Pass what was measured with this pair."
        )


def _same_quantization(file: Path, role: str, told: Any, side: Side) -> None:
    """A dense folder that was loaded as another quantization has the same config.json."""
    backend = side.origin.backend
    if (side.quantization or type(backend) is Backend) and told != backend.name:
        raise ValueError(
            f"--certificate {file} is of a {role} that was {told}, and this one is {backend.name}: pass the same "
            "--draft-quantization, or another certificate."
        )
