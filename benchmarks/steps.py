"""What one target forward costs, by width and context: stock cache and attention against ours.

python benchmarks/steps.py TARGET --contexts 1024 4096
"""

import argparse
import statistics

import torch
from common import bare_steps, load, machine, timed

from hf_specgen.cache.reader import Reader, read_prompt


@torch.no_grad()
def our_steps(model, ids: torch.Tensor, widths: list[int], repeats: int) -> dict[int, float]:
    _, cache = read_prompt(model, ids, None)
    reader = Reader.from_prefill(model, cache, [0] * len(ids), room=64, device=ids.device)
    before = list(reader.lengths)
    taken: dict[int, list[float]] = {w: [] for w in widths}
    for _ in range(repeats):
        for width in widths:
            seconds, _ = timed(lambda w=width: reader.read(ids[:, :w], [w] * len(ids)))
            reader.lengths[:] = before
            taken[width].append(seconds)
    return {width: statistics.median(seconds) for width, seconds in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--contexts", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 5, 9])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    model = load(args.target, args.dtype)
    print(machine())
    print(f"{'context':>8} {'width':>5} {'stock ms':>9} {'ours ms':>8} {'ours/stock':>10} {'ours / ours width 1':>19}")
    for context in args.contexts:
        ids = torch.randint(0, 1000, (1, context), device=model.device)
        rounds = [
            (bare_steps(model, ids, args.widths, 1), our_steps(model, ids, args.widths, 1)) for _ in range(args.repeats)
        ]
        stock, ours = ({w: statistics.median(r[i][w] for r in rounds) for w in args.widths} for i in (0, 1))
        for w in args.widths:
            print(
                f"{context:8} {w:5} {stock[w] * 1e3:9.1f} {ours[w] * 1e3:8.1f} {ours[w] / stock[w]:10.2f} "
                f"{ours[w] / ours[args.widths[0]]:19.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
