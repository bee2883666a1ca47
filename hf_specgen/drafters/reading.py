"""How a draft reads the target's text, and how its logits speak of the target's tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import torch

from ..pairing.codec import whole_characters

if TYPE_CHECKING:
    from ..pairing.vocabulary import VocabularyMap


class Reading(ABC):
    """One per call. A row's text in the draft's ids only ever grows at its end, with every token of the row."""

    @abstractmethod
    def text(self, row) -> list[int]:
        """The row's whole text, in the draft's ids. The list is the reading's own."""

    @abstractmethod
    def fed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Drafted tokens `[rows]` in the draft's ids, to be fed back to it."""

    @abstractmethod
    def own(self, tokens: list[int]) -> list[int]:
        """`fed`, on the host."""

    @abstractmethod
    def scores(self, logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
        """The draft's logits `[rows, draft's vocabulary]` for the target's tokens, `[rows, vocabulary]`; -inf for
        those that the draft does not have."""


class SameIds(Reading):
    """Both use the same ids; one may have more of them."""

    def text(self, row):
        return row.tokens

    def fed(self, tokens):
        return tokens

    def own(self, tokens):
        return tokens

    def scores(self, logits, vocabulary):
        logits = logits[:, :vocabulary]
        missing = vocabulary - logits.shape[1]
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits


class MappedIds(Reading):
    """A few ids differ: each token of the text is one token to the draft."""

    def __init__(self, vocabulary: VocabularyMap, device: torch.device):
        self.map = vocabulary
        self.drafts, self.targets = vocabulary.indices(device)
        self.to_draft = torch.full((vocabulary.target_rows,), vocabulary.filler, device=device)
        self.to_draft[self.targets] = self.drafts
        self.texts: dict[int, list[int]] = {}  # by the row's index

    def text(self, row):
        known = self.texts.setdefault(row.index, [])
        known.extend(self.own(row.tokens[len(known) :]))
        return known

    def fed(self, tokens):
        return self.to_draft[tokens]

    def own(self, tokens):
        return [self.map.to_draft.get(token, self.map.filler) for token in tokens]

    def scores(self, logits, vocabulary):
        scores = logits.new_full((len(logits), vocabulary), float("-inf"))
        return scores.index_copy_(1, self.targets, logits.index_select(1, self.drafts))


class OtherVocabulary(MappedIds):
    """Another vocabulary. A token that both have is that token; stretches of others are split anew, by their bytes.

    The prompt is split as the draft's own tokenizer would split it, between tokens that stand as a whole (turns, ends)
    in both. What is decoded is appended as it comes, and never split again.
    """

    def __init__(self, vocabulary: VocabularyMap, device: torch.device):
        super().__init__(vocabulary, device)
        self.count: dict[int, int] = {}  # by the row's index: how many of its tokens are in `texts`

    def text(self, row):
        new = row.tokens[self.count.get(row.index, 0) :]
        if row.index not in self.texts:
            self.texts[row.index] = self._prompt(new) or [self.map.filler]
        elif new:
            self.texts[row.index] += self.more(row.index, new) or [self.map.filler]
        self.count[row.index] = len(row.tokens)
        return self.texts[row.index]

    def more(self, index: int, tokens: list[int]) -> list[int]:
        """The draft's ids for the tokens that a round has added to the row of this index."""
        return self.joined(self.units(tokens, self.map.to_draft))

    def units(self, tokens: list[int], whole: dict[int, int]) -> list[int | bytes]:
        """Tokens in `whole` as the draft's ids, the stretches between them as bytes."""
        found: list[int | bytes] = []
        for token in tokens:
            if token in whole:
                found.append(whole[token])
            elif found and isinstance(found[-1], bytes):
                found[-1] += self.map.target.bytes_of(token)
            else:
                found.append(self.map.target.bytes_of(token))
        return found

    def joined(self, units: list[int | bytes]) -> list[int]:
        """The draft's ids of units."""
        return [id_ for unit in units for id_ in ([unit] if isinstance(unit, int) else self.map.draft.encode(unit))]

    def _prompt(self, tokens: list[int]) -> list[int]:
        ids, prefix = self.joined(self.units(tokens, self.map.symbols)), list(self.map.prefix)
        return ids if ids[: len(prefix)] == prefix else prefix + ids


class OtherVocabularyAsText(OtherVocabulary):
    """The draft writes text of its own, which is split anew for the target.

    Attributes:
        written: by the row's index, what the draft has written behind the row's text, in its ids.
    """

    def __init__(self, vocabulary: VocabularyMap, device: torch.device):
        super().__init__(vocabulary, device)
        self.written: dict[int, list[int]] = {}

    def more(self, index, tokens):
        """What the draft has written, as far as it agrees with the text; the rest split anew."""
        kept: list[int] = []
        left = self.units(tokens, self.map.symbols)
        for id_ in self.written.pop(index, ()):
            piece = self.map.draft.bytes_of(id_)
            if left and left[0] == id_:
                left.pop(0)
            elif left and piece and isinstance(left[0], bytes) and left[0].startswith(piece):
                left[0] = left[0].removeprefix(piece)
                left = left if left[0] else left[1:]
            else:
                break
            kept.append(id_)
        return kept + self.joined(left)

    def proposal(self, index: int) -> list[int]:
        """What was written, in the target's ids, without half a character at its end."""
        ids: list[int] = []
        stretch = b""
        for id_ in self.written.get(index, ()):
            if id_ in self.map.draft.symbols and id_ in self.map.pairs:
                ids += [*self.map.target.encode(stretch), self.map.pairs[id_]]
                stretch = b""
            else:
                stretch += self.map.draft.bytes_of(id_)
        return ids + self.map.target.encode(whole_characters(stretch))
