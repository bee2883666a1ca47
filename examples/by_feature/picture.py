"""An answer as a picture, each token in the colour of what proposed it: SVG, for slides and READMEs.

python examples/by_feature/picture.py [TARGET DRAFT] [--out FILE]
"""

import argparse
import os
import re
from pathlib import Path

from rich.console import Console

from hf_specgen import demo, enable
from hf_specgen.display import coloured

QUESTION = """def fibonacci(n):
    numbers = [0, 1]
    while len(numbers) < n:
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:n]

Rename `n` to `count`, and raise a ValueError when it is below one.
"""

arguments = argparse.ArgumentParser()
arguments.add_argument("models", nargs="*", metavar="TARGET DRAFT", help="folders or Hub ids; none: the embedded pair")
arguments.add_argument("--out", type=Path, default=Path("answer.svg"))
given = arguments.parse_args()

target, draft, tokenizer = demo.load(*given.models)
enable(target)
text = QUESTION
if tokenizer.chat_template:
    turns = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
inputs = tokenizer(text, return_tensors="pt")
out = target.generate(
    **inputs,
    max_new_tokens=160,
    do_sample=False,
    assistant_model=draft,
    spec_strategy="rejection",
    return_dict_in_generate=True,
)
with open(os.devnull, "w") as nowhere:  # what is printed is recorded, not shown
    console = Console(record=True, width=100, file=nowhere)
    console.print(coloured(out, tokenizer))
    svg = console.export_svg(title=f"{out.spec_stats.tokens_per_target_forward:.1f} tokens per target forward")
given.out.write_text(re.sub(r"\s*@font-face {[^}]*}", "", svg))  # whose fonts a picture in a page cannot fetch
print(given.out, out.spec_stats, sep="\n")
