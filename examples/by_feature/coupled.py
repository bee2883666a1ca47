"""spec_strategy="coupled": a sampled text that depends on the seed alone, not on the draft or on how much it drafts.

python examples/by_feature/coupled.py [TARGET DRAFT]
"""

import sys

import torch

import hf_specgen
from hf_specgen import demo

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
inputs = tokenizer(demo.PROMPTS[2], return_tensors="pt")
WAYS = {
    "without a draft": {"spec_source": "none"},
    "K = 2": {"assistant_model": draft, "num_assistant_tokens": 2},
    "K = 6": {"assistant_model": draft, "num_assistant_tokens": 6},
    "copied from the text": {"spec_source": "lookup"},
}
first = None
for name, options in WAYS.items():
    with hf_specgen.collect_stats() as stats:
        ids = target.generate(
            **inputs,
            **options,
            max_new_tokens=48,
            do_sample=True,
            spec_strategy="coupled",
            generator=torch.Generator().manual_seed(0),
        )
    first = ids if first is None else first
    same = "the same ids" if torch.equal(first, ids) else "other ids (equality is promised in float32)"
    print(f"{name:22} {stats.tokens_per_target_forward or 1:.2f} tokens per forward, {same}")
print(tokenizer.decode(first[0], skip_special_tokens=True))
