"""Alternatives, the draft's next choices, read beside what it drafted: where a drafted token is rejected and the
target's own is among them, what follows that one is known too, and the round gives a token more.

A tree of one chain with leaves (cf. Miao et al. 2024, SpecInfer, section 4), and exact under any rule: a leaf is not
judged. The rule gives the token after the accepted ones as ever; if it is the leaf's, the next one is taken from what
the target says behind it, as the next round would have.
"""

import torch

from ..cache.reader import Reader
from ..noise import Noise
from ..verifiers import Proposal, Verdict, Verifier
from ..verifiers.base import ChoosingVerifier, at
from .rows import Row

NONE = -1


def possible(target: Reader, rows: list[Row], verifier: Verifier) -> bool:
    """Whether a call can use them: ids must not depend on them, and processors not on the text before."""
    chooses = isinstance(verifier, ChoosingVerifier) and all(row.processors.pointwise for row in rows)
    return chooses and target.reads_alternatives


def judge(
    verifier: Verifier, proposal: Proposal, scores: torch.Tensor, logits: torch.Tensor, noise: Noise
) -> tuple[Verdict, torch.Tensor]:
    """The rule's verdict, in which an alternative may be the last of the accepted tokens.

    Args:
        scores, logits: float32 `[rows, width + 1 + alternatives, vocabulary]`, processed and raw. Written to: where an
            alternative counts, what the target says behind it goes into the slot behind the token whose place it takes.

    Returns:
        The verdict, and which alternative of each row counts, int64 `[rows]`; `NONE`.
    """
    chain = proposal.width + 1
    verdict = verifier.accept(proposal, scores[:, :chain], noise)
    others = proposal.alternatives
    if others is None:
        return verdict, torch.full_like(verdict.accepted, NONE)
    rejected = (verdict.accepted < proposal.counts)[:, None] & (others.places == verdict.accepted[:, None])
    right = rejected & (others.tokens == verdict.next_token[:, None])
    found, which = right.any(1), right.long().argmax(1)
    behind, slot = at(scores, chain + which), (verdict.accepted + 1).clamp(max=chain - 1)
    nothing = Proposal.empty(len(found), scores.device)
    following = verifier.accept(nothing, behind[:, None], noise.ahead(verdict.accepted + 1)).next_token
    for x in (scores, logits):
        put = torch.where(found[:, None], at(x, chain + which), at(x, slot))
        x[torch.arange(len(slot), device=x.device), slot] = put
    accepted = verdict.accepted + found.long()
    return Verdict(accepted, torch.where(found, following, verdict.next_token)), torch.where(found, which, NONE)
