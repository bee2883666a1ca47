"""What the benchmarks share: loading, prompts, one speculative call, where its ids part from plain's, bare step times,
the line that says on what machine it ran."""

import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specgen
from hf_specgen.benchmarking.bare import bare_steps, timed
from hf_specgen.benchmarking.calls import Answer, Call, Models, eos_of
from hf_specgen.benchmarking.comparing import Reference
from hf_specgen.benchmarking.contenders import Plain
from hf_specgen.benchmarking.machine import default_device, device_name
from hf_specgen.benchmarking.tasks import read_tasks, spread

__all__ = [
    "bare_steps",
    "difference",
    "encode",
    "greedy_call",
    "load",
    "machine",
    "read_prompts",
    "speculate",
    "timed",
    "tokenizer_of",
]


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


def speculate(target, draft, inputs, new, k, common):
    """(what `generate` returns, statistics) of a call with a constant K."""
    hf_specgen.enable(target)
    try:
        with hf_specgen.collect_stats() as stats:
            out = target.generate(
                **inputs,
                max_new_tokens=new,
                assistant_model=draft,
                spec_strategy="rejection",
                num_assistant_tokens=k,
                **common,
            )
    finally:
        hf_specgen.disable(target)
    return out, stats


def greedy_call(target, inputs, new: int, pad: int) -> Call:
    return Call(inputs["input_ids"], inputs["attention_mask"], new, 0.0, 0, 1.0, eos_of(target), pad, seed=0)


def difference(target, call: Call, wanted: list[int], got: list[int]) -> str:
    """Where two answers to a prompt part, and how far apart plain's logits of the two tokens are there (0: a tie)."""
    reference = Reference(Plain(Models(target, None, None)), call)
    reference.ids = [wanted]
    same, at, gap = reference.compare(Answer([got]))
    return "equal" if same else "another length" if gap is None else f"differ at {at}, gap {gap:.3f}"
