"""A batch of mixed lengths: plain batched generate, ours for K = 1 … 4, and single stock assisted calls, interleaved.

python benchmarks/batch.py TARGET DRAFT --prompts spec_bench.jsonl --batch-size 8
"""

import argparse
import statistics
from pathlib import Path

from common import bare_steps, encode, load, machine, read_prompts, speculate, timed, tokenizer_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path, required=True, help="JSON Lines in Spec-Bench's format")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--max-k", type=int, default=4)
    parser.add_argument("--stock-k", type=int, nargs="*", default=[2], help="K of the single stock calls; none: skip")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()

    target, draft, tokenizer = load(args.target, args.dtype), load(args.draft, args.dtype), tokenizer_of(args.target)
    print(machine())
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    texts = [t for _, t in read_prompts(args.prompts, -(-args.batch_size // 6))]
    texts = sorted(texts, key=len)[: args.batch_size]
    inputs = encode(tokenizer, texts, target.device)
    lengths = inputs["attention_mask"].sum(1).tolist()
    print(f"batch {len(texts)}, prompt lengths {lengths}, {args.max_new_tokens} new tokens")
    # Every row runs to the same length, so that all methods do the same work.
    common = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id, "eos_token_id": None}
    new = args.max_new_tokens

    plain, ours, single, seen = [], {k: [] for k in range(1, args.max_k + 1)}, [], {}
    for _ in range(args.repeats):
        plain.append(timed(lambda: target.generate(**inputs, max_new_tokens=new, **common))[0])
        for k in ours:
            seconds, (_, stats) = timed(lambda k=k: speculate(target, draft, inputs, new, k, common))
            ours[k].append(seconds)
            seen[k] = stats
    for k in args.stock_k:
        draft.generation_config.num_assistant_tokens = k
        total = 0.0
        for b, length in enumerate(lengths):
            row = {name: x[b : b + 1, -length:] for name, x in inputs.items()} | common
            total += timed(lambda r=row: target.generate(**r, max_new_tokens=new, assistant_model=draft))[0]
        single.append((k, total))
    base = statistics.median(plain)
    print(f"plain batched   {base:7.2f} s")
    ids = inputs["input_ids"]
    steps, draft_step = bare_steps(target, ids, [1, *(k + 1 for k in ours)]), bare_steps(draft, ids, [1])[1]
    print(f"bare forwards, {len(texts)} rows: target {steps[1] * 1e3:.0f} ms, draft {draft_step * 1e3:.0f} ms")
    for k, seconds in ours.items():
        ratio = statistics.median(p / o for p, o in zip(plain, seconds, strict=True))
        stats, rounds = seen[k], seen[k].verify_forwards
        round_ideal = steps[k + 1] + k * draft_step
        print(
            f"ours K={k}        {statistics.median(seconds):7.2f} s  {ratio:.2f}x plain  acceptance "
            f"{stats.acceptance_rate:.0%}, {rounds} rounds of {stats.decode_seconds / rounds * 1e3:.0f} ms "
            f"(bare forwards with all rows {round_ideal * 1e3:.0f} ms), plain steps would take "
            f"{stats.plain_steps * steps[1]:.2f} s, decoding took {stats.decode_seconds:.2f} s"
        )
    best = min(statistics.median(seconds) for seconds in ours.values())
    for k, total in single:
        print(f"stock K={k}, {len(texts)} calls {total:7.2f} s  ours at its best is {total / best:.2f}x as fast")


if __name__ == "__main__":
    main()
