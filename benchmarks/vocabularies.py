"""A draft with another vocabulary: what is accepted, token by token and as text, greedy and sampled, in one batch.

    python benchmarks/vocabularies.py TARGET DRAFT [--dtype float32]

In float32 greedy ids are compared with plain decoding of each row alone; sampled text is drawn with "coupled" as well,
which no draft may change: it is compared with that of no draft at all.
"""

import argparse
from unittest import mock

import torch
import transformers
from common import encode, load, machine, timed, tokenizer_of

import hf_specgen
from hf_specgen.pairing import vocabulary

PROMPTS = [
    "Write a Python function that merges two sorted lists into one sorted list.",
    "Write a JavaScript function that groups an array of objects by a key.",
    "Explain in one paragraph why the sky is blue during the day and red at sunset.",
    "Describe the history of the city of Rome in a few sentences.",
]
WAYS = {"as text": 2.0, "token by token": 0.0}
"""`vocabulary.ALIKE`, from which greedy drafting goes token by token."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--num-assistant-tokens", "-k", type=int, default=4)
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    target, draft = load(args.target, args.dtype), load(args.draft, args.dtype)
    ours, theirs = tokenizer_of(args.target), tokenizer_of(args.draft)
    batch = encode(ours, PROMPTS, target.device)
    hf_specgen.enable(target)
    print(f"{machine()}; {args.dtype}, K = {args.num_assistant_tokens}, batch of {len(PROMPTS)}")

    def plain(**inputs):
        return target.generate(
            **inputs, max_new_tokens=args.max_new_tokens, do_sample=False, pad_token_id=ours.pad_token_id
        )

    def speculate(strategy="rejection", draft=draft, **options):
        return target.generate(
            **batch,
            assistant_model=draft,
            spec_strategy=strategy,
            tokenizer=ours,
            assistant_tokenizer=theirs,
            num_assistant_tokens=args.num_assistant_tokens,
            max_new_tokens=args.max_new_tokens,
            return_dict_in_generate=True,
            **{"do_sample": False} | options,
        )

    alone = [
        plain(**{name: x[b : b + 1, batch["attention_mask"][b].bool()] for name, x in batch.items()}) for b in range(4)
    ]
    seconds, _ = timed(lambda: plain(**batch))
    width = batch["input_ids"].shape[1]
    print(f"{'':34} {'accepted':>8} {'tokens/forward':>15} {'of plain':>9}  ids")
    for way, alike in WAYS.items():
        with mock.patch.object(vocabulary, "ALIKE", alike):
            taken, out = timed(speculate)
        same = 0
        for b, text in enumerate(alone):
            wanted = text[0, int(batch["attention_mask"][b].sum()) :]
            same += torch.equal(out.sequences[b, width : width + len(wanted)], wanted)
        show(f"greedy, {way}", out, seconds / taken, f"{same} of {len(alone)} as plain")
    sampling = {"do_sample": True, "temperature": args.temperature, "top_k": 0}
    for strategy in ("rejection", "block", "coupled"):
        generator = torch.Generator().manual_seed(1)
        taken, out = timed(lambda s=strategy, g=generator: speculate(s, **sampling, generator=g))
        note = ""
        if strategy == "coupled":
            bare = speculate(strategy, draft=None, **sampling, generator=torch.Generator().manual_seed(1))
            rows = zip(out.sequences, bare.sequences, strict=True)
            note = f"{sum(torch.equal(a, b) for a, b in rows)} of {len(alone)} as without a draft"
        show(f"sampled at {args.temperature}, {strategy}", out, seconds / taken, note)


def show(name: str, out, ratio: float, note: str) -> None:
    stats = out.spec_stats
    figures = f"{stats.acceptance_rate:8.2f} {stats.tokens_per_target_forward:15.2f} {ratio:8.2f}×"
    print(f"{name:34} {figures}  {note}")


if __name__ == "__main__":
    main()
