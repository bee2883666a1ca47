"""The text of a growing list of tokens, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEFORE = 8
"""Tokens of the text in front that are decoded with the first ones: a tokenizer may drop a space that begins a text."""
HALF = "\N{REPLACEMENT CHARACTER}"


class Pieces:
    """What each token adds to the text. Pieces put together are the text.

    A character whose bytes are spread over several tokens comes with the last of them.

    Args:
        before: the tokens in front of the first one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()):
        self.tokenizer = tokenizer
        self.ids = list(before)[-BEFORE:]
        self.begin, self.end = 0, len(self.ids)  # what has been shown ends at `end`, and is decoded from `begin` on

    def add(self, token: int) -> str:
        self.ids.append(token)
        shown, text = self._decoded(self.end), self._decoded(len(self.ids))
        if len(text) <= len(shown) or text.endswith(HALF):
            return ""
        self.begin, self.end = self.end, len(self.ids)
        return text[len(shown) :]

    def rest(self) -> str:
        """What still waited for its last token."""
        shown, text = self._decoded(self.end), self._decoded(len(self.ids))
        self.begin = self.end = len(self.ids)
        return text[len(shown) :]

    def _decoded(self, end: int) -> str:
        ids = self.ids[self.begin : end]
        return self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pieces_of(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int], before: Sequence[int] = ()) -> list[str]:
    """One piece for each token, empty for some; what is left at the end goes to the last."""
    pieces = Pieces(tokenizer, before)
    found = [pieces.add(token) for token in tokens]
    if found:
        found[-1] += pieces.rest()
    return found
