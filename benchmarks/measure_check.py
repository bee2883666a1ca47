"""What `check-pair --measure` expects of a pair, and what decoding the same prompts then gives.

    python benchmarks/measure_check.py TARGET DRAFT --prompts spec_bench.jsonl

measure_pair runs first. Then each prompt is decoded plainly, with the best K and with K = 4, taking turns. "decode"
leaves the prefills out; plain's is timed by a streamer. The speed-ups are those of all prompts' seconds together.
"""

import argparse
import json
from pathlib import Path

import torch
from common import load, machine, speculate, timed, tokenizer_of

import hf_specgen
from hf_specgen.measuring.measure import measure_pair
from hf_specgen.measuring.prompts import encode, read_prompts
from hf_specgen.measuring.timing import Watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument(
        "--prompts", type=Path, required=True, help=".txt, .jsonl or .json, as for check-pair --measure"
    )
    parser.add_argument("--limit", type=int, default=6, help="prompts, spread over the file")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-assistant-tokens", type=int, default=8)
    parser.add_argument("--ks", type=int, nargs="*", default=[4], help="decoded beside the best K")
    parser.add_argument("--temperature", type=float, help="sample at this temperature (default: greedy)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--out", type=Path, help="write the comparison as JSON")
    args = parser.parse_args()

    target, draft, tokenizer = load(args.target, args.dtype), load(args.draft, args.dtype), tokenizer_of(args.target)
    prompts = read_prompts(args.prompts, args.limit)
    tokenizers = {"tokenizer": tokenizer, "assistant_tokenizer": tokenizer_of(args.draft)}
    common = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    if args.temperature is not None:
        common |= {"do_sample": True, "temperature": args.temperature}
    print(machine())
    torch.manual_seed(0)
    taken, expected = timed(
        lambda: measure_pair(
            target,
            draft,
            prompts,
            max_new_tokens=args.max_new_tokens,
            max_assistant_tokens=args.max_assistant_tokens,
            **tokenizers,
            **common,
        )
    )
    print(f"{expected}\nmeasured in {taken:.1f} s\n")

    ks = sorted({expected.fastest.k, *args.ks})
    inputs = [encode(tokenizer, prompt).to(target.device) for prompt in prompts]
    plain, decode, seen, seconds = decoded(target, draft, inputs, ks, args, common, tokenizers)
    print(f"{'K':>3} {'figure':22} {'expected':>9} {'decoded':>9} {'error':>8}")
    rows = []
    for k in ks:
        forecast = expected.lengths[k - 1]
        stats = seen[k]
        places = zip(
            forecast.forecast.acceptance_by_position.conditional,
            stats.acceptance_by_position.conditional,
            strict=False,
        )
        figures = {
            "acceptance rate": (forecast.forecast.acceptance_rate, stats.acceptance_rate),
            **{f"acceptance at {i}": pair for i, pair in enumerate(places, start=1)},
            "tokens per forward": (forecast.forecast.tokens_per_target_forward, stats.tokens_per_target_forward),
            "speed-up, decode": (forecast.decode_speedup, decode / stats.decode_seconds),
            "speed-up, calls": (forecast.call_speedup, plain / seconds[k]),
        }
        for name, (wanted, got) in figures.items():
            if wanted is None or not got:
                continue
            rows.append({"k": k, "figure": name, "expected": wanted, "decoded": got, "error": wanted / got - 1})
            print(f"{k:3} {name:22} {wanted:9.3f} {got:9.3f} {wanted / got - 1:+8.1%}", flush=True)
    if args.out:
        args.out.write_text(json.dumps({"measured": expected.to_dict(), "compared": rows}, indent=2) + "\n")


def decoded(target, draft, inputs, ks, args, common, tokenizers):
    """All prompts, each plainly and with each K in turn: seconds of plain calls and of their decode phases; per K the
    statistics, and the seconds of its calls."""
    plain, decode = 0.0, 0.0
    seen, seconds = {k: hf_specgen.SpecStats() for k in ks}, dict.fromkeys(ks, 0.0)
    for _ in range(args.repeats):
        for one in inputs:
            watch = Watch()
            plain += timed(lambda i=one, w=watch: plainly(target, i, args.max_new_tokens, w, common))[0]
            decode += watch.decode_seconds
            for k in ks:
                taken, (_, stats) = timed(
                    lambda i=one, k=k: speculate(target, draft, i, args.max_new_tokens, k, common | tokenizers)
                )
                seconds[k] += taken
                seen[k].add(stats)
    return plain, decode, seen, seconds


def plainly(target, inputs, new: int, watch: Watch, common: dict):
    return target.generate(**inputs, max_new_tokens=new, streamer=watch, **common)


if __name__ == "__main__":
    main()
