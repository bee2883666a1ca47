"""Speculation in a `generate()` call: one prompt, then a batch; greedy, then sampled.

    python examples/quick_start.py [TARGET DRAFT]

Without arguments it uses the pair that comes with the package.
"""

import sys

from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_specgen
from hf_specgen import demo

if len(sys.argv) == 3:
    target, draft = (AutoModelForCausalLM.from_pretrained(folder) for folder in sys.argv[1:])
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
else:
    target, draft, tokenizer = demo.load()

hf_specgen.enable(target)
prompt = tokenizer(demo.PROMPTS[0], return_tensors="pt")
out = target.generate(
    **prompt, max_new_tokens=60, assistant_model=draft, spec_strategy="rejection", return_dict_in_generate=True
)
Console().print(hf_specgen.coloured(out, tokenizer))
print(out.spec_stats)

tokenizer.padding_side = "left"
batch = tokenizer(list(demo.PROMPTS), return_tensors="pt", padding=True)
with hf_specgen.collect_stats() as stats:
    target.generate(
        **batch,
        max_new_tokens=60,
        do_sample=True,
        temperature=0.7,
        assistant_model=draft,
        spec_strategy="block",
        num_assistant_tokens=4,
    )
print(stats)
for row in stats.rows:
    print(f"row: {row.emitted} tokens, {row.acceptance_rate:.0%} of the drafted ones accepted")
