"""What the pair check costs: the first call, and every later one, as it runs before each `generate()`.

    python benchmarks/pair_check.py TARGET DRAFT

The models are made on the meta device: only their configs and tokenizer files count.
"""

import argparse
import statistics

import torch
from common import machine, timed
from transformers import AutoConfig, AutoModelForCausalLM

from hf_specgen import check_pair


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    args = parser.parse_args()
    with torch.device("meta"):
        pair = [AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(f)) for f in (args.target, args.draft)]
    print(machine())
    first, report = timed(lambda: check_pair(*pair))
    later = [timed(lambda: check_pair(*pair))[0] for _ in range(300)]
    each = statistics.median(later) * 1e6
    print(f"{report.verdict}: first call {first * 1e3:.0f} ms, later {each:.0f} µs (median of {len(later)})")


if __name__ == "__main__":
    main()
