"""The rows being decoded: their text, and what a verdict changes."""

from dataclasses import dataclass, field

import torch

from ..lengths.base import Round
from ..processors import RowProcessors, catch_up
from ..stats import RowStats
from .stops import Stops


@dataclass
class Row:
    """One row, without its padding.

    Attributes:
        index: its place in the batch.
        ids: int64 `[capacity]`; the first `length` are text, drafted tokens may lie behind (see `reserve`).
        tokens: the same text on the host.
        limit: length at which `max_length` ends it.
        unseen: positions in front of its text of which no ids are known (embeddings, a cached turn): its i-th token
            is at position `unseen + i`.
        seed: of its noise; drawn once nothing can refuse the call any more.
        last_drafted: the tokens proposed in the last round.
    """

    index: int
    ids: torch.Tensor
    tokens: list[int]
    prompt_length: int
    limit: int
    stops: Stops
    processors: RowProcessors
    unseen: int = 0
    seed: int = 0
    stats: RowStats = field(default_factory=RowStats)
    from_draft: list[bool] = field(default_factory=list)
    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None
    steps: list[dict] = field(default_factory=list)
    last_drafted: list[int] = field(default_factory=list)
    done: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def new_tokens(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    def reserve(self, tokens: int) -> None:
        """Make room in `ids` for so many tokens behind the text. Grows geometrically: `limit` may be astronomical."""
        needed = self.length + tokens
        if needed > len(self.ids):
            self.ids = torch.nn.functional.pad(self.ids, (0, max(needed - len(self.ids), len(self.ids) // 2, 256)))

    def commit(
        self,
        outcome: Round,
        new: list[int],
        scores: torch.Tensor,
        logits: torch.Tensor,
        collected: list[dict],
    ) -> list[int]:
        """Append what a round gave, up to a stop. Returns the tokens that stay.

        Args:
            outcome: of this row in this round.
            new: the accepted tokens and the one after them.
            scores, logits: `[slots, vocabulary]`, processed and raw; slot i led to new[i].
            collected: per slot, other outputs to keep (see `Reader.collect`); none in the first round.
        """
        start = self.length
        self.reserve(len(new))
        self.ids[start : start + len(new)] = torch.tensor(new, device=self.ids.device)
        if self.scores is not None:
            self.scores.extend(scores[: len(new)].clone())
        if self.logits is not None:
            self.logits.extend(logits[: len(new)].clone())
        kept, self.done = self.stops.end(self.ids, start, new, self.scores)
        for kept_per_token in (self.scores, self.logits):
            if kept_per_token is not None:
                del kept_per_token[len(kept_per_token) - len(new) + kept :]
        for slot in collected[:kept]:
            self.steps.append({name: tuple(x.clone() for x in layers) for name, layers in slot.items()})
        catch_up(self, kept, logits)
        self.tokens.extend(new[:kept])
        self.from_draft.extend(i < outcome.accepted for i in range(kept))
        self.stats.count(outcome)
        self.stats.emitted += kept
        self.stats.trimmed += len(new) - kept
        return new[:kept]
