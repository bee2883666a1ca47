"""The interface of a source of candidates."""

from abc import abstractmethod

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..noise import Noise
from ..verifiers import Proposal, Verifier


class Drafter(CandidateGenerator):
    """Proposes tokens for several rows at once. Also a transformers `CandidateGenerator`, for one row.

    Row order is the decoding loop's; `drop` follows it when a row leaves.
    """

    forwards: int = 0
    fallback_reason: str | None = None

    def begin(self, rows: list) -> None:  # noqa: B027 - reading the prompts is optional
        """Read the prompts. Called once, after the target's first token."""

    def limit(self, row) -> int:
        """The most tokens this drafter can propose for a row (its context may be shorter than the target's)."""
        return row.limit

    @abstractmethod
    def propose(self, rows: list, widths: list[int], verifier: Verifier, noise: Noise) -> Proposal:
        """Draft up to `widths[b]` tokens for each row (fewer where the draft stops early), and write them into the
        rows' buffers behind their text.

        Everything drawn must be proposed: to drop a token because of its own value bends the law.
        """

    def settle(self, rows: list, scores: torch.Tensor, accepted: list[int]) -> None:  # noqa: B027 - optional
        """The rows' texts have been extended; `scores` and `accepted` are what the target made of the proposal."""

    def drop(self, row: int) -> None:  # noqa: B027 - optional
        """A row has left; the last one has taken its place."""
