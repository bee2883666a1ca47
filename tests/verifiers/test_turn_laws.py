"""The law of a call that goes on from a cache, exactly: every draft is a row of one batch, every uniform integrated."""

import functools
import itertools
from unittest import mock

import pytest
import torch
from laws import distance, law_of, product_law
from toys import CACHE_NAME, batch_of, read_into_cache, spec, tiny
from transformers import MistralConfig

from hf_specgen import Drafter, Proposal
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

V, K, FIRST = 5, 2, 3
DRAFTS = list(itertools.product(range(V), repeat=K))
TEXT = [1, 4, 2, 3, 3, 1, 2, 4, 1, 1, 3, 2, 4, 2]


def q(prefix) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1 + sum(x * (V + 1) ** i for i, x in enumerate(prefix, start=1)))
    return torch.randn(V, generator=generator).softmax(-1)


class Every(Drafter):
    """Row i proposes the i-th of all drafts, as if drawn from q."""

    def propose(self, rows, widths, verifier, noise):
        if max(widths) < K:
            return None
        tokens = torch.tensor([DRAFTS[row.index % len(DRAFTS)] for row in rows])
        laws = torch.stack([torch.stack([q(tuple(draft[:i])) for i in range(K)]) for draft in tokens.tolist()])
        return Proposal(tokens, torch.tensor(widths).clamp(max=K), laws)


def plain_law(target, before: list[int]):
    """The target's own law after a text, read in one go, without a cache."""

    @functools.cache
    def p(prefix):
        with torch.no_grad():
            return target(torch.tensor([[*before, FIRST, *prefix]])).logits[0, -1].double().softmax(-1)

    return p


@pytest.mark.parity
@pytest.mark.parametrize("only_new", [False, True], ids=["all ids", "only new ids"])
@pytest.mark.parametrize("rule", [RejectionVerifier, BlockVerifier])
def test_joint_law_of_three_tokens_of_a_second_turn(rule, only_new):
    """A longer last row pads the others. The first token is forced, so that all rows go on from the same text."""
    target = tiny(MistralConfig, scale=4.0, vocab_size=V, sliding_window=6, eos_token_id=None)
    turn = batch_of([TEXT] * len(DRAFTS) + [TEXT[:3] + TEXT])
    given = read_into_cache(target, {key: x[:, :-5] for key, x in turn.items()})
    if only_new:
        turn["input_ids"] = turn["input_ids"][:, given[CACHE_NAME].get_seq_length() :]
    begin = turn["input_ids"][0][turn["attention_mask"][0, -turn["input_ids"].shape[1] :].bool()].numel()
    seen, accept = [], rule.accept

    def watching(self, proposal, scores, noise):
        seen.append((proposal, scores.clone()))
        return accept(self, proposal, scores, noise)

    with mock.patch.object(rule, "accept", watching):
        spec(
            target,
            Every(),
            rule.name,
            **turn,
            **given,
            do_sample=True,
            top_k=0,
            max_new_tokens=K + 2,
            num_assistant_tokens=K,
            prefix_allowed_tokens_fn=lambda _, sent: [FIRST] if len(sent) == begin else list(range(V)),
        )
    _, (proposal, scores) = seen[:2]  # the prefill's token, then the round
    law = law_of(rule(), proposal, scores)
    p = plain_law(target, TEXT)
    joint = torch.zeros([V] * (K + 1)).double()
    for draft, kept, follows in zip(DRAFTS, law.kept, law.next, strict=False):
        chance = torch.stack([q(draft[:i])[draft[i]] for i in range(K)]).prod().item()
        for n, x in itertools.product(range(K + 1), range(V)):
            said = (*draft[:n], x)
            joint[said] += chance * kept[n] * follows[n, x] * after(p, said)
    assert distance(joint, product_law(p, K + 1)) < 1e-5
    assert distance(joint, product_law(plain_law(target, TEXT[-5:]), K + 1)) > 0.01, "the first turn has to matter"


def after(p, said) -> torch.Tensor:
    """The law of what follows a round that gave fewer than K + 1 tokens: plain's, by the law of the next round."""
    missing = K + 1 - len(said)
    return product_law(lambda prefix: p(said + prefix), missing) if missing else torch.ones(())
