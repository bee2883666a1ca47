"""Two folders in, a target that speculates out: checked, placed, loaded and enabled in one call.

python examples/by_feature/load_pair.py [TARGET DRAFT]
"""

import sys

import hf_specgen
from hf_specgen import demo

folders = sys.argv[1:3] or demo.FOLDERS
print(hf_specgen.check_pair(*folders))  # reads tokenizers, configs and the weights' headers; loads nothing

pair = hf_specgen.load_pair(*folders)
print("\nloaded\n", pair, sep="")

inputs = pair.tokenizer(demo.PROMPTS[0], return_tensors="pt")
with hf_specgen.collect_stats() as stats:
    ids = pair.target.generate(**inputs, max_new_tokens=48)  # code that only knows the target speculates, too
print(f"\n{pair.tokenizer.decode(ids[0], skip_special_tokens=True)}\n\n{stats}")
