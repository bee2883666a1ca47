"""Drafter-invariant decoding: draft and target draw with the same Gumbel noise (cf. Daliri et al. 2024, "Coupling
without communication and drafter-invariant speculative decoding").

Each takes the argmax of its log-probabilities plus the noise of (row seed, position, token); a drafted token stays
while both take the same. The text is a function of the seed alone: not of the draft, the draft length or the batch.
Without a draft this is plain sampling with that noise.
"""

import torch

from ..noise import Noise
from .base import ChoosingVerifier, Proposal, Verdict
from .greedy import GreedyVerifier


class CoupledVerifier(ChoosingVerifier):
    name = "coupled"

    def ordered(self, scores: torch.Tensor, noise: Noise, offset: int) -> torch.Tensor:
        return scores.log_softmax(-1) + noise.gumbel(offset, scores.shape[-1])

    def accept(self, proposal: Proposal, scores: torch.Tensor, noise: Noise) -> Verdict:
        shared = torch.stack([noise.gumbel(i, scores.shape[-1]) for i in range(scores.shape[1])], dim=1)
        return GreedyVerifier().accept(proposal, scores.log_softmax(-1) + shared, noise)
