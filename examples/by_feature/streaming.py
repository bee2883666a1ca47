"""Tokens as they come: transformers' streamers for one row, one streamer per row for a batch.

python examples/by_feature/streaming.py [TARGET DRAFT]
"""

import sys

from transformers import TextIteratorStreamer, TextStreamer

import hf_specgen
from hf_specgen import demo

target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection")

inputs = tokenizer(demo.PROMPTS[0], return_tensors="pt")
with hf_specgen.collect_stats() as stats:
    target.generate(**inputs, max_new_tokens=48, streamer=TextStreamer(tokenizer))
print(stats)

tokenizer.padding_side = "left"
batch = tokenizer(list(demo.PROMPTS), return_tensors="pt", padding=True)
rows = {}


def make_streamer(row: int) -> TextIteratorStreamer:
    rows[row] = TextIteratorStreamer(tokenizer, skip_prompt=True)
    return rows[row]


target.generate(**batch, max_new_tokens=32, streamer=hf_specgen.RowStreamers(make_streamer))
for row, streamer in sorted(rows.items()):
    print(f"--- row {row}: {''.join(streamer)!r}")
