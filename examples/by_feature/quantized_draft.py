"""A draft in four bits: cheaper steps, and the target's text all the same. Needs bitsandbytes.

pip install "hf-specgen[bitsandbytes]"
python examples/by_feature/quantized_draft.py [TARGET DRAFT]
"""

import sys

import hf_specgen
from hf_specgen import demo

folders = sys.argv[1:3] or demo.FOLDERS
texts = {}
for quantization in (None, "nf4"):
    pair = hf_specgen.load_pair(*folders, draft_quantization=quantization, num_assistant_tokens=4)
    inputs = pair.tokenizer(demo.PROMPTS[1], return_tensors="pt")
    out = pair.generate(**inputs, max_new_tokens=48, do_sample=False, return_dict_in_generate=True)
    texts[quantization] = pair.tokenizer.decode(out.sequences[0])
    print(f"draft: {pair.quantization[1]}, {pair.draft.get_memory_footprint() / 1e6:.2f} MB")
    print(out.spec_stats, "\n")
same = texts[None] == texts["nf4"]
print(
    "the same text with both drafts" if same else "the texts part at a near tie: blocks round differently in bfloat16"
)
