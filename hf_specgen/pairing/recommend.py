"""recommend: which draft for this target? From the published families, or from folders that are there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.hub import folder_of, headers_of, name_of
from .families import Member, Place, config_of, place_of

MAX_RATIO = 0.5
"""A draft of more than half the target's parameters costs too much to be listed, in time or in memory."""
VERDICTS = ("exact", "exact-with-padding", "mappable", "cross-vocabulary", "unknown", "refused")
"""Best first."""


@dataclass(frozen=True)
class Recommendation:
    draft: str
    """Hub id or folder."""
    usable: bool
    verdict: str | None
    """check_pair's; None for a published draft, which nobody has looked at, and for a folder that cannot be checked."""
    same_tokenizer: bool | None
    """Of a published draft: does it use the target's tokenizer? None: not known which tokenizer that is."""
    parameters: float | None
    """Of a published draft."""
    ratio: float | None
    """Draft / target, of what one token reads: parameters, or bytes where check_pair knows them."""
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def recommend(
    target: str | os.PathLike[str], among: Sequence[str | os.PathLike[str]] | None = None
) -> list[Recommendation]:
    """Drafts for `target`, best first; an empty list when there is none.

    Args:
        target: a folder or a Hub id. An id of the published families is looked up, not fetched.
        among: folders of models, or folders that hold such folders; each model is checked against the target, which is
            left out itself. Those that are no use come last. None: published drafts of the target's family.

    Raises:
        FileNotFoundError, ValueError: target or a folder of `among` that cannot be read.
        LookupError: without `among`: the target belongs to no family that we know.
    """
    if among is not None:
        return _checked(folder_of(target), among)
    place = place_of(target)
    if place is None:
        raise LookupError(
            f"{target} belongs to no family that hf-specgen knows: pass folders of possible drafts (--among)"
        )
    return published_drafts(place, _size(target, place))


def published_drafts(place: Place, size: float | None) -> list[Recommendation]:
    """The family's members that are small enough for a target of `size` parameters (active ones; None: not known).

    First those with the target's tokenizer and of its line, smallest first. Then those of other lines, then those with
    another tokenizer: each only if it is smaller than all before.
    """
    line, memory = (place.member.line, place.member.billions * 1e9) if place.member else (None, size)
    tiers: dict[tuple[bool, bool], list[Recommendation]] = {}
    for member in place.family.members:
        parameters = member.active_billions * 1e9
        ratio = parameters / size if size else None
        if ratio is not None and max(ratio, member.billions * 1e9 / memory) > MAX_RATIO:
            continue
        same = None if place.tokenizer is None else member.tokenizer == place.tokenizer
        reason = _published_reason(member, place, same)
        draft = Recommendation(member.id(place.variant), True, None, same, parameters, ratio, reason)
        tiers.setdefault((not same, member.line != line), []).append(draft)
    found: list[Recommendation] = []
    for _, drafts in sorted(tiers.items(), key=lambda tier: tier[0]):
        smallest = min((draft.parameters for draft in found), default=float("inf"))
        found += sorted((d for d in drafts if d.parameters < smallest), key=lambda draft: draft.parameters)
    return found


def _published_reason(member: Member, place: Place, same: bool | None) -> str:
    target = place.member
    parts = [
        {
            True: "same tokenizer",
            False: f"most ids agree, some tokens differ ({member.tokenizer} / {place.tokenizer})",
            None: f"tokenizer {member.tokenizer}",
        }[same]
    ]
    if member.line != (target.line if target else None):
        parts.append(f"of another line ({member.line or 'general'})")
    if place.variant and place.variant not in member.ids:
        parts.append(f"published as {next(iter(member.ids))} only")
    if target and member.rows and target.rows and member.rows != target.rows:
        parts.append(f"{member.rows} rows against {target.rows}")
    if member.active_billions != member.billions:
        parts.append(f"{member.billions:g}B in memory")
    return "; ".join(parts)


def _size(target: str | os.PathLike[str], place: Place) -> float | None:
    """Parameters that one token of the target reads; None when neither the table nor a header says."""
    from ..checkpoints.checkpoint import Checkpoint, CheckpointError, read_checkpoint

    if place.member:
        return place.member.active_billions * 1e9
    folder = folder_of(target)
    config = config_of(folder)
    try:
        return read_checkpoint(folder, config).parameters
    except CheckpointError:  # the weights are not there
        repository = name_of(folder)
    try:
        return Checkpoint.of(headers_of(repository), config).parameters if repository else None
    except (FileNotFoundError, CheckpointError):
        return None


def _checked(target: Path, among: Sequence[str | os.PathLike[str]]) -> list[Recommendation]:
    config_of(target)  # a broken target is told once, not for every draft
    folders = [folder for place in among for folder in _models_in(Path(place)) if not folder.samefile(target)]
    return sorted((_check(target, folder) for folder in dict.fromkeys(folders)), key=_promise)


def _models_in(folder: Path) -> list[Path]:
    """The folder itself, or the model folders directly inside.

    Raises:
        FileNotFoundError: there are none.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a local folder")
    if _is_model(folder):
        return [folder]
    if not (inside := sorted(filter(_is_model, folder.iterdir()))):
        raise FileNotFoundError(f"{folder} holds no model: neither a config.json nor a folder with one")
    return inside


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("config.json", "adapter_config.json"))


def _check(target: Path, draft: Path) -> Recommendation:
    from . import check_pair

    try:
        report = check_pair(target, draft)
    except (OSError, ValueError) as error:  # one broken folder must not hide the others
        return Recommendation(str(draft), False, None, None, None, None, " ".join(str(error).split()))
    ratio = report.parameter_ratio if report.cost_ratio is None else report.cost_ratio
    usable, reasons = report.usable, list(report.reasons)
    if usable and ratio is not None and ratio >= 1:
        usable, reasons = False, ["It reads no less per token than the target."]
    reason = reasons[0] if reasons else "Every id means the same to both."
    return Recommendation(str(draft), usable, report.verdict, None, None, ratio, reason)


def _promise(draft: Recommendation) -> tuple[bool, int, float, str]:
    rank = VERDICTS.index(draft.verdict) if draft.verdict else len(VERDICTS)
    return not draft.usable, rank, float("inf") if draft.ratio is None else draft.ratio, draft.draft
