"""A drafter of one's own: propose what followed the last token when it was last seen. 30 lines, exact by construction.

python examples/by_feature/custom_drafter.py [TARGET DRAFT]
"""

import sys

import torch

import hf_specgen
from hf_specgen import Drafter, Proposal, demo


class Echo(Drafter):
    """Looks for the row's last two tokens earlier in its text and proposes what came after them."""

    def propose(self, rows, widths, verifier, noise):
        drafts = [self.followers(row.tokens)[:width] for row, width in zip(rows, widths, strict=True)]
        longest = max(map(len, drafts))
        tokens = torch.tensor([draft + [0] * (longest - len(draft)) for draft in drafts], dtype=torch.long)
        return Proposal(tokens.reshape(len(rows), longest), torch.tensor([len(draft) for draft in drafts]))

    @staticmethod
    def followers(text: list[int]) -> list[int]:
        for i in range(len(text) - 3, 0, -1):
            if text[i - 1 : i + 1] == text[-2:]:
                return text[i + 1 :]
        return []


target, _, tokenizer = demo.load(*sys.argv[1:3])
hf_specgen.enable(target)
inputs = tokenizer("def area(width, height):\n    return width * height\n\ndef area(", return_tensors="pt")
plain = target.generate(**inputs, max_new_tokens=60)
out = target.generate(
    **inputs, max_new_tokens=60, assistant_model=Echo(), spec_strategy="rejection", return_dict_in_generate=True
)
assert torch.equal(out.sequences, plain)
print(tokenizer.decode(out.sequences[0]))
print(out.spec_stats)
