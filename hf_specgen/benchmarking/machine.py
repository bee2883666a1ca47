"""The machine that a bench runs on, and how much of its memory a call takes."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from ..environment import cpu_name


def device_name(device: torch.device) -> str:
    """The name of the chip."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    return cpu_name()


def default_device() -> torch.device:
    """The accelerator, or the CPU."""
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")


def versions(*packages: str) -> dict[str, str]:
    """Of Python, torch, transformers, hf-specgen and these, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "hf-specgen", *packages):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # on the path without its metadata
            found[package] = getattr(sys.modules.get(package), "__version__", "unknown")
    return found


class Peak:
    """The largest memory in use since it was made: what torch allocated on a GPU, what the process holds on a CPU."""

    _STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")  # Linux only

    def __init__(self, device: torch.device):
        self.device, self.known = device, device.type == "cuda"
        if self.known:
            torch.cuda.reset_peak_memory_stats(device)
        elif device.type == "cpu" and self._RESET.exists():
            try:
                self._RESET.write_text("5")  # the high-water mark begins anew
                self.known = True
            except OSError:  # not allowed in some containers
                pass

    def bytes(self) -> int | None:
        """None where it cannot be had."""
        if not self.known:
            return None
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device)
        line = next(line for line in self._STATUS.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
