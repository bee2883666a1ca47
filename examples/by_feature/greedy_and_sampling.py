"""Greedy decoding gives plain decoding's ids; sampling keeps the target's law, and a seed fixes the text.

python examples/by_feature/greedy_and_sampling.py [TARGET DRAFT]
"""

import sys

import torch

import hf_specgen
from hf_specgen import demo

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
inputs = tokenizer(demo.PROMPTS[1], return_tensors="pt")

plain = target.generate(**inputs, max_new_tokens=48, do_sample=False)
with hf_specgen.collect_stats() as stats:
    greedy = target.generate(
        **inputs, max_new_tokens=48, do_sample=False, assistant_model=draft, spec_strategy="rejection"
    )
print("greedy, the same ids as plain decoding:", torch.equal(plain, greedy))
print(stats)

for seed in (1, 1, 2):
    sampled = target.generate(
        **inputs,
        max_new_tokens=48,
        do_sample=True,
        temperature=0.8,
        assistant_model=draft,
        spec_strategy="block",  # accepts at least as much as "rejection", under the same law
        num_assistant_tokens=4,  # left to itself, it drafts on a CPU only in a SpecSession, or after `hf-specgen tune`
        generator=torch.Generator().manual_seed(seed),
    )
    print(f"\nsampled, seed {seed}:\n{tokenizer.decode(sampled[0], skip_special_tokens=True)}")
