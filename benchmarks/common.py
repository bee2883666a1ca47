"""What the benchmarks share: loading, prompts, bare step times, the line that says on what machine it ran."""

import json
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

import hf_specgen
from hf_specgen import compat

SUB_TASKS = {  # Spec-Bench groups eight stored categories into one (evaluation/speed.py)
    "multi-turn": {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"},
    "translation": {"translation"},
    "summarization": {"summarization"},
    "qa": {"qa"},
    "math": {"math_reasoning"},
    "rag": {"rag"},
}


def machine() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"{cpu}, {torch.get_num_threads()} threads"
    return (
        f"{device}; torch {torch.__version__}, transformers {transformers.__version__}, "
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
    found: dict[str, list[str]] = {name: [] for name in SUB_TASKS}
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        task = next(name for name, stored in SUB_TASKS.items() if item["category"] in stored)
        found[task].append(item["turns"][0])
    spread = lambda texts: texts[:: max(1, len(texts) // per_task)][:per_task]  # noqa: E731
    return [(task, text) for task, texts in found.items() for text in spread(texts)]


def encode(tokenizer, texts: list[str], device):
    """Chat-formatted where the tokenizer has a template; left-padded."""
    if tokenizer.chat_template:
        texts = [
            tokenizer.apply_chat_template([{"role": "user", "content": t}], tokenize=False, add_generation_prompt=True)
            for t in texts
        ]
    tokenizer.padding_side = "left"
    return tokenizer(texts, return_tensors="pt", padding=True).to(device)


def timed(function):
    """(seconds, result)."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


@torch.no_grad()
def bare_steps(model, ids: torch.Tensor, widths: list[int], repeats: int = 5) -> dict[int, float]:
    """Median seconds of a bare forward of each width after `ids` `[rows, context]`, on a stock DynamicCache."""
    cache = DynamicCache(config=model.config)
    name = compat.cache_argument(model)
    model(input_ids=ids, use_cache=True, logits_to_keep=1, **{name: cache})
    cache.activate_past_recording()
    taken: dict[int, list[float]] = {w: [] for w in widths}
    for _ in range(repeats):
        for width in widths:
            seconds, _ = timed(lambda w=width: model(input_ids=ids[:, :w], use_cache=True, **{name: cache}))
            cache.crop(-width)
            taken[width].append(seconds)
    return {width: statistics.median(seconds) for width, seconds in taken.items()}


def tokenizer_of(folder: str):
    return AutoTokenizer.from_pretrained(folder)
