"""Devices and their memory: as a person writes them ("4x80GB"), and as they are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

Device = int | str
"""An accelerator's number, "mps", "cpu" or "disk": accelerate's names."""

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
UNITS |= {f"{unit}i": 2 ** (10 * power) for power, unit in enumerate("KMGT", start=1)}


def parse_size(size: int | str) -> int:
    """Bytes: 5, "5", "80GB" (10⁹), "80GiB" (2³⁰). A small b would be bits, and is refused."""
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?i?)B\s*|\s*(\d+)\s*", size) if isinstance(size, str) else None
    if found is not None and found[3]:
        return int(found[3])
    if found is None or found[2] not in UNITS:
        raise ValueError(f'{size!r} is no size: write bytes as a number, or like "80GB" (10⁹ bytes) or "80GiB" (2³⁰).')
    return int(float(found[1]) * UNITS[found[2]])


def parse_devices(text: str, cpu: int | str | None = None) -> dict[Device, int]:
    """ "2x24GB,1x80GB" -> {0: 24·10⁹, 1: 24·10⁹, 2: 80·10⁹}; with `cpu`, also {"cpu": …}."""
    devices: dict[Device, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        count, times, size = part.rpartition("x")
        if times and not count.strip().isdecimal():
            raise ValueError(f'{part!r} is no group of devices: write it like "4x80GB".')
        memory = parse_size(size)
        if memory < UNITS["K"]:  # a unit was forgotten
            raise ValueError(f'{part!r} has {memory} bytes a device: write it like "4x80GB".')
        for _ in range(int(count) if times else 1):
            devices[len(devices)] = memory
    if cpu is not None:
        devices["cpu"] = parse_size(cpu)
    if not devices:
        raise ValueError('No device is named: write them like "4x80GB", or name the memory of the CPU.')
    return devices


def device_key(device: Any) -> Device:
    """accelerate's name of a device: 1 for 1, "1", "cuda:1" and torch.device("cuda", 1)."""
    name = str(device)
    number = name.rpartition(":")[2]
    if number.isdecimal():
        return int(number) if not name.startswith(("cpu", "mps")) else name.partition(":")[0]
    return 0 if name in ("cuda", "xpu", "npu") else name


def memory_of(devices: Mapping[Any, int | str] | None) -> dict[Device, int]:
    """Bytes per device, accelerators first; None: of this machine's devices, what is free now."""
    if devices is None:
        from accelerate.utils import get_max_memory

        devices = get_max_memory()
    if not isinstance(devices, Mapping):
        raise ValueError(f'Memory is given by device, like {{0: "24GB", "cpu": "64GB"}}, not as {devices!r}.')
    found = {device_key(device): parse_size(size) for device, size in devices.items()}
    if not found.keys() - {"disk"}:
        raise ValueError(f"No device can compute among {list(devices)}: name accelerators by number, or 'cpu'.")
    order = ("mps", "cpu", "disk")
    unknown = [device for device in found if not isinstance(device, int) and device not in order]
    if unknown:
        raise ValueError(f"Unknown device {unknown[0]!r}: name accelerators by number, and {', '.join(order)}.")
    accelerators = sorted(device for device in found if isinstance(device, int))
    return {device: found[device] for device in (*accelerators, *order) if device in found}
