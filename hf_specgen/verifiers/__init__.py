"""Acceptance rules: which drafted tokens stay, and what comes after them."""

from .base import Proposal, Verdict, Verifier
from .block import BlockVerifier
from .coupled import CoupledVerifier
from .greedy import GreedyVerifier
from .rejection import RejectionVerifier

STRATEGIES: dict[str, type[Verifier]] = {v.name: v for v in (RejectionVerifier, BlockVerifier, CoupledVerifier)}
"""What `spec_strategy=` accepts."""


def verifier_for(strategy: str, do_sample: bool) -> Verifier:
    """With `do_sample=False` every lossless rule is the same one: the target's argmax."""
    return STRATEGIES[strategy]() if do_sample else GreedyVerifier()


__all__ = ["STRATEGIES", "Proposal", "Verdict", "Verifier", "verifier_for"]
