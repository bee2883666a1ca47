"""Never slower than plain: useless drafts, a good one and one as large as the target, against plain decoding.

    python benchmarks/never_slower.py TARGET --good FOLDER --distil 10

Ours is `enable` and `spec_strategy="rejection"`, nothing else. The drafts are made here, of the target: fresh weights,
one that always says the same token, some of the target's layers, a noisy copy of it. The layers alone are a poor draft:
`--distil` teaches them what the target says to these very prompts, and `--good` keeps them for the next time.

Plain and ours take turns, whoever begins; the ratio of each pair counts, of a cell the median. Every row is decoded to
the same length. "decode" leaves prefills out: plain's from its first hand-over of tokens to a streamer, ours by its own
statistics, and, "watched", as plain's (then the draft's prefill counts). "whole" is the whole call.
"""

import argparse
import json
import statistics
import zlib
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import torch
from common import encode, load, machine, timed, tokenizer_of
from toy_drafts import agreement, best_exit, constant_draft, distil, noisy_copy, part_of, random_draft
from transformers import AutoModelForCausalLM

import hf_specgen
from hf_specgen.benchmarking.tasks import own_tasks
from hf_specgen.measuring.timing import Watch

DRAFTS = ("random", "constant", "good", "as-large")
TEMPERATURES = (0.0, 1.0, 1.3)
BATCHES = (1, 8)
TASKS = ("code", "summarization", "writing")
DECODE, WHOLE = 0.97, 0.93
"""What a cell's median may not fall below."""
SOME = [0, 1, -1]  # layers of the target that are taught; better than the first three


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--good", type=Path, help="folder of a good draft; made here if it is not there yet")
    parser.add_argument("--distil", type=float, default=0.0, metavar="MINUTES", help="how long to teach it")
    parser.add_argument("--cells", nargs="+", default=["*"], help='DRAFT/TEMPERATURE/BATCH/TASK, e.g. "good/*/1/code"')
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="write one JSON line per pair of calls")
    args = parser.parse_args()

    cells = [cell for cell in product(DRAFTS, TEMPERATURES, BATCHES, TASKS) if wanted(cell, args.cells)]
    if not cells:
        parser.error(f"no cell is called {' or '.join(args.cells)}; they are {'/'.join(map(str, DRAFTS))} and so on")
    target, tokenizer = load(args.target, args.dtype), tokenizer_of(args.target)
    target.generation_config.eos_token_id = None
    hf_specgen.enable(target)
    print(machine())
    inputs = Inputs(target, tokenizer)
    rows, made = [], {}
    for cell in cells:
        draft, temperature, batch, task = cell
        if draft not in made:
            made = {draft: make(draft, target, tokenizer, inputs, args)}  # one at a time in memory
        options = {"pad_token_id": tokenizer.pad_token_id, "do_sample": temperature > 0, **inputs(task, batch)}
        if temperature:
            options |= {"temperature": temperature, "top_k": 0, "top_p": 1.0}
        seed = zlib.crc32(name(cell).encode())
        found = measure(target, made[draft], options, args.max_new_tokens, args.repeats, seed)
        rows += [{"cell": name(cell), **pair} for pair in found]
        if args.out:
            args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(line(name(cell), found) if len(rows) > len(found) else HEAD + "\n" + line(name(cell), found), flush=True)
    verdict(rows)


def name(cell) -> str:
    draft, temperature, batch, task = cell
    return f"{draft}/{temperature:g}/{batch}/{task}"


def wanted(cell, patterns: list[str]) -> bool:
    return any(fnmatch(name(cell), pattern) for pattern in patterns)


class Inputs:
    """The first prompts of the package's own tasks, as inputs of `generate`; again from the first where there are too
    few."""

    def __init__(self, target, tokenizer):
        self.target, self.tokenizer, self.tasks = target, tokenizer, own_tasks()

    def __call__(self, task: str, batch: int):
        prompts = self.tasks[task]
        return encode(self.tokenizer, [prompts[i % len(prompts)] for i in range(batch)], self.target.device)


def make(draft: str, target, tokenizer, inputs: Inputs, args):
    """One of `DRAFTS`; says how well it agrees with the target on its own answers."""
    few = max(1, target.config.num_hidden_layers // 6)
    texts, prompts = answers(target, inputs, 1, 32, (0.0,))
    if draft == "random":
        model = random_draft(target, few)
    elif draft == "constant":
        model = constant_draft(target, tokenizer("\n")["input_ids"][-1], few)
    elif draft == "as-large":
        model = noisy_copy(target, 0.02)
    elif args.good and args.good.is_dir():
        model = AutoModelForCausalLM.from_pretrained(args.good, dtype=target.dtype).to(target.device).eval()
    else:
        layers = SOME if args.distil else list(range(best_exit(target, texts, prompts)))
        model = part_of(target, layers)
        if args.distil:
            distil(model, target, *answers(target, inputs, 8, args.max_new_tokens, (0.0, 1.0, 1.0)), args.distil)
        if args.good:
            model.save_pretrained(args.good)
    model.generation_config.eos_token_id = None
    same, overlap = agreement(target, model, texts, prompts)
    size = sum(weight.numel() for weight in model.parameters()) / 1e6
    print(
        f"{draft}: {size:.0f}M parameters, agrees with the target: greedy {same:.0%}, sampled {overlap:.0%}", flush=True
    )
    return model


@torch.no_grad()
def answers(target, inputs: Inputs, batch: int, tokens: int, temperatures) -> tuple[list[torch.Tensor], list[int]]:
    """The target's own texts, prompts included, and how long each prompt is."""
    texts, prompts = [], []
    for task, temperature in product(TASKS, temperatures):
        options = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
        given = inputs(task, batch)
        out = type(target).generate(target, **given, max_new_tokens=tokens, **options, pad_token_id=0)
        for text, mask in zip(out, given["attention_mask"], strict=True):
            texts.append(text[len(mask) - int(mask.sum()) :])
            prompts.append(int(mask.sum()))
    return texts, prompts


def plain(target, options: dict, new: int) -> dict:
    watch = Watch(len(options["input_ids"]))
    seconds, _ = timed(lambda: type(target).generate(target, **options, max_new_tokens=new, streamer=watch))
    return {"plain": seconds, "plain decode": watch.decode_seconds}


def ours(target, draft, options: dict, new: int) -> dict:
    watch = Watch(len(options["input_ids"]))
    with hf_specgen.collect_stats() as stats:
        seconds, _ = timed(
            lambda: target.generate(
                **options, max_new_tokens=new, streamer=watch, assistant_model=draft, spec_strategy="rejection"
            )
        )
    return {
        "ours": seconds,
        "ours decode": stats.decode_seconds,
        "ours watched": watch.decode_seconds,
        "rounds": stats.rounds,
        "sources": {source: [seen.drafted, seen.accepted] for source, seen in stats.by_source.items()},
        "why off": stats.off_reason,
    }


def measure(target, draft, options: dict, new: int, repeats: int, seed: int) -> list[dict]:
    """One entry per pair of calls."""
    plain(target, options, 4)
    ours(target, draft, options, 8)
    found = []
    for repeat in range(repeats):
        turns = [lambda: plain(target, options, new), lambda: ours(target, draft, options, new)]
        pair = {"repeat": repeat, "tokens": new * len(options["input_ids"])}
        for turn in turns[:: 1 if repeat % 2 == 0 else -1]:
            torch.manual_seed(seed + repeat)
            pair |= turn()
        found.append(pair)
    return found


def ratios(pairs: list[dict], of: str, to: str) -> list[float]:
    """Plain's seconds in each pair, by ours: above 1 is faster."""
    return [pair[of] / pair[to] for pair in pairs]


HEAD = f"{'cell':30} {'decode':>22} {'watched':>8} {'whole':>8}  tokens from each source: drafted, accepted"


def line(cell: str, pairs: list[dict]) -> str:
    decode = ratios(pairs, "plain decode", "ours decode")
    watched = statistics.median(ratios(pairs, "plain decode", "ours watched"))
    whole = statistics.median(ratios(pairs, "plain", "ours"))
    sources: dict[str, list[int]] = {}
    for pair in pairs:
        for source, counts in pair["sources"].items():
            sources[source] = [a + b for a, b in zip(sources.get(source, [0, 0]), counts, strict=True)]
    told = ", ".join(f"{source} {drafted} {accepted}" for source, (drafted, accepted) in sources.items()) or "none"
    off = pairs[-1]["why off"]
    spread = f"{statistics.median(decode):.3f} ({min(decode):.2f} to {max(decode):.2f})"
    return f"{cell:30} {spread:>22} {watched:8.3f} {whole:8.3f}  {told}{f'; off: {off}' if off else ''}"


def verdict(rows: list[dict]) -> None:
    """How many cells keep to the bounds, and those that do not."""
    cells: dict[str, list[dict]] = {}
    for row in rows:
        cells.setdefault(row["cell"], []).append(row)
    for what, least, of, to in (("decode", DECODE, "plain decode", "ours decode"), ("whole", WHOLE, "plain", "ours")):
        medians = {cell: statistics.median(ratios(pairs, of, to)) for cell, pairs in cells.items()}
        below = {cell: ratio for cell, ratio in medians.items() if ratio < least}
        print(f"{what}: {len(medians) - len(below)} of {len(medians)} cells at or above {least}", end="")
        print("".join(f"\n  {cell} {ratio:.3f}" for cell, ratio in sorted(below.items(), key=lambda x: x[1])))


if __name__ == "__main__":
    main()
