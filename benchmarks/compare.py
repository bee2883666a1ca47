"""Plain, stock assisted (same constant K) and ours, interleaved in one process, one prompt at a time.

    python benchmarks/compare.py TARGET DRAFT --prompts spec_bench.jsonl

All three answers are cut where plain stops. "decode" leaves both prefills out. "measured/ideal" compares our decode
phase with E / (t_target(K+1) + K·t_draft): step times of bare forwards on a stock cache in the same minute, E from the
acceptance seen.
"""

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

import torch
from common import bare_steps, difference, encode, greedy_call, load, machine, read_prompts, timed, tokenizer_of

from hf_specgen.benchmarking.calls import Call, Models
from hf_specgen.benchmarking.contenders import Plain, Stock
from hf_specgen.benchmarking.ours import Ours


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

    tokenizer = tokenizer_of(args.target)
    models = Models(load(args.target, args.dtype), load(args.draft, args.dtype), tokenizer)
    k = args.num_assistant_tokens
    contenders = {"plain": Plain(models), "ours": Ours(models, k, "rejection"), "stock": Stock(models, k)}
    print(machine())
    rows = []
    print(
        f"{'task':14} {'prompt':>6} {'new':>4} {'plain tok/s':>11} {'stock/plain':>11} {'ours/plain':>10} "
        f"{'ours/stock':>10} {'E':>5} {'measured/ideal':>14}  ids"
    )
    for number, (task, text) in enumerate(read_prompts(args.prompts, args.per_task)):
        if args.repeat_context:
            text = "\n".join([text] * (1 + args.repeat_context // len(tokenizer(text)["input_ids"])))
        inputs = encode(tokenizer, [text], models.target.device)
        call = greedy_call(models.target, inputs, args.max_new_tokens, tokenizer.pad_token_id)
        if number == 0:
            for contender in contenders.values():
                contender.decode(replace(call, max_new_tokens=8))
        row = one_prompt(models, contenders, call, k, args.repeats)
        rows.append({"task": task, "prompt": call.input_ids.shape[1], **row})
        print(
            f"{task:14} {call.input_ids.shape[1]:6} {row['new']:4} {row['plain']:11.2f} {row['stock/plain']:11.2f} "
            f"{row['ours/plain']:10.2f} {row['ours/stock']:10.2f} {row['E']:5.2f} {row['measured/ideal']:14.3f}  "
            f"{row['ids']}",
            flush=True,
        )
        if args.out:
            args.out.write_text("".join(json.dumps(r) + "\n" for r in rows))
    for name in ("stock/plain", "ours/plain", "ours/stock", "decode ours/stock", "measured/ideal"):
        values = [r[name] for r in rows]
        print(f"{name:17} median {statistics.median(values):.3f}  min {min(values):.3f}  max {max(values):.3f}")


def one_prompt(models: Models, contenders: dict, call: Call, k: int, repeats: int) -> dict:
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    ratios, decode = [], []
    for _ in range(repeats):
        answers = {}
        for name, contender in contenders.items():
            taken, answers[name] = timed(lambda who=contender, what=call: who.decode(what))
            seconds[name].append(taken)
            if name == "plain":
                wanted = answers[name].ids[0]
                call = replace(call, max_new_tokens=len(wanted))
        decode.append(rate(answers["ours"]) / rate(answers["stock"]))
        middle = torch.tensor([wanted[: len(wanted) // 2]], device=call.input_ids.device)
        middle = torch.cat([call.input_ids, middle], dim=1)
        t_target, t_draft = bare_steps(models.target, middle, [k + 1])[k + 1], bare_steps(models.draft, middle, [1])[1]
        stats = answers["ours"].stats
        if rounds := stats.rounds - 1:
            ratios.append(rate(answers["ours"]) / ((stats.emitted - 1) / rounds / (t_target + k * t_draft)))
    plain, stock, ours = (statistics.median(seconds[name]) for name in ("plain", "stock", "ours"))
    return {
        "new": len(wanted),
        "plain": len(wanted) / plain,
        "stock/plain": plain / stock,
        "ours/plain": plain / ours,
        "ours/stock": statistics.median(s / o for s, o in zip(seconds["stock"], seconds["ours"], strict=True)),
        "decode ours/stock": statistics.median(decode),
        "E": stats.emitted / stats.rounds,
        "measured/ideal": statistics.median(ratios) if ratios else float("nan"),
        "t_target": t_target,
        "t_draft": t_draft,
        "acceptance": stats.acceptance_rate,
        "ids": difference(models.target, call, wanted, answers["ours"].ids[0]),
    }


def rate(answer) -> float:
    """Tokens per second after the first."""
    return (len(answer.ids[0]) - 1) / answer.decode_seconds if answer.decode_seconds else float("nan")


if __name__ == "__main__":
    main()
