"""Prompts of different lengths in one call: each row is decoded as if it were alone.

python examples/by_feature/batches.py [TARGET DRAFT]
"""

import sys

import torch

import hf_specgen
from hf_specgen import demo

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=4)

tokenizer.padding_side = "left"  # the right side works as well
inputs = tokenizer(list(demo.PROMPTS), return_tensors="pt", padding=True)
out = target.generate(**inputs, max_new_tokens=48, do_sample=False, return_dict_in_generate=True)
print(out.spec_stats)

for prompt, sequence, row in zip(demo.PROMPTS, out.sequences, out.spec_stats.rows, strict=True):
    alone = target.generate(**tokenizer(prompt, return_tensors="pt"), max_new_tokens=48, do_sample=False)
    new = sequence[inputs["input_ids"].shape[1] :]
    same = torch.equal(new[: row.emitted], alone[0, -row.emitted :])
    print(
        f"{row.emitted} new tokens in {row.rounds} rounds, {row.acceptance_rate:.0%} of the drafted ones accepted, "
        f"{'the same ids' if same else 'other ids (a near tie in low precision)'} as alone"
    )
