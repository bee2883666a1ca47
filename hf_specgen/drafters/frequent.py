"""What a draft with a large vocabulary drafts from, unless it was told: its frequent tokens, while the text is of them.

Which rows leave them is decided by each row's own text: a row is alone.
"""

import torch

from ..lengths.costs import BANDWIDTH, expected_step
from .trimmed import Trimmed, fault_of, special_ids, why_whole

FREQUENT = 32768
"""Tokens in BPE's order. With the prompt's they are 90 to 100 % (median 99) of those that Qwen2.5-Coder-0.5B predicts
rightly in 18 answers to Spec-Bench's prompts."""
WORTH = 0.15
"""Trimming must save so much of the draft's step."""
STRANGE_PROMPT = 0.4
"""A prompt with more tokens beyond the frequent ones is in another script: 0.05 to 0.25 in European languages and code,
0.6 to 0.8 in Arabic, Chinese, Japanese and Russian (Qwen2.5's vocabulary)."""
STRANGE = 0.15
"""So much of the newest text that could not have been drafted costs more than trimming saves."""
NEWEST, ENOUGH = 32, 16
"""Tokens that are looked at, and how many there must be."""


class FrequentTokens(Trimmed):
    """Trimmed to `FREQUENT` tokens and those of each row's prompt; a row whose text has others gets all of them."""

    @classmethod
    def of_large(cls, model) -> "FrequentTokens | None":
        """None where trimming saves little, as on a GPU, whose small drafts wait for launches; or is impossible."""
        head = model.get_output_embeddings()
        rows = getattr(head, "out_features", 0)
        if rows < 2 * FREQUENT or why_whole(model, head):
            return None
        seconds = (rows - FREQUENT) * head.in_features * head.weight.element_size()
        if seconds / BANDWIDTH.get(model.device.type, BANDWIDTH["cpu"]) < WORTH * expected_step(model):
            return None
        return cls.of(model, FREQUENT, special_ids(model))

    def begin(self, prompts):
        part = super().begin(prompts)
        self.known = [{*self.others, *prompt} for prompt in prompts]
        everyone = set(self.others)
        self.strange = [self._strange(prompt, everyone) > STRANGE_PROMPT for prompt in prompts]
        self._allowed: torch.Tensor | None = None
        self.whole = bool(prompts) and fault_of(self.model) is not None  # asked once the draft is needed
        return self.model if self.whole or any(self.strange) else part

    def now(self, rows, order):
        before = list(self.strange)
        for row, place in zip(rows, order, strict=True):
            new = row.tokens[max(row.prompt_length, len(row.tokens) - NEWEST) :]
            if len(new) >= ENOUGH:
                self.strange[place] = self._strange(new, self.known[place]) > STRANGE
        if self.strange != before:
            self._allowed = None
        return self.model if self.whole or any(self.strange[place] for place in order) else self.part

    def expand(self, logits, rows):
        if logits.shape[-1] < self.rows:
            return super().expand(logits, rows)
        if self._allowed is None:
            self._allowed = torch.zeros(len(self.known), self.rows, dtype=torch.bool)
            self._allowed[:, : self.first] = True
            for place, known in enumerate(self.known):
                self._allowed[place, sorted(known)] = True
            self._allowed[self.strange] = True
            self._allowed = self._allowed.to(logits.device)
        return logits.masked_fill(~self._allowed[rows], float("-inf"))

    def _strange(self, ids: list[int], known: set[int]) -> float:
        """The part of these ids that is neither frequent nor known."""
        return sum(i >= self.first and i not in known for i in ids) / max(len(ids), 1)
