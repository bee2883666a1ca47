"""Block verification (Sun et al. 2024, arXiv 2403.10444, Algorithm 2): judges the block as a whole, never accepts less.

w_0 = 1, w_i = min(w_{i-1}·p(X_i)/q(X_i), 1). For i < K: S_i = Σ_x max(w_i·p(x) − q(x), 0) at position i+1 and
h_i = S_i / (S_i + 1 − w_i), with 0/0 = 1; h_K = w_K. τ is the largest i with u_i ≤ h_i, u independent.
After τ = K the next token comes from p, else from norm(max(w_τ·p − q, 0)).

Where the scores have no law (NaN, infinite, all left out), p counts as q: such a place is come to as often as with any
law, and no more often.
"""

import torch

from ..noise import ACCEPT, Noise
from .base import Proposal, SamplingVerifier, Verdict, drafted_probabilities, final_draw


class BlockVerifier(SamplingVerifier):
    name = "block"

    def accept(self, proposal: Proposal, scores: torch.Tensor, noise: Noise) -> Verdict:
        p = scores.softmax(-1)
        kept = torch.zeros_like(proposal.counts)
        w = torch.ones(len(kept), dtype=torch.float64, device=p.device)
        scale = w.clone()
        if proposal.width:
            px, qx = drafted_probabilities(proposal, p)
            for i in range(1, proposal.width + 1):
                ratio = torch.where(
                    qx[:, i - 1] > 0, px[:, i - 1] / qx[:, i - 1], (px[:, i - 1] > 0).double() * torch.inf
                )
                ratio = ratio.masked_fill(px[:, i - 1].isnan(), 1.0)
                w = (w * ratio).nan_to_num(0.0).clamp(max=1)
                h = w
                if i < proposal.width:
                    s = self._surplus(proposal, p, w, i).nan_to_num(0.0)
                    h = torch.where(i < proposal.counts, (s / (s + 1 - w)).nan_to_num(1.0), w)
                taken = (noise.uniform(ACCEPT, i - 1) <= h) & (i <= proposal.counts)
                kept = torch.where(taken, i, kept)
                scale = torch.where(taken, w, scale)
        return Verdict(kept, final_draw(proposal, p, kept, scale, noise))

    @staticmethod
    def _surplus(proposal: Proposal, p: torch.Tensor, w: torch.Tensor, i: int) -> torch.Tensor:
        """S_i, float64 `[rows]`: the mass of w_i·p above q at the position after i drafted tokens."""
        scaled = w[:, None] * p[:, i].double()
        if proposal.q is None:
            return scaled.scatter(1, proposal.tokens[:, i : i + 1], 0.0).sum(-1)
        return (scaled - proposal.q[:, i].double()).clamp(min=0).sum(-1)
