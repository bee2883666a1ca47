"""`do_sample=False`: a drafted token stays while it is the target's argmax. Any draft gives the target's own text."""

import torch

from .base import Proposal, Verdict, Verifier, leading


class GreedyVerifier(Verifier):
    name = "greedy"
    follows_draft = False
    samples = False

    def draw(self, scores, noise, offset):
        return scores.argmax(-1), None

    def accept(self, proposal: Proposal, scores: torch.Tensor, noise) -> Verdict:
        best = scores.argmax(-1)
        kept = leading((proposal.tokens == best[:, :-1]) & proposal.drafted())
        return Verdict(kept, best.gather(1, kept[:, None]).squeeze(1))
