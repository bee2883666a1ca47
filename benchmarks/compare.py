"""Plain, stock assisted (same constant K) and ours, interleaved in one process, one prompt at a time.

    python benchmarks/compare.py TARGET DRAFT --prompts spec_bench.jsonl

All three answers are cut where plain stops. "decode" leaves both prefills out. "measured/ideal" compares our decode
phase with E / (t_target(K+1) + K·t_draft): step times of bare forwards on a stock cache in the same minute, E from the
acceptance seen.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from common import bare_steps, encode, load, machine, read_prompts, timed, tokenizer_of
from transformers.generation.streamers import BaseStreamer

import hf_specgen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines in Spec-Bench's format")
    parser.add_argument("--per-task", type=int, default=2)
    parser.add_argument("--num-assistant-tokens", "-k", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1, help="interleaved repetitions per prompt; the median counts")
    parser.add_argument(
        "--repeat-context", type=int, default=0, help="repeat each prompt's text to at least this many tokens"
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="write one JSON line per prompt")
    args = parser.parse_args()

    target, draft, tokenizer = load(args.target, args.dtype), load(args.draft, args.dtype), tokenizer_of(args.target)
    print(machine())
    k = args.num_assistant_tokens
    draft.generation_config.num_assistant_tokens = k
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0

    rows = []
    print(
        f"{'task':14} {'prompt':>6} {'new':>4} {'plain tok/s':>11} {'stock/plain':>11} {'ours/plain':>10} "
        f"{'ours/stock':>10} {'E':>5} {'measured/ideal':>14}  ids"
    )
    for number, (task, text) in enumerate(read_prompts(args.prompts, args.per_task)):
        if args.repeat_context:
            text = "\n".join([text] * (1 + args.repeat_context // len(tokenizer(text)["input_ids"])))
        inputs = encode(tokenizer, [text], target.device)
        columns = inputs["input_ids"].shape[1]
        common = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id}
        if number == 0:
            warm_up(target, draft, inputs, k, common)
        row = one_prompt(target, draft, inputs, columns, k, args, common)
        rows.append({"task": task, "prompt": columns, **row})
        print(
            f"{task:14} {columns:6} {row['new']:4} {row['plain']:11.2f} {row['stock/plain']:11.2f} "
            f"{row['ours/plain']:10.2f} {row['ours/stock']:10.2f} {row['E']:5.2f} {row['measured/ideal']:14.3f}  "
            f"{row['ids']}",
            flush=True,
        )
        if args.out:
            args.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for name in ("stock/plain", "ours/plain", "ours/stock", "decode ours/stock", "measured/ideal"):
        values = [r[name] for r in rows]
        print(f"{name:17} median {statistics.median(values):.3f}  min {min(values):.3f}  max {max(values):.3f}")


def warm_up(target, draft, inputs, k, common) -> None:
    target.generate(**inputs, max_new_tokens=8, **common)
    speculate(target, draft, inputs, 8, k, common)
    target.generate(**inputs, max_new_tokens=8, assistant_model=draft, **common)


def speculate(target, draft, inputs, new, k, common):
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


def difference(target, inputs, wanted: torch.Tensor, got: torch.Tensor, common: dict) -> str:
    """Where two answers part, and how far apart plain's logits for the two tokens are there (0: a tie)."""
    length = min(len(wanted), len(got))
    apart = (wanted[:length] != got[:length]).nonzero()
    if not len(apart):
        return "equal" if len(wanted) == len(got) else "another length"
    i = int(apart[0])
    options = common | {"return_dict_in_generate": True, "output_logits": True}
    logits = target.generate(**inputs, max_new_tokens=i + 1, **options).logits[i][0]
    return f"differ at {i}, gap {float(logits[wanted[i]] - logits[got[i]]):.3f}"


class Watch(BaseStreamer):
    """When stock assisted decoding has handed over how many new tokens (its first hand-over ends its prefill)."""

    def __init__(self):
        self.seen: list[tuple[float, int]] = []

    def put(self, value) -> None:
        self.seen.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass

    def decode_rate(self) -> float:
        """Tokens per second after the first hand-over of new tokens."""
        (_, _), (start, _), *later = self.seen
        return sum(count for _, count in later) / (later[-1][0] - start) if later else float("nan")


def one_prompt(target, draft, inputs, columns, k, args, common) -> dict:
    seconds: dict[str, list[float]] = {"plain": [], "stock": [], "ours": []}
    ratios, decode, new = [], [], args.max_new_tokens
    for _ in range(args.repeats):
        taken, wanted = timed(lambda n=new: target.generate(**inputs, max_new_tokens=n, **common))
        new = wanted.shape[1] - columns
        seconds["plain"].append(taken)
        taken, (out, stats) = timed(lambda n=new: speculate(target, draft, inputs, n, k, common))
        seconds["ours"].append(taken)
        watch = Watch()
        stock = {**common, "assistant_model": draft, "streamer": watch}
        taken, _ = timed(lambda n=new, s=stock: target.generate(**inputs, max_new_tokens=n, **s))
        seconds["stock"].append(taken)
        decode.append((stats.emitted - 1) / stats.decode_seconds / watch.decode_rate())
        middle = wanted[:, : columns + new // 2]
        t_target, t_draft = bare_steps(target, middle, [k + 1])[k + 1], bare_steps(draft, middle, [1])[1]
        rounds = stats.rounds - 1
        if rounds:
            gained = (stats.emitted - 1) / rounds
            ratios.append((stats.emitted - 1) / stats.decode_seconds / (gained / (t_target + k * t_draft)))
    plain, stock, ours = (statistics.median(seconds[name]) for name in ("plain", "stock", "ours"))
    return {
        "new": new,
        "plain": new / plain,
        "stock/plain": plain / stock,
        "ours/plain": plain / ours,
        "ours/stock": statistics.median(s / o for s, o in zip(seconds["stock"], seconds["ours"], strict=True)),
        "decode ours/stock": statistics.median(decode),
        "E": stats.emitted / stats.rounds,
        "measured/ideal": statistics.median(ratios) if ratios else float("nan"),
        "t_target": t_target,
        "t_draft": t_draft,
        "acceptance": stats.acceptance_rate,
        "ids": difference(target, inputs, wanted[0, columns:], out[0, columns:], common),
    }


if __name__ == "__main__":
    main()
