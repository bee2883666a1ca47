"""A small pair, prompts for it, and rules that are wrong, each in one way."""

from functools import cache

import torch
from toys import contrary, noisy, tiny, toy_tokenizer

import hf_specgen
from hf_specgen import Proposal, Verdict, noise
from hf_specgen.noise import ACCEPT, DRAFT, NEXT
from hf_specgen.verifiers import base, rejection
from hf_specgen.verifiers.greedy import GreedyVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

PROMPTS = ["the cab sing", "a thing", "bring the ring"]
ACCEPTS = RejectionVerifier.accept
GREEDY = GreedyVerifier.accept


@cache
def pair(draft: str = "noisy", dtype: torch.dtype = torch.float32):
    """Target and draft: "close", "noisy", "contrary", "random"."""
    target = tiny()
    makes = {"close": noisy, "noisy": lambda t: noisy(t, 0.3), "contrary": contrary, "random": lambda t: tiny(seed=9)}
    return target.to(dtype), makes[draft](tiny()).to(dtype)


def verified(draft="noisy", dtype=torch.float32, **options):
    options = {"max_new_tokens": 16, "samples": 192, "limit": 2, "prompts": PROMPTS} | options
    return hf_specgen.verify(*pair(draft, dtype), toy_tokenizer(), **options)


def accepts_all(self, proposal, scores, noise_):
    """Every drafted token stays: the draft's law."""
    kept = proposal.counts
    return Verdict(kept, base.final_draw(proposal, scores.softmax(-1), kept, torch.ones_like(kept), noise_))


def replaced_residual(law):
    """`final_draw` with something else in place of the residual at a rejection."""

    def final_draw(proposal, p, kept, scale, noise_):
        weights = base.at(p, kept)
        if proposal.width:
            slot = kept.clamp(max=proposal.width - 1)
            wrong = law(weights, base.at(proposal.q, slot))
            weights = torch.where((kept < proposal.counts)[:, None], wrong, weights)
        return noise.invert(weights, noise_.uniform(NEXT, 0))

    return final_draw


def not_renormalised(proposal, p, kept, scale, noise_):
    """The residual, drawn from as if it summed to one: what is missing goes to the last token."""
    weights = base.at(p, kept)
    if proposal.width:
        residual = (weights - base.at(proposal.q, kept.clamp(max=proposal.width - 1))).clamp(min=0)
        weights = torch.where((kept < proposal.counts)[:, None], residual, weights)
    found = torch.searchsorted(weights.double().cumsum(-1), noise_.uniform(NEXT, 0)[:, None].contiguous(), right=True)
    return found.squeeze(1).clamp(max=weights.shape[1] - 1)


def bonus_of_the_slot_before(proposal, p, kept, scale, noise_):
    return base.final_draw(proposal, p, kept.clamp(max=max(0, proposal.width - 1)), scale, noise_)


def draws_greedily(self, scores, noise_, offset):
    """The draft's best token, counted with its softmax."""
    return scores.argmax(-1), scores.softmax(-1)


class Again:
    """Noise that decides acceptance with the uniforms that the draft was drawn with."""

    def __init__(self, of):
        self.of = of

    def uniform(self, purpose, offsets):
        return self.of.uniform(DRAFT if purpose == ACCEPT else purpose, offsets)


def noise_that_comes_back(self, proposal, scores, noise_):
    return ACCEPTS(self, proposal, scores, Again(noise_))


def one_hot(self, proposal, scores, noise_):
    """Not wrong: a drawn token counted as a chosen one is accepted less often, and keeps the target's law."""
    return ACCEPTS(self, Proposal(proposal.tokens, proposal.counts, None), scores, noise_)


WRONG_LAWS = {
    "everything is accepted": (RejectionVerifier, "accept", accepts_all),
    "p in place of the residual": (rejection, "final_draw", replaced_residual(lambda p, q: p)),
    "q in place of the residual": (rejection, "final_draw", replaced_residual(lambda p, q: q)),
    "the residual is not renormalised": (rejection, "final_draw", not_renormalised),
    "the bonus is of the slot before": (rejection, "final_draw", bonus_of_the_slot_before),
    "a greedy draft is counted with its softmax": (RejectionVerifier, "draw", draws_greedily),
    "noise comes back": (RejectionVerifier, "accept", noise_that_comes_back),
}


def one_too_many(self, proposal, scores, noise_):
    """The first wrong token of a draft stays."""
    right = GREEDY(self, proposal, scores, noise_)
    kept = (right.accepted + 1).minimum(proposal.counts)
    return Verdict(kept, scores.argmax(-1).gather(1, kept[:, None]).squeeze(1))


def next_of_the_slot_before(self, proposal, scores, noise_):
    right = GREEDY(self, proposal, scores, noise_)
    slot = (right.accepted - 1).clamp(min=0)
    return Verdict(right.accepted, scores.argmax(-1).gather(1, slot[:, None]).squeeze(1))


def lenient(self, proposal, scores, noise_):
    """The second best token is taken wherever it is nearly as good."""
    best = scores.topk(2, dim=-1)
    close = best.values[..., :1] - best.values[..., 1:] < LENIENCY
    lowered = scores.scatter(-1, best.indices[..., :1], best.values[..., 1:] - 1)
    return GREEDY(self, proposal, torch.where(close, lowered, scores), noise_)


LENIENCY = 0.03
"""Logits: once the noise of the pair in bfloat16, and so within twice of it by any reading."""
WRONG_TEXTS = {
    "one token too many is accepted": one_too_many,
    "the next token is of the slot before": next_of_the_slot_before,
}
