"""Text as it comes, token by token, with where each token came from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transformers.generation.streamers import BaseStreamer

from ..decoding.pieces import Pieces
from .provenance import painted

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

Write = Callable[[str, "str | None"], None]
"""Takes a piece of text, never empty, and its source."""


class Stream(BaseStreamer):
    """A streamer of one row.

    Attributes:
        ids, sources: of the new tokens so far; None: the target's own.
        pieces: of their text, as they were written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, write: Write):
        self.tokenizer, self.write = tokenizer, write
        self.ids: list[int] = []
        self.sources: list[str | None] = []
        self.pieces: list[str] = []
        self._text: Pieces | None = None

    def put(self, value: torch.Tensor) -> None:
        """First the prompt, `[1, columns]`; then tokens `[1]`, from plain decoding."""
        if self._text is None:
            self._text = Pieces(self.tokenizer, value[0].tolist())
            return
        for token in value.tolist():
            self.put_token(0, token, None)

    def put_token(self, row: int, token: int, source: str | None) -> None:
        self.ids.append(token)
        self.sources.append(source)
        self._show(self._text.add(token))

    def end(self) -> None:
        if self.ids:
            self._show(self._text.rest())

    def _show(self, piece: str) -> None:
        if piece:
            self.pieces.append(piece)
            self.write(piece, self.sources[-1])


@contextmanager
def on_stdout(colours: bool) -> Iterator[Write]:
    """A text on stdout, whose line ends wherever the text ends."""
    begun = False

    def write(piece: str, source: str | None) -> None:
        nonlocal begun
        begun = True
        sys.stdout.write(painted(piece, source) if colours else piece)
        sys.stdout.flush()

    try:
        yield write
    finally:
        if begun:
            sys.stdout.write("\n")
            sys.stdout.flush()  # before what is said of it on stderr


def nowhere(piece: str, source: str | None) -> None:
    pass
