"""No draft model: tokens are copied from where the text has repeated itself. Good for editing, summaries, JSON.

python examples/by_feature/prompt_lookup.py [TARGET]
"""

import sys

import torch
from rich.console import Console

import hf_specgen
from hf_specgen import demo

target, _, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
code = """\
    def red(self):
        return self._red

    def green(self):
        return self._green

    def blue(self):
"""
inputs = tokenizer(code, return_tensors="pt")
plain = target.generate(**inputs, max_new_tokens=60, do_sample=False)
out = target.generate(
    **inputs,
    max_new_tokens=60,
    do_sample=False,
    spec_strategy="rejection",
    spec_source="lookup",
    prompt_lookup_num_tokens=8,
    return_dict_in_generate=True,
)
Console().print(hf_specgen.coloured(out, tokenizer))
print(out.spec_stats)
print("the same ids as plain decoding:", torch.equal(plain, out.sequences))
