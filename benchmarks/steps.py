"""What one target forward costs, by width and context: stock cache and attention against ours.

python benchmarks/steps.py TARGET --contexts 1024 4096
"""

import argparse
import copy
import statistics

import torch
from common import load, machine, timed

from hf_specgen import compat
from hf_specgen.cache.reader import Reader, read_prompt
from hf_specgen.cache.stock import Layout


@torch.no_grad()
def steps(model, ids: torch.Tensor, widths: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Median seconds per forward by width, stock and ours taking turns, after one prefill."""
    name = compat.cache_argument(model)
    _, stock = read_prompt(model, ids, None)
    filled = [(copy.deepcopy(stock), Layout(None, *ids.shape), list(range(len(ids))))]
    reader = Reader.from_prefill(model, filled, room=64, device=ids.device)
    stock.activate_past_recording()

    def run_stock(width: int) -> None:
        model(input_ids=ids[:, :width], use_cache=True, **{name: stock})
        stock.crop(-width)

    def run_ours(width: int) -> None:
        reader.read(ids[:, :width], [width] * len(ids))
        for row in range(len(ids)):
            reader.roll_back(row, ids.shape[1])

    taken = {"stock": {w: [] for w in widths}, "ours": {w: [] for w in widths}}
    for _ in range(repeats):
        for width in widths:
            taken["stock"][width].append(timed(lambda w=width: run_stock(w))[0])
            taken["ours"][width].append(timed(lambda w=width: run_ours(w))[0])
    return {who: {w: statistics.median(x) for w, x in by_width.items()} for who, by_width in taken.items()}


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
        found = steps(model, ids, args.widths, args.repeats)
        stock, ours = found["stock"], found["ours"]
        for w in args.widths:
            print(
                f"{context:8} {w:5} {stock[w] * 1e3:9.1f} {ours[w] * 1e3:8.1f} {ours[w] / stock[w]:10.2f} "
                f"{ours[w] / ours[args.widths[0]]:19.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
