"""lm-eval with speculation, beside the same tasks decoded plainly: the same answers, what the draft gave, the time.

    pip install "hf-specgen[evaluation]"
    python examples/evaluation.py [--target FOLDER --draft FOLDER] [--batch-sizes 1 4]

lm-eval knows nothing of drafts: `enable(target, assistant_model=draft, spec_strategy=...)` is all that differs. Without
folders it uses the pair that comes with the package, whose answers mean nothing (it has read Python, and is tiny).
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path

import torch
from lm_eval import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specgen
from hf_specgen import demo

GREEDY = {"do_sample": False, "max_gen_toks": 32}
TASKS = {
    "code": (
        GREEDY | {"until": ["\n\n", "\ndef", "\nclass"]},
        [
            ("def area(width, height):\n    return", " width * height"),
            ("def is_even(n):\n    return", " n % 2 == 0"),
            ("class Stack:\n    def __init__(self):\n        self.items =", " []"),
            ("import os\n\ndef exists(path):\n    return os.path.", "exists(path)"),
            ("def first(items, default=None):\n    for item in items:\n        return", " item"),
            ("def close(self):\n    if self.file is not None:\n        self.", "file.close()"),
        ],
    ),
    "arithmetic": (
        GREEDY | {"until": ["\n"]},
        [(f"assert 1 + 1 == 2\nassert {a} + {b} ==", f" {a + b}") for a, b in ((2, 2), (3, 4), (10, 7), (25, 5))],
    ),
    "copying": (
        GREEDY | {"until": ["'\n", '"""']},
        [(f"A = '{x}'\nB = '{x}'\nA = '{y}'\nB = '", y) for x, y in (("abc", "close the file"), ("x y z", "reader"))],
    ),
    "sampling": (
        {"do_sample": True, "temperature": 0.8, "max_gen_toks": 32, "until": ["\n\n"]},
        [(f"def {name}(self):\n    ", "") for name in ("read", "write", "close", "seek")],
    ),
}


class Timed(HFLM):
    """lm-eval's model, with the seconds that its generate() calls took."""

    seconds = 0.0

    def _model_generate(self, *args, **kwargs):
        start = time.perf_counter()
        try:
            return super()._model_generate(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


def task_of(name: str, folder: Path) -> dict:
    """lm-eval's description of a task of ours, and its data as a JSON Lines file in `folder`."""
    generation, examples = TASKS[name]
    data = folder / f"{name}.jsonl"
    data.write_text("".join(json.dumps({"asked": asked, "answer": answer}) + "\n" for asked, answer in examples))
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{asked}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": dict(generation),
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }


def answers(model, tokenizer, task: dict, batch_size: int) -> tuple[list[str], float, float]:
    """Evaluate one task: the texts that were scored, the score, the seconds in generate()."""
    lm = Timed(pretrained=model, tokenizer=tokenizer, batch_size=batch_size)
    torch.manual_seed(1234)
    found = evaluate(lm, TaskManager(include_defaults=False).load([task]), bootstrap_iters=0)
    samples = sorted(found["samples"][task["task"]], key=lambda sample: sample["doc_id"])
    score = found["results"][task["task"]]["exact_match,none"]
    return [sample["resps"][0][0] for sample in samples], score, lm.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="folder or name of the target; with --draft")
    parser.add_argument("--draft", help="folder or name of the draft")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--strategy", default="rejection")
    parser.add_argument("-k", "--num-assistant-tokens", type=int, default=4)
    args = parser.parse_args()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    if bool(args.target) != bool(args.draft):
        parser.error("give both --target and --draft, or neither")
    if args.target:
        target, draft = (
            AutoModelForCausalLM.from_pretrained(x, dtype="auto").eval() for x in (args.target, args.draft)
        )
        tokenizer = AutoTokenizer.from_pretrained(args.target)
    else:
        target, draft, tokenizer = demo.load()
    speculation = {"spec_strategy": args.strategy, "num_assistant_tokens": args.num_assistant_tokens}
    print(f"{'task':<12}{'batch':>6}{'equal':>8}{'score':>16}{'accepted':>10}{'per forward':>13}{'seconds':>16}")
    differ = []
    for name in args.tasks:
        for batch_size in args.batch_sizes:
            with tempfile.TemporaryDirectory() as folder:
                task = task_of(name, Path(folder))
                plain, plain_score, plain_seconds = answers(target, tokenizer, task, batch_size)
                hf_specgen.enable(target, assistant_model=draft, **speculation)
                with hf_specgen.collect_stats() as stats:
                    spec, score, seconds = answers(target, tokenizer, task, batch_size)
                hf_specgen.disable(target)
            equal = sum(a == b for a, b in zip(plain, spec, strict=True))
            sampled = TASKS[name][0]["do_sample"]
            if not sampled:
                differ += [(name, batch_size, a, b) for a, b in zip(plain, spec, strict=True) if a != b]
            print(
                f"{name:<12}{batch_size:>6}{'sampled' if sampled else f'{equal}/{len(plain)}':>8}"
                f"{plain_score:>9.2f} → {score:.2f}"
                f"{stats.acceptance_rate or 0:>10.0%}{stats.tokens_per_target_forward:>13.2f}"
                f"{plain_seconds:>10.2f} → {seconds:.2f}",
                flush=True,
            )
    print("Sampled answers follow the same law, not the same draws: they need not be equal.")
    for name, batch_size, a, b in differ:
        print(f"{name}, batch size {batch_size}: plain {a!r}, speculative {b!r}")
    if differ and next(target.parameters()).dtype == torch.float32:
        raise SystemExit("Greedy answers differ in float32: please report this.")


if __name__ == "__main__":
    main()
