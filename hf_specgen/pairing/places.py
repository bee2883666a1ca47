"""The devices that load_pair is told of: whether they are there, and where a model's head computes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

UNNAMED = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate names the devices
DISK = "disk"


def has_accelerator() -> bool:
    import torch

    return torch.accelerator.is_available()


def check_device_map(device_map: Any) -> None:
    """Raises ValueError for a map, or a device in it, that this machine cannot do."""
    if isinstance(device_map, Mapping):
        if not device_map:
            raise ValueError('device_map={} places nothing: name modules and devices, or pass "auto".')
        for place in device_map.values():
            if place != DISK:
                device_at(place, "device_map")
    elif device_map is not None and not (isinstance(device_map, str) and device_map in UNNAMED):
        device_at(device_map, "device_map")


def check_max_memory(max_memory: Any) -> None:
    """Raises ValueError for sizes that are none, or of devices that this machine lacks."""
    from ..planning.devices import memory_of

    for place in memory_of(max_memory):
        if place != DISK:
            device_at(place, "max_memory")


def device_at(place: Any, argument: str) -> torch.device | None:
    """Raises ValueError for a device that this machine lacks. `argument`: who named it."""
    import torch

    if place is None:
        return None
    try:
        if isinstance(place, (list, tuple, dict, bool)):
            raise TypeError
        if isinstance(place, int) and not has_accelerator():
            raise ValueError(f"{argument}={place!r}: device {place} is not on this machine, which has no accelerator.")
        device = torch.device(place)
    except (RuntimeError, TypeError):
        raise ValueError(f'{argument}={place!r} is no device: write it like "cpu", "cuda:1" or 1.') from None
    here = torch.accelerator.current_accelerator() if has_accelerator() else None
    if device.type != "cpu" and (here is None or device.type != here.type):
        which = "" if here is None else f", which has {here.type}"
        raise ValueError(f"{argument}={place!r}: {device} is not on this machine{which}.")
    if device.type != "cpu" and (device.index or 0) >= (count := torch.accelerator.device_count()):
        raise ValueError(f"{argument}={place!r}: {device} is not on this machine, which has {count} of {device.type}.")
    return device


def devices_of(device_map: Any) -> list[torch.device]:
    """Where a checked map computes. What is on the disk is brought to the first device."""
    import torch

    if device_map is None:
        return [torch.device("cpu")]
    first = torch.accelerator.current_accelerator() if has_accelerator() else torch.device("cpu")
    places = dict.fromkeys(device_map.values() if isinstance(device_map, Mapping) else [device_map])
    return [first if place in (*UNNAMED, DISK) else torch.device(place) for place in places]


def head_place(model: PreTrainedModel | None, device_map: Any) -> torch.device:
    """The device on which the head of a model computes; before the model is loaded, by its map, whose last it is."""
    import torch

    if model is None:
        return devices_of({"": [*device_map.values()][-1]} if isinstance(device_map, Mapping) else device_map)[0]
    head = model.get_output_embeddings()
    if head.weight.device.type == "meta":  # offloaded: its hook brings it where it computes
        return torch.device(head._hf_hook.execution_device)
    return head.weight.device
