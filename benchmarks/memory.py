"""Peak memory of one call beyond the loaded models, each in a process of its own: plain against ours, by length.

    python benchmarks/memory.py TARGET DRAFT --lengths 512 1024 2048

The draft is loaded in both cases, so that the difference is what the call itself needs.
"""

import argparse
import json
import resource
import subprocess
import sys

import torch
from common import load, machine, speculate


def peak(target_folder: str, draft_folder: str, dtype: str, mode: str, length: int, new: int) -> float:
    """MiB above what was resident before the call."""
    target, draft = load(target_folder, dtype), load(draft_folder, dtype)
    ids = torch.randint(0, 1000, (1, length), device=target.device)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    common = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    target(ids[:, :8]), draft(ids[:, :8])
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if mode == "plain":
        target.generate(**inputs, max_new_tokens=new, **common)
    else:
        speculate(target, draft, inputs, new, 4, common)
    if torch.cuda.is_available():
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--one", nargs=2, metavar=("MODE", "LENGTH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        mode, length = args.one
        print(json.dumps(peak(args.target, args.draft, args.dtype, mode, int(length), args.new_tokens)))
        return
    print(machine())
    print(f"{'prompt':>7} {'plain MiB':>10} {'ours MiB':>9} {'extra MiB':>10}")
    for length in args.lengths:
        found = {}
        for mode in ("plain", "ours"):
            command = [sys.executable, __file__, args.target, args.draft, "--dtype", args.dtype]
            command += ["--new-tokens", str(args.new_tokens), "--one", mode, str(length)]
            found[mode] = json.loads(
                subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
            )
        print(
            f"{length:7} {found['plain']:10.0f} {found['ours']:9.0f} {found['ours'] - found['plain']:10.0f}", flush=True
        )


if __name__ == "__main__":
    main()
