"""`do_sample=False`: a drafted token stays while it is the target's argmax. Any draft gives the target's own text."""

import torch

from .base import ChoosingVerifier, Proposal, Verdict, leading


class GreedyVerifier(ChoosingVerifier):
    name = "greedy"
    samples = False

    def ordered(self, scores, noise, offset):
        return scores

    def accept(self, proposal: Proposal, scores: torch.Tensor, noise) -> Verdict:
        best = scores.argmax(-1)
        kept = leading((proposal.tokens == best[:, :-1]) & proposal.drafted())
        return Verdict(kept, best.gather(1, kept[:, None]).squeeze(1))
