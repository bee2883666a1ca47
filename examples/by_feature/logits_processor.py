"""A logits processor of one's own, with state: it is shown each row as plain decoding shows it, token by token.

python examples/by_feature/logits_processor.py [TARGET DRAFT]
"""

import sys

import torch
from transformers import LogitsProcessor, LogitsProcessorList

import hf_specgen
from hf_specgen import demo


class NoNewLineBefore(LogitsProcessor):
    """Forbids line ends until so many tokens were written."""

    def __init__(self, line_ends: list[int], count: int):
        self.line_ends, self.count, self.seen = line_ends, count, 0

    def __call__(self, input_ids, scores):
        self.seen += 1  # drafted tokens that are thrown away do not count: each row's state goes back with its text
        if self.seen <= self.count:
            scores = scores.clone()
            scores[:, self.line_ends] = -torch.inf
        return scores


target, draft, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
inputs = tokenizer(demo.PROMPTS[1], return_tensors="pt")
line_ends = [id_ for id_ in range(len(tokenizer)) if "\n" in tokenizer.decode([id_])]


def processors() -> LogitsProcessorList:
    return LogitsProcessorList([NoNewLineBefore(line_ends, 24)])


plain = target.generate(**inputs, max_new_tokens=48, do_sample=False, logits_processor=processors())
out = target.generate(
    **inputs,
    max_new_tokens=48,
    do_sample=False,
    logits_processor=processors(),
    assistant_model=draft,
    spec_strategy="rejection",
    num_assistant_tokens=4,
    return_dict_in_generate=True,
)
print(tokenizer.decode(out.sequences[0], skip_special_tokens=True))
print(out.spec_stats)
print("the same ids as plain decoding:", torch.equal(plain, out.sequences))
