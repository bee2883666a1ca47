"""What happened in a call, where its tokens came from, and what would make it faster.

python examples/by_feature/statistics_and_advice.py [TARGET DRAFT]
"""

import sys

from rich.console import Console

import hf_specgen
from hf_specgen import demo

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
inputs = tokenizer(demo.PROMPTS[0], return_tensors="pt")
out = target.generate(
    **inputs,
    max_new_tokens=64,
    do_sample=False,
    assistant_model=draft,
    spec_strategy="rejection",
    num_assistant_tokens=8,  # too many for this draft, as the advice will say
    return_dict_in_generate=True,
)
Console().print(hf_specgen.coloured(out, tokenizer))  # in a notebook: hf_specgen.coloured(out, tokenizer)
stats = out.spec_stats
print(stats)
print("\nrounds of the first row, (drafted, accepted):", stats.rows[0].trace)
print("\nAdvice")
for advice in stats.advice():
    print(advice)
