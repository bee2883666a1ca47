"""One draft in several formats on one target: acceptance, step time, memory, and speed beside plain and the bf16 draft.

    python benchmarks/quantized_drafts.py TARGET DRAFT --awq FOLDER --gguf FILE

All drafts are loaded at once (the 0.5 billion one in all formats: 7 GB), each with its head quantized. In every
repetition each prompt is decoded plainly and with each draft in turn, greedily, one row, to the length that plain comes
to. A ratio is taken within one repetition of one prompt; what is printed is the median. "ids" tells how many answers
equal plain's; of the others, where they part first and by how much plain's logits of the two tokens differ there.
"""

import argparse
import json
import statistics
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
import transformers
from common import bare_steps, difference, greedy_call, load, machine, speculate, timed, tokenizer_of

from hf_specgen.measuring.prompts import encode, read_prompts
from hf_specgen.quantization import Backend, backend_of

FORMATS = ("bf16", "nf4", "fp4", "int8", "awq", "torchao-int8", "int4", "gguf")
PROMPTS = {
    "code": [
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Write a Python class for a stack with push, pop and peek, with type hints and docstrings.",
        "Write a Python script that reads a CSV file and prints the mean of each numeric column.",
    ],
    "prose": [
        "Explain in one paragraph why the sky is blue during the day and red at sunset.",
        "Write a short letter to a friend about a rainy weekend in the mountains.",
        "What were the causes of the fall of the Roman Empire? Answer in a few sentences.",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--awq", type=Path, help="folder of the draft in AWQ's format (hf-specgen quantize --to awq)")
    parser.add_argument("--gguf", type=Path, help="the draft as a GGUF file")
    parser.add_argument("--among", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--prompts", nargs="+", metavar="NAME=FILE", help="instead of the built-in code and prose sets")
    parser.add_argument("--num-assistant-tokens", "-k", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repetitions; the median counts")
    parser.add_argument("--dtype", default="bfloat16", help="of the target")
    parser.add_argument("--out", type=Path, help="write all figures as JSON")
    args = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    print(f"{machine()}; {packages()}")
    sets = PROMPTS
    if args.prompts:
        sets = {name: read_prompts(file) for name, _, file in (p.partition("=") for p in args.prompts)}
    drafts = {name: one for name in args.among if (one := load_draft(name, args)) is not None}
    target, tokenizer = load(args.target, args.dtype), tokenizer_of(args.target)
    common = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    prompts = [(name, encode(tokenizer, text).to(target.device)) for name, texts in sets.items() for text in texts]
    for draft in drafts.values():  # 4-bit layers are repacked in the first forward
        warm_up(target, draft["model"], prompts[0][1], args.num_assistant_tokens, common)

    runs = [run for number in range(args.repeats) for run in one_round(number, target, drafts, prompts, args, common)]
    rows = [summary(name, draft, runs, list(sets)) for name, draft in drafts.items()]
    show(rows, list(sets), args)
    if args.out:
        args.out.write_text(json.dumps({"machine": machine(), "rows": rows, "runs": runs}, indent=1))


def packages() -> str:
    found = []
    for name in ("bitsandbytes", "gptqmodel", "torchao", "gguf"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def load_draft(name: str, args) -> dict | None:
    """The draft in one format, or None, with the reason printed, where it cannot be had."""
    path = {"awq": args.awq, "gguf": args.gguf}.get(name, args.draft)
    if path is None:
        print(f"{name}: left out, no --{name} was given")
        return None
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    backend = Backend() if name == "bf16" else backend_of(name, path)
    try:
        backend.check([device])
    except (ImportError, ValueError) as error:
        print(f"{name}: left out, {error}")
        return None
    dtype = torch.bfloat16
    start = time.perf_counter()
    model = backend.load(path, {"": device}, device=device, dtype=dtype, draft=True)
    return {"model": model, "load s": time.perf_counter() - start, "MB": weight_bytes(model) / 1e6}


def weight_bytes(model) -> int:
    """Of all tensors of a model, each storage once; what quantized weights really hold, not what they report."""
    found: dict[int, int] = {}

    def add(x) -> None:
        if hasattr(x, "__tensor_flatten__"):  # torchao's
            for name in x.__tensor_flatten__()[0]:
                add(getattr(x, name))
        elif isinstance(x, torch.Tensor):
            storage = x.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()

    for module in model.modules():
        for x in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            add(x.data if type(x) is torch.nn.Parameter else x)
            for name in ("quant_state", "CB", "SCB"):  # bitsandbytes'
                held = getattr(x, name, None)
                for value in vars(held).values() if hasattr(held, "__dict__") else (held,):
                    add(value)
    return sum(found.values())


def warm_up(target, draft, inputs, k: int, common: dict) -> None:
    target.generate(**inputs, max_new_tokens=4, **common)
    speculate(target, draft, inputs, 4, k, common)


def one_round(number: int, target, drafts: dict, prompts, args, common: dict) -> list[dict]:
    """Every prompt plainly and with each draft, whose order turns from round to round."""
    runs, names = [], list(drafts)
    turn = number % len(names)
    for index, (kind, inputs) in enumerate(prompts):
        columns = inputs["input_ids"].shape[1]
        plain, wanted = timed(lambda i=inputs: target.generate(**i, max_new_tokens=args.max_new_tokens, **common))
        new, base = wanted.shape[1] - columns, {"round": number, "set": kind, "prompt": index}
        call = greedy_call(target, inputs, new, common["pad_token_id"])
        for name in names[turn:] + names[:turn]:
            model = drafts[name]["model"]
            taken, (out, stats) = timed(
                lambda i=inputs, m=model, n=new: speculate(target, m, i, n, args.num_assistant_tokens, common)
            )
            runs.append(
                base
                | {
                    "draft": name,
                    "new": new,
                    "plain s": plain,
                    "s": taken,
                    "accepted": stats.accepted,
                    "drafted": stats.drafted,
                    "step ms": 1e3 * bare_steps(model, wanted[:, : columns + new // 2], [1], repeats=3)[1],
                    "ids": difference(target, call, wanted[0, columns:].tolist(), out[0, columns:].tolist()),
                }
            )
    return runs


def summary(name: str, draft: dict, runs: list[dict], sets: list[str]) -> dict:
    """The medians of one draft. Over all prompts: of the sets' medians, so that each set counts alike."""
    mine = [run for run in runs if run["draft"] == name]
    bf16 = {(r["round"], r["prompt"]): r["s"] for r in runs if r["draft"] == "bf16"}
    row = {"draft": name, "load s": draft["load s"], "MB": draft["MB"]}
    row["step ms"] = statistics.median(run["step ms"] for run in mine)
    for kind in sets:
        here = [run for run in mine if run["set"] == kind]
        row[f"{kind}: accepted"] = sum(r["accepted"] for r in here) / max(1, sum(r["drafted"] for r in here))
        row[f"{kind}: / plain"] = statistics.median(run["plain s"] / run["s"] for run in here)
        if bf16:
            row[f"{kind}: / bf16"] = statistics.median(bf16[r["round"], r["prompt"]] / r["s"] for r in here)
    for beside in ("plain", "bf16"):
        if f"{sets[0]}: / {beside}" in row:
            row[f"all: / {beside}"] = statistics.median(row[f"{kind}: / {beside}"] for kind in sets)
    first = [run for run in mine if run["round"] == 0]
    apart = [run["ids"] for run in first if run["ids"] != "equal"]
    row["ids"] = "; ".join([f"{len(first) - len(apart)} of {len(first)} equal", *apart])
    return row


def show(rows: list[dict], sets: list[str], args) -> None:
    count = f"{args.repeats} interleaved repetition{'s' if args.repeats > 1 else ''}"
    print(f"K = {args.num_assistant_tokens}, up to {args.max_new_tokens} new tokens, {count}, medians")
    names = list(rows[0])
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _cell(value) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 100 else f"{value:.2f}"
    return "" if value is None else str(value)


if __name__ == "__main__":
    main()
