"""Any transformers `CandidateGenerator` as a drafter, one row at a time."""

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..verifiers import Proposal
from .base import Drafter


class GeneratorDrafter(Drafter):
    """Candidates count as drawn from the softmax of their logits if the call samples and their generator says that it
    does: in its own `do_sample`, or its `generation_config`'s, as transformers' generators do. All others count as
    chosen (q one-hot), which keeps the target's law however they were found, and accepts fewer.

    It is first asked after the target's first token: an `AssistedCandidateGenerator` must not be given an attention
    mask of the prompt's length.
    """

    def __init__(self, generator: CandidateGenerator, do_sample: bool):
        self.generator = generator
        self.do_sample = do_sample

    def propose(self, rows, widths, verifier, noise):
        (row,), (width,) = rows, widths
        if not width:
            return Proposal.empty(1, row.ids.device)
        self.forwards += 1
        candidates, logits = self.generator.get_candidates(row.ids[None, : row.length].clone())
        tokens = candidates[:, row.length :][:, :width].to(row.ids.device)
        count = tokens.shape[1]
        q = None
        if self.do_sample and logits is not None and count and _samples(self.generator):
            q = logits[:, :count].to(row.ids.device, torch.float32).softmax(-1)
        return Proposal(tokens, torch.tensor([count], device=tokens.device), q)

    def settle(self, rows, scores, accepted):
        self.generator.update_candidate_strategy(rows[0].ids[None, : rows[0].length].clone(), scores, accepted[0])


def _samples(generator: CandidateGenerator) -> bool:
    said = getattr(generator, "do_sample", None)
    if said is None:
        said = getattr(getattr(generator, "generation_config", None), "do_sample", None)
    return bool(said)
