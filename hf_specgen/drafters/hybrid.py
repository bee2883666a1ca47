"""Two sources for each row and round: a match in the row's own text, which costs nothing, or the model."""

import torch

from ..verifiers import Proposal
from .base import Drafter, Offer
from .lookup import LookupDrafter


class HybridDrafter(Drafter):
    """Offers what both offer; which is taken is the length rule's decision.

    Args:
        drafter: the model's. It reads nothing before it is first chosen.
        lookup: the text's.
    """

    trusted = True

    def __init__(self, drafter: Drafter, lookup: LookupDrafter):
        self.drafter, self.lookup = drafter, lookup
        self.model, self.network = drafter.model, drafter.network
        self.chosen: list[Offer | None] = []
        self.asked = False  # whether the model has drafted in this round

    @property
    def forwards(self) -> int:
        return self.drafter.forwards

    @property
    def stops_inside(self) -> bool:
        return self.drafter.stops_inside

    def ask(self, rule, alternatives) -> None:
        self.drafter.ask(rule, alternatives)

    @property
    def keep(self):
        return self.drafter.keep

    def keep_in(self, session) -> None:
        self.drafter.keep_in(session)

    def begin(self, rows, vocabulary=None) -> None:
        self.drafter.begin(rows, vocabulary)

    def room(self, row) -> int:
        return self.drafter.room(row)

    def offers(self, rows):
        both = zip(self.lookup.offers(rows), self.drafter.offers(rows), strict=True)
        return [found + drafted for found, drafted in both]

    def choose(self, offers) -> None:
        self.chosen = offers

    def propose(self, rows, widths, verifier, noise):
        drafts = [
            width > 0 and offer is not None and offer.costs for width, offer in zip(widths, self.chosen, strict=True)
        ]
        self.asked = any(drafts)
        found = self.lookup.propose(rows, [0 if d else w for d, w in zip(drafts, widths, strict=True)], verifier, noise)
        if not self.asked:
            return found
        drafted = self.drafter.propose(
            rows, [w if d else 0 for d, w in zip(drafts, widths, strict=True)], verifier, noise
        )
        return joined(drafted or Proposal.empty(len(rows), rows[0].ids.device), found)

    def settle(self, rows, scores, accepted) -> None:
        if self.asked:
            self.drafter.settle(rows, scores, accepted)

    def drop(self, row: int) -> None:
        self.drafter.drop(row)


def joined(drafted: Proposal, found: Proposal) -> Proposal:
    """One proposal of two, in which no row has tokens of both. What was found is certain: its q is one-hot."""
    if not found.width:
        return drafted
    width = max(drafted.width, found.width)
    tokens = torch.zeros(len(found.counts), width, dtype=torch.long, device=found.tokens.device)
    for part in (drafted, found):
        tokens[:, : part.width] += part.tokens * part.drafted()
    q = None
    if drafted.q is not None:
        q = torch.nn.functional.pad(drafted.q, (0, 0, 0, width - drafted.width))
        sure = torch.zeros_like(q).scatter_(2, tokens[:, :, None], 1.0)
        q = torch.where((found.counts > 0)[:, None, None], sure, q)
    return Proposal(tokens, drafted.counts + found.counts, q, drafted.alternatives)
