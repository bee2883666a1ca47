"""Settings that were measured for a pair on this machine (`hf-specgen tune` does the same), kept in a file.

python examples/by_feature/spec_config.py [TARGET DRAFT]
"""

import sys
import tempfile

import hf_specgen
from hf_specgen import demo
from hf_specgen.tuning import tune

target, draft, tokenizer = demo.load(*sys.argv[1:3])
# Far too little to trust: two short prompts, once. Leave limit, max_new_tokens and repeats to their defaults.
config = tune(
    target,
    draft,
    list(demo.PROMPTS[:2]),
    tokenizer=tokenizer,
    temperatures=(0.0,),
    limit=2,
    max_new_tokens=24,
    repeats=1,
)
with tempfile.TemporaryDirectory() as folder:
    print(config.save_pretrained(folder).read_text()[:600], "…\n")

    hf_specgen.enable(
        target, assistant_model=draft, spec_config=folder
    )  # each call: what was found for its temperature
    inputs = tokenizer(demo.PROMPTS[2], return_tensors="pt")
    out = target.generate(**inputs, max_new_tokens=48, do_sample=False, return_dict_in_generate=True)
print(tokenizer.decode(out.sequences[0], skip_special_tokens=True))
print(out.spec_stats)
