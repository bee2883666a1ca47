"""The interface of an acceptance rule. p = target's distribution, q = draft's, both processed, float32."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from ..noise import DRAFT, NEXT, Noise, invert


@dataclass
class Alternatives:
    """Each may take the place of a drafted token. The target reads them in the same forward.

    Attributes:
        tokens: int64 `[rows, most]`.
        places: int64 `[rows, most]`: which drafted token (from 0) it may replace; -1: none.
    """

    tokens: torch.Tensor
    places: torch.Tensor


@dataclass
class Proposal:
    """What a drafter proposes for one round.

    Attributes:
        tokens: int64 `[rows, width]`; row b's first `counts[b]` are drafted, the rest is padding.
        counts: int64 `[rows]`.
        q: float32 `[rows, width, vocabulary]`, the very tensor each token was drawn from; None where tokens were
            chosen, not drawn (greedy and lookup drafts: q is one-hot).
        alternatives: to some of them, or None. Only under rules whose ids do not depend on what is drafted.
    """

    tokens: torch.Tensor
    counts: torch.Tensor
    q: torch.Tensor | None = None
    alternatives: Alternatives | None = None

    @property
    def width(self) -> int:
        return self.tokens.shape[1]

    @property
    def read(self) -> torch.Tensor:
        """Int64 `[rows, width + alternatives]`: what the target reads behind each row's last token."""
        others = self.alternatives
        return self.tokens if others is None else torch.cat([self.tokens, others.tokens], dim=1)

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> "Proposal":
        return cls(
            torch.zeros(rows, 0, dtype=torch.long, device=device), torch.zeros(rows, dtype=torch.long, device=device)
        )

    def check(self, rows: int, vocabulary: int, source: str) -> None:
        """Raise a ValueError that names `source` for a proposal no target could read. Reads the ids on the host."""
        if self.tokens.dim() != 2 or len(self.tokens) != rows or self.counts.shape != (rows,):
            raise ValueError(
                f"{source} proposed tokens of shape {tuple(self.tokens.shape)} and counts of shape "
                f"{tuple(self.counts.shape)} for {rows} row(s); expected [rows, width] and [rows]."
            )
        wrong = self.tokens[(self.tokens < 0) | (self.tokens >= vocabulary)].tolist()
        if wrong or (self.width and int(self.counts.max()) > self.width):
            what = (
                f"the id {wrong[0]}" if wrong else f"a count of {int(self.counts.max())} with a width of {self.width}"
            )
            raise ValueError(f"{source} proposed {what}; the target knows ids 0 to {vocabulary - 1}.")

    def drafted(self) -> torch.Tensor:
        """Bool `[rows, width]`: which slots hold a drafted token."""
        return torch.arange(self.width, device=self.counts.device) < self.counts[:, None]


@dataclass
class Verdict:
    """`accepted[b]` drafted tokens stay (int64 `[rows]`), `next_token[b]` follows them (int64 `[rows]`)."""

    accepted: torch.Tensor
    next_token: torch.Tensor


class Verifier(ABC):
    """An acceptance rule, and the way a draft has to draw for it. A new one is registered in `STRATEGIES`.

    Attributes:
        name: what `spec_strategy=` calls it.
        lossless: whether it keeps the target's law; statistics and outputs carry it.
        follows_draft: whether the ids (not their law) depend on what is drafted.
        samples: whether tokens are drawn from the scores' law, which has to exist: one of infinite scores does not.
    """

    name: str
    lossless: bool = True
    follows_draft: bool = True
    samples: bool = True

    @abstractmethod
    def draw(self, scores: torch.Tensor, noise: Noise, offset: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Draw a draft token per row.

        Args:
            scores: float32 `[rows, vocabulary]`, the draft's processed scores.
            noise: of this round.
            offset: position of the drawn token, counted from the row's first undecided one.

        Returns:
            Tokens `[rows]` and q `[rows, vocabulary]`, or None for q where the rule needs none.
        """

    @abstractmethod
    def accept(self, proposal: Proposal, scores: torch.Tensor, noise: Noise) -> Verdict:
        """Judge a proposal.

        Args:
            scores: float32 `[rows, width + 1, vocabulary]`, the target's processed scores; slot i belongs to the token
                after i drafted ones. Slots beyond a row's count are meaningless.
        """


class ChoosingVerifier(Verifier):
    """A rule under which draft and target each take the best token in one and the same order of their scores: what is
    drafted changes nothing but the time."""

    follows_draft = False

    @abstractmethod
    def ordered(self, scores: torch.Tensor, noise: Noise, offset: int) -> torch.Tensor:
        """What the token at `offset` is the argmax of, `[rows, vocabulary]`."""

    def draw(self, scores: torch.Tensor, noise: Noise, offset: int):
        return self.ordered(scores, noise, offset).argmax(-1), None

    def others(self, scores: torch.Tensor, noise: Noise, offset: int, first: torch.Tensor, most: int) -> torch.Tensor:
        """The best tokens besides `first` (int64 `[rows]`), best first, `[rows, most]`; fewer of a small vocabulary."""
        left = self.ordered(scores, noise, offset).scatter(1, first[:, None], float("-inf"))
        return left.topk(min(most, left.shape[1] - 1), dim=-1).indices


class SamplingVerifier(Verifier):
    """A rule that needs the draft's tokens drawn from q, independently of what the target does."""

    def draw(self, scores: torch.Tensor, noise: Noise, offset: int):
        q = scores.softmax(-1)
        return invert(q, noise.uniform(DRAFT, offset)), q


def leading(accepted: torch.Tensor) -> torch.Tensor:
    """Length of the leading run of True in each row of a bool `[rows, width]`."""
    return accepted.long().cumprod(-1).sum(-1)


def at(x: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
    """`x[b, slot[b]]` for `x` `[rows, slots, vocabulary]`."""
    return x[torch.arange(x.shape[0], device=x.device), slot]


def final_draw(
    proposal: Proposal, p: torch.Tensor, kept: torch.Tensor, scale: torch.Tensor, noise: Noise
) -> torch.Tensor:
    """The token after `kept` accepted ones: from norm(max(scale·p − q, 0)) at a rejection, from p when all are kept.

    The residual can vanish (p = q up to rounding, tiny temperatures): then p itself is the right law.
    """
    last = at(p, kept)
    if proposal.width:
        slot = kept.clamp(max=proposal.width - 1)
        residual = last * scale[:, None].to(last.dtype)
        if proposal.q is None:
            drafted = proposal.tokens.gather(1, slot[:, None])
            residual = residual.scatter(1, drafted, 0.0)
        else:
            residual = (residual - at(proposal.q, slot)).clamp_(min=0)
        rejected = (kept < proposal.counts) & (residual.sum(-1) > 0)
        last = torch.where(rejected[:, None], residual, last)
    return invert(last, noise.uniform(NEXT, 0))


def drafted_probabilities(proposal: Proposal, p: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """p(X_i) and q(X_i), float64 `[rows, width]`."""
    index = proposal.tokens[:, :, None]
    px = p[:, : proposal.width].gather(2, index).squeeze(2).double()
    qx = torch.ones_like(px) if proposal.q is None else proposal.q.gather(2, index).squeeze(2).double()
    return px, qx
