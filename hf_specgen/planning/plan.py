"""Where a target and its draft go, and what each device's memory is used for, before anything is loaded.

accelerate spreads the target over the accelerators after the draft, both KV caches and a reserve were counted, so that
the target never spills because of the draft. The draft sits whole on one device.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checkpoints.checkpoint import Checkpoint, read_checkpoint
from ..checkpoints.config import read_config
from ..checkpoints.memory import weight_format
from .devices import Device, device_key, memory_of, parse_devices, parse_size
from .placing import DeviceUse, Placing, SpecMemoryError, readable

__all__ = ["DeviceUse", "Plan", "SpecMemoryError", "parse_devices", "plan_pair"]


@dataclass(frozen=True)
class Plan:
    """A device map for the target, a device for the draft, and what each device's memory is used for."""

    device_map: dict[str, Device]
    """Module -> device: what `from_pretrained(device_map=)` takes."""
    draft_device: Device
    devices: dict[Device, DeviceUse]
    spilled: dict[str, Device]
    """Modules of the target that no computing device has room for, and where they wait."""
    batch_size: int
    length: int
    notes: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Nothing of the target is offloaded."""
        return not self.spilled

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers, for JSON; bytes throughout."""
        devices = [{"device": d, **dataclasses.asdict(use), "free": use.free} for d, use in self.devices.items()]
        return {"fits": self.fits, **dataclasses.asdict(self), "devices": devices, "notes": list(self.notes)}

    def summary(self) -> str:
        """All but the table."""
        target = "\n".join(f"  {names} on {device}" for names, device in _ranges(self.device_map))
        verdict = "fits" if self.fits else "fits only with offloading, which is slow"
        lines = [
            f"{verdict}, for {self.batch_size} row{'s' if self.batch_size > 1 else ''} of {self.length} tokens",
            f"draft on {self.draft_device}, target:\n{target}",
            *(f"- {note}" for note in self.notes),
        ]
        return "\n".join(lines)

    def rows(self) -> list[tuple[str, ...]]:
        """The table, header first."""
        names = [field.name for field in dataclasses.fields(DeviceUse) if field.name != "limit"]
        head = ("device", *(name.replace("_", " ") for name in names), "free", "of")
        body = [
            (str(d), *(readable(getattr(use, name)) for name in (*names, "free", "limit")))
            for d, use in self.devices.items()
        ]
        return [head, *body]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([*table, "(1 GB is 10⁹ bytes)", self.summary()])


def plan_pair(
    target: Any,
    draft: Any,
    *,
    devices: Mapping[int | str, int | str] | None = None,
    target_quantization: Any = None,
    draft_quantization: Any = None,
    draft_device: Any = None,
    batch_size: int = 1,
    length: int = 4096,
    reserve: int | str = "2GiB",
    dtype: Any = "auto",
) -> Plan:
    """Plan a pair's places from configs and headers. No weights are read, nothing is put on a device.

    Accelerators are filled in order. Without accelerators everything computes on "cpu". "cpu" beside accelerators, and
    "disk", are for offloading a target that is too large even without a draft; "disk" only where `devices` names it.

    Args:
        target, draft: folders, GGUF files, Hub ids, or (config, Checkpoint): a transformers config or the content of
            config.json. A draft may also be a model: it stays where it is, and only its KV cache is counted.
        devices: bytes by device, as accelerate's `max_memory`; None: what is free on this machine now.
        target_quantization, draft_quantization: what they will be quantized to when they are loaded, a name or a
            config (see `weight_format`). The draft's head is taken to be quantized too.
        draft_device: where the draft goes; None: where the target's head is, if there is room.
        batch_size, length: rows, and tokens per row (prompt and answer), that both KV caches are to hold.
        reserve: kept free on each computing device.

    Raises:
        SpecMemoryError: there is no place for them.
        CheckpointError, ValueError: a folder or an argument is not usable.
        ImportError: accelerate is missing.
    """
    if importlib.util.find_spec("accelerate") is None:
        raise ImportError('Planning needs accelerate: pip install "hf-specgen[accelerate]"')
    from .skeleton import Loaded, Skeleton

    size = {"batch_size": batch_size, "length": length}
    here = Loaded.of(draft, **size) if hasattr(draft, "generate") else None
    ours, theirs = weight_format(target_quantization), weight_format(draft_quantization, head=True)
    placing = Placing(
        target=Skeleton(*_facts_of(target, target_quantization, dtype), form=ours, **size),
        draft=here or Skeleton(*_facts_of(draft, draft_quantization, dtype), form=theirs, **size),
        memory=memory_of(devices),
        reserve=parse_size(reserve),
    )
    if here is not None:
        draft_device = here.device
    wanted = None if draft_device is None else device_key(draft_device)
    if wanted is not None and (wanted == "disk" or wanted not in placing.memory):
        raise ValueError(f"draft_device={draft_device!r} is not among the devices {list(placing.memory)}.")
    place, device_map = placing.arrange(wanted)
    notes = placing.notes(place, device_map, batch_size, length)
    spilled = {name: device for name, device in device_map.items() if device not in placing.computing}
    return Plan(device_map, place, placing.uses(place, device_map), spilled, batch_size, length, notes)


def _facts_of(model: Any, quantization: Any, dtype: Any) -> tuple[Any, Checkpoint, Any]:
    """The transformers config, the checkpoint's facts, and the dtype that it would be loaded in."""
    import torch
    from transformers import AutoConfig

    from ..checkpoints.gguf import SUFFIX, lone_file
    from ..quantization import backend_of
    from ..quantization.gguf import config_of

    cpu = torch.device("cpu")
    if not isinstance(model, (str, os.PathLike)):
        config, checkpoint = model
        return AutoConfig.for_model(**config) if isinstance(config, Mapping) else config, checkpoint, dtype
    from ..checkpoints.hub import folder_of, headers_of

    path = Path(model).expanduser()
    file = path if path.suffix == SUFFIX and path.is_file() else lone_file(path) if path.is_dir() else None
    if file is not None:
        dtype = backend_of(quantization, file).dtype(dtype, cpu)
        return config_of(file), Checkpoint({}, file.stat().st_size, gguf=file.name), dtype
    folder = folder_of(model)
    if not (folder / "config.json").exists():
        raise FileNotFoundError(f"{folder} holds no config.json, so it is not a model's folder")
    told = read_config(folder)
    local = path.is_dir()
    checkpoint = read_checkpoint(folder, told) if local else Checkpoint.of(headers_of(str(model)), told)
    dtype = backend_of(quantization, folder).dtype(dtype, cpu)
    return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False), checkpoint, dtype


def _ranges(device_map: Mapping[str, Device]) -> list[tuple[str, Device]]:
    """Neighbours on one device in one line: ("model.layers.0 … model.layers.9", 0)."""
    runs: list[tuple[list[str], Device]] = []
    for name, device in device_map.items():
        if runs and runs[-1][1] == device:
            runs[-1][0].append(name)
        else:
            runs.append(([name or "everything"], device))
    return [(" … ".join(dict.fromkeys((names[0], names[-1]))), device) for names, device in runs]
