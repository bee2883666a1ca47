"""The ways in which continuations are drawn, and the law that each follows: transformers' own processors, applied to
plain logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import RepetitionPenaltyLogitsProcessor, TopKLogitsWarper, TopPLogitsWarper


@dataclass(frozen=True)
class Way:
    """
    Attributes:
        source: `spec_source` of the call.
        top_k, top_p, repetition_penalty: of the call; 0, 1 and 1 change nothing.
    """

    source: str
    top_k: int = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0

    @property
    def name(self) -> str:
        parts = [self.source]
        parts += [f"top-k {self.top_k}"] if self.top_k else []
        parts += [f"top-p {self.top_p:g}"] if self.top_p < 1 else []
        parts += [f"repetition penalty {self.repetition_penalty:g}"] if self.repetition_penalty != 1 else []
        return ", ".join(parts)

    def scores(self, logits: torch.Tensor, ids: torch.Tensor, start: int, temperature: float) -> torch.Tensor:
        """Float32, shape of `logits` `[texts, slots, vocabulary]`, before tokens are left out.

        Args:
            ids: int64 `[texts, start + slots or more]`; slot i has seen the first `start + i`.
        """
        scores = logits.float()
        if self.repetition_penalty != 1:
            penalty = RepetitionPenaltyLogitsProcessor(self.repetition_penalty)
            scores = torch.stack([penalty(ids[:, : start + i], scores[:, i]) for i in range(scores.shape[1])], dim=1)
        return scores / temperature

    def cut(self, scores: torch.Tensor, shift: float = 0.0) -> torch.Tensor:
        """−inf for what top-k and top-p leave out. `shift`: added to top-p."""
        flat = scores.flatten(0, -2)
        if self.top_k:
            flat = TopKLogitsWarper(self.top_k)(None, flat)
        if self.top_p < 1:
            flat = TopPLogitsWarper(min(1.0, max(0.0, self.top_p + shift)))(None, flat)
        return flat.view_as(scores)

    def doubtful(self, scores: torch.Tensor, typical: float, largest: float) -> torch.Tensor:
        """Probability of the tokens that rounding may bring to the other side of the cut, float64 `[texts, slots]`.

        Args:
            typical, largest: how far rounding moves a score, as a rule (which moves the sum that top-p goes by), and at
                most (which changes the order of two tokens).
        """
        if not self.top_k and self.top_p == 1:
            return scores.new_zeros(scores.shape[:-1], dtype=torch.float64)
        shift = typical * 2 * self.top_p * (1 - self.top_p)  # to first order, if the kept all rise and the others fall
        tight, loose = (self.cut(scores, by).isfinite() for by in (-shift, shift))
        best_out = scores.masked_fill(tight, -torch.inf).amax(-1, keepdim=True)
        worst_in = scores.masked_fill(~loose, torch.inf).amin(-1, keepdim=True)
        sure = (tight & (scores > best_out + largest)) | (~loose & (scores < worst_in - largest))
        p = scores.softmax(-1)
        return (p * ~sure).sum(-1, dtype=torch.float64) / (p * loose).sum(-1, dtype=torch.float64)


WAYS = (Way("draft"), Way("hybrid", top_p=0.9, repetition_penalty=1.2), Way("draft", top_k=8))
"""Top-k runs on all slots at once, the penalty row by row: each looks at a text of its own. A few tokens only, so that
much is left out: what is drawn from the rest cannot be missed."""
ORDER = (0, 1, 0, 2)
"""Of the batches: half of them without anything that hides how tokens are accepted and drawn."""
