"""Modified rejection sampling (Leviathan et al. 2023, Algorithm 1; Chen et al. 2023, Algorithm 2).

X_i stays with probability min(1, p(X_i)/q(X_i)); at the first rejection the token is drawn from norm(max(p − q, 0));
if all stay, one more comes from p.
"""

import torch

from ..noise import ACCEPT, Noise
from .base import Proposal, SamplingVerifier, Verdict, drafted_probabilities, final_draw, leading


class RejectionVerifier(SamplingVerifier):
    name = "rejection"

    def accept(self, proposal: Proposal, scores: torch.Tensor, noise: Noise) -> Verdict:
        p = scores.softmax(-1)
        kept = torch.zeros_like(proposal.counts)
        if proposal.width:
            px, qx = drafted_probabilities(proposal, p)
            u = noise.uniform(ACCEPT, slice(0, proposal.width))
            kept = leading((u * qx < px) & proposal.drafted())
        return Verdict(kept, final_draw(proposal, p, kept, torch.ones_like(kept), noise))
