"""GGUF files. Most architectures come out dense, whatever the file holds: slow to load, then as fast as any."""

from __future__ import annotations

import struct
from pathlib import Path

from ..checkpoints.gguf import file_of
from ..checkpoints.headers import CheckpointError, refuse_pointer
from .base import Backend


class Gguf(Backend):
    name = "gguf"
    packages = ("gguf>=0.17", "accelerate>=1.10")

    def dtype(self, asked, device):
        """transformers would take float32: twice the memory and time."""
        import torch

        return torch.bfloat16 if asked == "auto" else asked

    def source_kwargs(self, folder):
        return _arguments(file_of(folder))


def config_of(file: Path):
    """The transformers config of a GGUF file: config.json beside it, or what the file itself says."""
    from transformers import AutoConfig

    if (file.parent / "config.json").is_file():
        return AutoConfig.from_pretrained(file.parent, local_files_only=True, trust_remote_code=False)
    Gguf().check()
    return AutoConfig.from_pretrained(**_arguments(file), local_files_only=True)


def meta_model(file: Path):
    """(model without weights, tokenizer) of a GGUF file that comes alone, for the pair check.

    Raises:
        ImportError: the package that reads it is missing.
        CheckpointError: it is not whole, or something else.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    refuse_pointer(file)
    try:
        config = config_of(file)
    except (ValueError, LookupError, struct.error) as error:
        raise CheckpointError(f"{file} cannot be read as a GGUF file ({error}). Download it again.") from error
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    model.config.name_or_path = str(file)
    return model, AutoTokenizer.from_pretrained(**_arguments(file), local_files_only=True)


def _arguments(file: Path) -> dict:
    return {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
