"""What the benchmarks share: loading, prompts, bare step times, the line that says on what machine it ran."""

import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specgen
from hf_specgen.benchmarking.bare import bare_steps, timed
from hf_specgen.benchmarking.machine import default_device, device_name
from hf_specgen.benchmarking.tasks import read_tasks, spread

__all__ = ["bare_steps", "encode", "load", "machine", "read_prompts", "timed", "tokenizer_of"]


def machine() -> str:
    device = default_device()
    threads = f", {torch.get_num_threads()} threads" if device.type == "cpu" else ""
    return (
        f"{device_name(device)}{threads}; torch {torch.__version__}, transformers {transformers.__version__}, "
        f"hf-specgen {hf_specgen.__version__}, Python {platform.python_version()}"
    )


def load(folder: str, dtype: str):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device).eval()
    model.generation_config.do_sample, model.generation_config.temperature = False, None
    model.generation_config.top_k = model.generation_config.top_p = None
    model.generation_config.repetition_penalty = None
    return model


def read_prompts(path: Path, per_task: int) -> list[tuple[str, str]]:
    """(sub-task, first turn), `per_task` of each sub-task, from a file in Spec-Bench's format."""
    tasks = read_tasks(path).items()
    return [(task, texts[i]) for task, texts in tasks for i in spread(len(texts), per_task)]


def encode(tokenizer, texts: list[str], device):
    """Chat-formatted where the tokenizer has a template; left-padded."""
    if tokenizer.chat_template:
        texts = [
            tokenizer.apply_chat_template([{"role": "user", "content": t}], tokenize=False, add_generation_prompt=True)
            for t in texts
        ]
    tokenizer.padding_side = "left"
    return tokenizer(texts, return_tensors="pt", padding=True).to(device)


def tokenizer_of(folder: str):
    return AutoTokenizer.from_pretrained(folder)
