"""Drafts without a model: what followed the row's last tokens where they stood before in its own text.

Prompt lookup decoding (Saxena 2023), with an index in place of a scan: a round costs what it adds, not the text.
"""

from bisect import bisect_right
from collections.abc import Sequence

import torch

from ..lengths.offer import Offer
from ..verifiers import Proposal
from .base import Drafter

NGRAM = 3
"""The longest n-gram that is looked for, unless told otherwise."""
OCCURRENCES = 16
"""How many earlier places of an n-gram are compared, the latest first."""
REACH = 64
"""How many tokens back two places are compared."""
CLASSES = (1, 2, 3, 4, 6, 9, 16)
"""The shortest match of each class of evidence."""


def evidence(matched: int) -> int:
    """The class of a match of so many tokens: 1, 2, 3, 4-5, 6-8, 9-15, 16 and more are 1 to 7; 0 is no match.

    Few and growing geometrically: acceptance is learned for each, and one token more means less the longer a match is.
    """
    return bisect_right(CLASSES, matched)


class TextIndex:
    """Where the n-grams of a growing text stood before. A place is the number of tokens up to and with the n-gram.

    Attributes:
        tokens: the text.
        last: the latest place of each n-gram.
        earlier: `earlier[n - 1][place]` is the place before this one of the n-gram that ends there; 0 is none.
    """

    def __init__(self, ngram: int):
        self.tokens: list[int] = []
        self.last: dict[tuple[int, ...], int] = {}
        self.earlier: list[list[int]] = [[0] for _ in range(ngram)]

    @property
    def entered(self) -> int:
        """How many tokens of the text are in the index."""
        return len(self.earlier[0]) - 1

    def holds(self, tokens: list[int]) -> bool:
        """Whether these tokens go on from those entered. Free for the very list that was entered."""
        return tokens is self.tokens or tokens[: self.entered] == self.tokens[: self.entered]

    def enter(self, tokens: list[int]) -> None:
        """Take in what this text has beyond the tokens entered."""
        self.tokens, last = tokens, self.last
        for place in range(self.entered + 1, len(tokens) + 1):
            for n, earlier in enumerate(self.earlier, 1):
                if place < n:
                    earlier.append(0)
                    continue
                gram = tuple(tokens[place - n : place])
                earlier.append(last.get(gram, 0))
                last[gram] = place

    def match(self) -> tuple[int, int]:
        """The earlier place that agrees with the end of the text the farthest back, the latest of equals.

        Looked for among the places of the longest n-gram that has one.

        Returns:
            The place and how many tokens agree, `REACH` at most; `(0, 0)` if the last token is new.
        """
        tokens, end = self.tokens, len(self.tokens)
        earlier = next((earlier for earlier in reversed(self.earlier) if earlier[end]), None)
        best, longest = 0, 0
        if earlier is None:
            return best, longest
        place = earlier[end]
        for _ in range(OCCURRENCES):
            if longest < place and tokens[place - 1 - longest] == tokens[end - 1 - longest]:  # it might be longer
                most, matched = min(place, REACH), 0
                while matched < most and tokens[place - 1 - matched] == tokens[end - 1 - matched]:
                    matched += 1
                if matched > longest:
                    best, longest = place, matched
            place = earlier[place]
            if not place or longest == REACH:
                break
        return best, longest


class LookupDrafter(Drafter):
    """Copies what followed the longest match of the row's end in its own text, one-hot.

    Args:
        most: `prompt_lookup_num_tokens`: drafted in a round at most.
        ngram: `max_matching_ngram_size`: the longest n-gram that is looked for; None is `NGRAM`.
        eos: ids after which a draft ends.
        never: ids that are not drafted (placeholders of images and sound).

    Raises:
        ValueError: `most` or `ngram` is less than 1.
    """

    def __init__(self, most: int = 16, ngram: int | None = None, eos: Sequence[int] = (), never: Sequence[int] = ()):
        ngram = NGRAM if ngram is None else ngram
        for name, value in (("prompt_lookup_num_tokens", most), ("max_matching_ngram_size", ngram)):
            if value < 1:
                raise ValueError(f"{name}={value}. Give at least 1.")
        self.most, self.ngram = most, ngram
        self.eos, self.never = frozenset(eos), frozenset(never)
        self.num_assistant_tokens = most
        self.indexes: dict[int, TextIndex] = {}  # by the row's index; committed tokens only: nothing to roll back

    def offers(self, rows: list) -> list[list[Offer]]:
        """One offer for each row whose last token stood in its text before."""
        found = [self._look_up(row) for row in rows]
        return [[Offer("lookup", len(ids), evidence(matched), costs=False)] if ids else [] for ids, matched in found]

    def propose(self, rows, widths, verifier, noise):
        home = rows[0].ids.device
        found = [self._look_up(row)[0][:width] if width > 0 else [] for row, width in zip(rows, widths, strict=True)]
        counts = list(map(len, found))
        if not any(counts):
            return Proposal.empty(len(rows), home)
        tokens = [ids + [0] * (max(counts) - len(ids)) for ids in found]
        return Proposal(torch.tensor(tokens, device=home), torch.tensor(counts, device=home))

    def _look_up(self, row) -> tuple[list[int], int]:
        """The continuation of the row's text, and how many tokens the match has that it follows."""
        index = self.indexes.get(row.index)
        if index is None or not index.holds(row.tokens):  # a new row, of this call or the next
            index = self.indexes[row.index] = TextIndex(self.ngram)
        index.enter(row.tokens)
        place, matched = index.match()
        return (self._continued(row.tokens, place) if matched else []), matched

    def _continued(self, tokens: list[int], place: int) -> list[int]:
        """Up to `most` tokens that follow this place; behind the end of the text the copy goes on from itself."""
        ids = tokens[place : place + self.most]
        ids = (ids * -(-self.most // len(ids)))[: self.most]
        for i, id_ in enumerate(ids):
            if id_ in self.never:
                return ids[:i]
            if id_ in self.eos:
                return ids[: i + 1]
        return ids
