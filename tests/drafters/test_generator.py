"""Candidates of somebody else's generator: the law that they were drawn from, if they were."""

import types

import pytest
import torch
from laws import distance, law_of
from transformers import LogitsProcessorList
from transformers.generation.candidate_generator import CandidateGenerator

from hf_specgen.drafters import GeneratorDrafter
from hf_specgen.drafters.base import LoneRow
from hf_specgen.processors import RowProcessors
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

P = torch.tensor([0.5, 0.2, 0.2, 0.1])
Q = torch.tensor([0.1, 0.6, 0.1, 0.2])
RULES = [RejectionVerifier(), BlockVerifier()]
NOT_DRAWN = {
    "says so": {"do_sample": False},
    "its config says so": {"generation_config": types.SimpleNamespace(do_sample=False)},
    "itself before its config": {"do_sample": False, "generation_config": types.SimpleNamespace(do_sample=True)},
    "its config does not know": {"generation_config": types.SimpleNamespace(do_sample=None)},
    "says nothing": {},
}
DRAWN = {
    "says so": {"do_sample": True},
    "its config says so": {"generation_config": types.SimpleNamespace(do_sample=True)},
}


class Fixed(CandidateGenerator):
    """Proposes one token, with logits."""

    def __init__(self, token: int, said: dict):
        self.token = token
        vars(self).update(said)

    def get_candidates(self, input_ids, **kwargs):
        return torch.cat([input_ids, torch.tensor([[self.token]])], 1), Q.log()[None, None]


def law(verifier, said: dict, tokens: dict[int, float], do_sample: bool = True) -> torch.Tensor:
    """The exact law of the first token, if these are proposed with these probabilities."""
    scores, total = P.log().expand(1, 2, 4), torch.zeros(4, dtype=torch.float64)
    for token, chance in tokens.items():
        text = [1, 2]
        row = LoneRow(torch.tensor([*text, 0, 0]), text, 4, RowProcessors(LogitsProcessorList()))
        proposal = GeneratorDrafter(Fixed(token, said), do_sample).propose([row], [1], verifier, None)
        found = law_of(verifier, proposal, scores)
        total[token] += chance * found.kept[0, 1]
        total += chance * found.kept[0, 0] * found.next[0, 0]
    return total


@pytest.mark.parametrize("said", NOT_DRAWN)
@pytest.mark.parametrize("verifier", RULES, ids=lambda v: v.name)
def test_candidates_that_nobody_says_were_drawn_count_as_chosen(verifier, said):
    for tokens in ({1: 1.0}, {0: 1.0}, dict(enumerate(Q.tolist()))):  # the best, another, or drawn all the same
        assert distance(law(verifier, NOT_DRAWN[said], tokens), P) < 1e-6


@pytest.mark.parametrize("said", DRAWN)
@pytest.mark.parametrize("verifier", RULES, ids=lambda v: v.name)
def test_drawn_candidates_are_judged_by_their_logits(verifier, said):
    drawn = dict(enumerate(Q.tolist()))
    assert distance(law(verifier, DRAWN[said], drawn), P) < 1e-6
    assert distance(law(verifier, DRAWN[said], {1: 1.0}), P) > 0.1, "a generator that does not do as it says"


def test_a_greedy_call_asks_nobody():
    row = LoneRow(torch.tensor([1, 2, 0, 0]), [1, 2], 4, RowProcessors(LogitsProcessorList()))
    assert GeneratorDrafter(Fixed(1, DRAWN["says so"]), False).propose([row], [1], None, None).q is None
