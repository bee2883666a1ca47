"""Which token of the draft is which token of the target, where their ids do not all mean the same.

Token-level intersection (arXiv 2502.05202, Algorithm 4, TLI): the draft's distribution is restricted to the tokens that
both have, and renormalised. Each such token stands for one of the target's, so any acceptance rule stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from .codec import Codec

if TYPE_CHECKING:
    import torch

    from .tokenizers import TokenizerFacts

Pairs = dict[int, int]
"""Draft's id -> target's id, one to one."""

ALIKE = 0.98
SAMPLE = (
    "The parliament met in 1998; nobody had expected 12,345 visitors, let alone the unbelievably long queue.\n"
    'def merge(a, b):\n    """Merge two sorted lists."""\n    while i < len(a) and j < len(b):\n'
    "        result.append(a[i] if a[i] <= b[j] else b[j])\n\n    return result  # O(n + m)\n"
    '{"name": "value", "items": [1, 2.50, null]}\n\n- Übermäßig schöne Straßen; l\'été à Liège; ¿dónde está?\n'
)
"""Text on which two tokenizers are compared: prose, code with its indentation, data, other languages."""


@dataclass(frozen=True, eq=False)
class VocabularyMap:
    """How a draft with ids of its own reads and writes for a target.

    Attributes:
        pairs: the tokens that both have.
        target_rows, draft_rows: logits of each.
        target, draft: by bytes; None for a pair whose ids agree but for a few: there, each token of the text is one
            token to both.
        filler: what the draft reads for a target's token that it lacks (only without codecs).
        prefix: what the draft's texts begin with.
        alike: the share of `SAMPLE`'s tokens, as the target splits it, that are one shared token to the draft too.
    """

    pairs: Pairs
    target_rows: int
    draft_rows: int
    target: Codec | None = None
    draft: Codec | None = None
    filler: int = 0
    prefix: tuple[int, ...] = ()
    alike: float = 1.0

    @cached_property
    def to_draft(self) -> dict[int, int]:
        """Target's id -> draft's id."""
        return {target: draft for draft, target in self.pairs.items()}

    @cached_property
    def symbols(self) -> dict[int, int]:
        """`to_draft` of those that stand in a text as a whole: turns, ends."""
        return {token: self.to_draft[token] for token in self.target.symbols if token in self.to_draft}

    @cached_property
    def _indices(self) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        return torch.tensor(list(self.pairs)), torch.tensor(list(self.pairs.values()))

    def indices(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids of the tokens that both have, int64 `[pairs]`: the draft's, and in the same order the target's."""
        drafts, targets = self._indices
        return drafts.to(device), targets.to(device)

    @property
    def one_to_one(self) -> bool:
        """Whether each token of a text is one token to both."""
        return self.target is None

    @property
    def by_tokens(self) -> bool:
        """Whether the draft's own tokens are what a greedy target would write; else its text is split anew."""
        return self.alike >= ALIKE


def few_differ(ours: TokenizerFacts, theirs: TokenizerFacts, rows: tuple[int, int]) -> VocabularyMap:
    """For ids that agree but for a few: they stand for themselves, the others for the same string elsewhere, if any."""
    target, draft = ours.vocabulary, theirs.vocabulary
    at = {token: id_ for id_, token in target.items()}
    known = target.keys() | draft.keys()
    pairs = {i: i for i in range(min(rows)) if i not in known or (i in target and target[i] == draft.get(i))}
    pairs |= {id_: at[token] for id_, token in draft.items() if id_ not in pairs and token in at}
    return VocabularyMap(_checked(pairs, ours, theirs, rows), *rows, filler=_filler(theirs, rows[1]))


def by_bytes(ours: TokenizerFacts, theirs: TokenizerFacts, rows: tuple[int, int]) -> VocabularyMap:
    """For two vocabularies of their own: tokens are the same if they add the same bytes, or have the same role.

    Raises:
        UnreadableTokenizerError: a tokenizer whose tokens cannot be read as bytes.
    """
    target, draft = ours.codec(), theirs.codec()
    symbols = {content: id_ for id_, content in target.symbols.items()}
    pairs = {id_: target.ids[piece] for piece, id_ in draft.ids.items() if piece in target.ids}
    pairs |= {id_: symbols[content] for id_, content in draft.symbols.items() if content in symbols}
    pairs = _checked(pairs, ours, theirs, rows)
    prefix = tuple(id_ for id_ in draft.prefix if id_ < rows[1])
    return VocabularyMap(pairs, *rows, target, draft, _filler(theirs, rows[1]), prefix, _alike(target, draft, pairs))


def _checked(pairs: Pairs, ours: TokenizerFacts, theirs: TokenizerFacts, rows: tuple[int, int]) -> Pairs:
    """With ends and beginnings paired by their role, whatever they are called; one to one; of rows that exist."""
    for role in ("eos", "bos"):
        id_, same = theirs.roles.get(role), ours.roles.get(role)
        if id_ is not None and same is not None and id_ not in pairs and same not in pairs.values():
            pairs[id_] = same
    found: Pairs = {}
    taken: set[int] = set()
    for id_, same in sorted(pairs.items(), key=lambda pair: (pair[0] != pair[1], pair[0])):
        if id_ < rows[1] and same < rows[0] and same not in taken:
            found[id_] = same
            taken.add(same)
    return found


def _filler(theirs: TokenizerFacts, rows: int) -> int:
    """Of a draft whose embedding was not resized for an added token, that token is none."""
    return next((i for role in ("unk", "pad", "eos") if (i := theirs.roles.get(role, rows)) < rows), 0)


def _alike(target: Codec, draft: Codec, pairs: Pairs) -> float:
    def spans(codec: Codec) -> dict[tuple[int, int], int]:
        found, start = {}, 0
        for id_ in codec.encode(SAMPLE.encode()):
            end = start + len(codec.bytes_of(id_))
            found[start, end] = id_
            start = end
        return found

    if target.ids.keys() == draft.ids.keys():
        return 1.0
    ours, theirs = spans(target), spans(draft)
    return sum(pairs.get(theirs.get(span, -1)) == id_ for span, id_ in ours.items()) / max(1, len(ours))
