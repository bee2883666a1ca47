"""What a bug report has to say of a machine: versions, back ends, devices. Broken packages are told of, not met."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REQUIRED = {"torch": "torch", "transformers": "transformers", "typer": "typer", "rich": "rich"}
OPTIONAL = {
    "accelerate": "accelerate",
    "peft": "peft",
    "bitsandbytes": "bitsandbytes",
    "gptqmodel": "gptqmodel",
    "torchao": "torchao",
    "compressed-tensors": "compressed_tensors",
    "gguf": "gguf",
    "flash-attn": "flash_attn",
    "triton": "triton",
    "matplotlib": "matplotlib",
    "lm-eval": "lm_eval",
}
BENEATH = {"huggingface-hub": "huggingface_hub", "tokenizers": "tokenizers", "safetensors": "safetensors"}
"""What they stand on."""
VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "HF_HUB_OFFLINE",
)


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def environment() -> dict[str, Any]:
    """As plain data:

    hf-specgen, python, platform; packages: by name `{"version": … or None, "error": … or None}`, where an error is what
    importing it gave, in one line; cpu; torch: threads, CUDA, GPUs, attention kernels (None if it cannot be imported);
    variables: of the environment, those that are set.
    """
    packages = {name: _package(name, module) for name, module in (REQUIRED | BENEATH | OPTIONAL).items()}
    return {
        "hf-specgen": version_of("hf-specgen"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "cpu": {"name": cpu_name(), "cores": os.cpu_count(), "memory_bytes": _memory()},
        "torch": None if packages["torch"]["error"] or not packages["torch"]["version"] else _torch(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }


def usable(found: dict[str, Any]) -> bool:
    """Whether all that hf-specgen needs is there."""
    packages = found["packages"]
    return all(packages[name]["version"] and not packages[name]["error"] for name in REQUIRED)


def version_of(package: str) -> str | None:
    """None where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _package(name: str, module: str) -> dict[str, str | None]:
    found, error = version_of(name), None
    if found is not None:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                importlib.import_module(module)
        except Exception as broken:  # a package that is broken may raise anything: that is what we are here to tell
            error = f"{type(broken).__name__}: {' '.join(str(broken).split())}"
    return {"version": found, "error": error}


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on every system
        return None


def _torch() -> dict[str, Any]:
    import torch

    gpus = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        gpus.append(
            {
                "name": card.name,
                "memory_bytes": card.total_memory,
                "capability": f"{card.major}.{card.minor}",
            }
        )
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kernels = torch.backends.cuda
    return {
        "threads": torch.get_num_threads(),
        "accelerator": None if accelerator is None else accelerator.type,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "gpus": gpus,
        "attention": {
            "sdpa": hasattr(torch.nn.functional, "scaled_dot_product_attention"),
            "flash": bool(gpus) and kernels.flash_sdp_enabled() and kernels.is_flash_attention_available(),
            "memory_efficient": bool(gpus) and kernels.mem_efficient_sdp_enabled(),
            "cudnn": bool(gpus) and kernels.cudnn_sdp_enabled(),
        },
    }
