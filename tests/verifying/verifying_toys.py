"""A small pair, prompts for it, and rules that are wrong, each in one way."""

from functools import cache

import pytest
import torch
from toys import VOCAB, contrary, noisy, tiny, toy_tokenizer

import hf_specgen
from hf_specgen import Proposal, Verdict, noise
from hf_specgen.decoding import loop
from hf_specgen.drafters import hybrid
from hf_specgen.noise import ACCEPT, DRAFT, NEXT
from hf_specgen.verifiers import base, block, rejection
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.coupled import CoupledVerifier
from hf_specgen.verifiers.greedy import GreedyVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

PROMPTS = ["the cab sing", "a thing", "bring the ring"]
ACCEPTS = RejectionVerifier.accept
GREEDY = GreedyVerifier.accept
COUPLED = CoupledVerifier.accept
PROCESSED, JOINED = loop.on_target, hybrid.joined


@cache
def pair(draft: str = "noisy", dtype: torch.dtype = torch.float32):
    """Target and draft: "close", "noisy", "contrary", "random"; "raised" (noisy, with logits as large as real models');
    "three" (three tokens, each time with the same probabilities: texts repeat, and acceptance has weights)."""
    if draft == "three":
        return three_tokens(0.4, 0.3, 0.3).to(dtype), three_tokens(0.8, 0.18, 0.02).to(dtype)
    target = tiny()
    makes = {"close": noisy, "contrary": contrary, "random": lambda t: tiny(seed=9)}
    found = makes.get(draft, lambda t: noisy(t, 0.3))(tiny())
    if draft == "raised":
        for model in (target, found):
            model.lm_head.bias = torch.nn.Parameter(torch.full((VOCAB,), 20.0))
    return target.to(dtype), found.to(dtype)


def three_tokens(*law: float):
    model = tiny()
    bias = torch.full((VOCAB,), 1e-7)
    bias[10:13] = torch.tensor(law)
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    model.lm_head.bias = torch.nn.Parameter(bias.log())
    return model


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


def p_where_it_exceeds_q(p, q):
    return p * (p > q)


def bonus_of_the_draft(proposal, p, kept, scale, noise_):
    """Behind a whole draft, the draft's law at its last slot."""
    found = base.final_draw(proposal, p, kept, scale, noise_)
    if not proposal.width:
        return found
    last = noise.invert(base.at(proposal.q, (kept - 1).clamp(min=0)), noise_.uniform(NEXT, 0))
    return torch.where((kept == proposal.counts) & (kept > 0), last, found)


def scale_is_forgotten(proposal, p, kept, scale, noise_):
    return base.final_draw(proposal, p, kept, torch.ones_like(scale), noise_)


def weight_itself(proposal, p, w, i):
    """h_i = w_i where a draft goes on, in place of S_i / (S_i + 1 − w_i)."""
    return w


def replaced_by_fresh_noise(self, proposal, scores, noise_):
    """What is drawn in place of a rejected token does not know that it was rejected."""
    right = COUPLED(self, proposal, scores, noise_)
    slot = base.at(scores.log_softmax(-1), right.accepted)
    fresh = (slot + noise_.gumbel(1000, slot.shape[-1])).argmax(-1)
    return Verdict(right.accepted, torch.where(right.accepted < proposal.counts, fresh, right.next_token))


def noise_of_the_slot_before(self, proposal, scores, noise_):
    shared = torch.stack([noise_.gumbel(max(0, i - 1), scores.shape[-1]) for i in range(scores.shape[1])], dim=1)
    return GREEDY(self, proposal, scores.log_softmax(-1) + shared, noise_)


def fresh_noise(self, proposal, scores, noise_):
    """Not wrong: noise of the target's own accepts less often, and keeps its law."""
    own = torch.stack([noise_.gumbel(1000 + i, scores.shape[-1]) for i in range(scores.shape[1])], dim=1)
    return GREEDY(self, proposal, scores.log_softmax(-1) + own, noise_)


def nothing_is_left_out(rows, proposal, logits):
    """The target's processors are not asked where something was drafted."""
    return logits if proposal.width else PROCESSED(rows, proposal, logits)


def row_before(rows, proposal, logits):
    """The penalty of the neighbour's text."""
    if len(rows) == 1 or rows[0].processors.pointwise:
        return PROCESSED(rows, proposal, logits)
    turned = [*rows[1:], rows[0]]
    return PROCESSED(turned, proposal, logits)


def copied_for_sure(drafted, found):
    """A copied token beside drawn ones, without its q: never rejected."""
    whole = JOINED(drafted, found)
    if whole.q is not None:
        whole.q = torch.where((found.counts > 0)[:, None, None], 0.0, whole.q)
    return whole


def wrong(strategy: str, place, name: str, rule, **options):
    return pytest.param(strategy, place, name, rule, options, id=f"{strategy}: {rule.__name__}")


def named(name: str, rule):
    rule.__name__ = name
    return rule


WRONG_LAWS = [
    wrong("rejection", RejectionVerifier, "accept", accepts_all),
    wrong("rejection", rejection, "final_draw", named("p_for_the_residual", replaced_residual(lambda p, q: p))),
    wrong("rejection", rejection, "final_draw", named("q_for_the_residual", replaced_residual(lambda p, q: q))),
    wrong(
        "rejection", rejection, "final_draw", named("p_above_q", replaced_residual(p_where_it_exceeds_q)), samples=576
    ),
    wrong("rejection", rejection, "final_draw", not_renormalised),
    wrong("rejection", rejection, "final_draw", bonus_of_the_slot_before, samples=768),
    wrong("rejection", rejection, "final_draw", bonus_of_the_draft),
    wrong("rejection", RejectionVerifier, "draw", draws_greedily),
    wrong("rejection", RejectionVerifier, "accept", noise_that_comes_back, samples=768),
    wrong("block", block, "final_draw", named("p_for_the_residual", replaced_residual(lambda p, q: p))),
    wrong("block", block, "final_draw", scale_is_forgotten, draft="three", samples=2304),
    wrong("block", BlockVerifier, "_surplus", staticmethod(weight_itself), draft="three", samples=1152),
    wrong("coupled", CoupledVerifier, "accept", replaced_by_fresh_noise, samples=384),
    wrong("coupled", CoupledVerifier, "accept", noise_of_the_slot_before),
    wrong("rejection", loop, "on_target", nothing_is_left_out),
    wrong("rejection", loop, "on_target", row_before, draft="raised", limit=2),
    wrong("rejection", hybrid, "joined", copied_for_sure, draft="three"),
]


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
