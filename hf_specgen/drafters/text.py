"""A draft with another vocabulary writes text, which is split anew for the target: string-level drafting.

Cf. string-level exact match (arXiv 2502.05202, Algorithm 2) and universal assisted decoding. The candidates follow from
the text alone (q is one-hot), so any acceptance rule stays exact. A draft that splits words otherwise than the target
can so propose tokens that are none of its own.
"""

import torch

from ..verifiers import Proposal
from .model import ModelDrafter
from .reading import OtherVocabularyAsText


class TextDrafter(ModelDrafter):
    """Greedy. The target's logits processors do not run on the draft: they know nothing of its ids."""

    stops_inside = False  # several of its tokens may make one of the target's

    reading: OtherVocabularyAsText

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.ends, self.barred = set(self.eos.tolist()), set(self.never.tolist())

    def propose(self, rows, widths, verifier, noise):
        home = rows[0].ids.device
        if not max(widths):
            return Proposal.empty(len(rows), home)
        self.reader.cache.reserve(max(widths) + 1)
        self._write(rows, widths)
        found = [self._found(row)[:width] for row, width in zip(rows, widths, strict=True)]
        if not any(found):
            for b, row in enumerate(rows):  # nothing will be settled
                self.reading.written.pop(row.index, None)
                self.reader.roll_back(b, len(self.held[b]))
            self._refuse_flawed(rows)
            return Proposal.empty(len(rows), home)
        tokens = torch.zeros(len(rows), max(map(len, found)), dtype=torch.long, device=home)
        for b, ids in enumerate(found):
            tokens[b, : len(ids)] = torch.tensor(ids, dtype=torch.long, device=home)
        return Proposal(tokens, torch.tensor(list(map(len, found)), device=home))

    def _found(self, row) -> list[int]:
        """What was written behind a row's text, in the target's ids, up to one that may not be drafted."""
        ids = self.reading.proposal(row.index)
        stop = (i for i, id_ in enumerate(ids) if id_ >= self.vocabulary or id_ in self.barred)
        return ids[: next(stop, len(ids))]

    def _write(self, rows, widths) -> None:
        """Up to `widths[b]` of the draft's tokens behind each row's text, up to and with an end."""
        self.peaks = []
        logits = self._read_unread(rows, widths)
        written = [self.reading.written.setdefault(row.index, []) for row in rows]
        open_ = [width > 0 for width in widths]
        for step in range(max(widths)):
            best = logits.float().max(-1)
            self.peaks.append(best.values)
            likely = [True] * len(rows)
            if self.threshold is not None:
                likely = ((best.values - logits.float().logsumexp(-1)).exp() >= self.threshold).tolist()
            for b, id_ in enumerate(best.indices.tolist()):
                open_[b] = open_[b] and likely[b]
                if open_[b]:
                    written[b].append(id_)
                    ended = id_ in self.reading.map.draft.special or self.reading.map.pairs.get(id_) in self.ends
                    # More would not be proposed, and what is read needs a position in the draft's table.
                    open_[b] = not ended and step + 1 < widths[b] and len(self._found(rows[b])) <= widths[b]
            if step + 1 == max(widths) or (self.alone and not any(open_)):
                return
            logits = self.reader.read(best.indices[:, None], [int(o) for o in open_], keep=1)[:, 0]

    def _fed(self, row):
        return list(self.reading.written.get(row.index, ()))
