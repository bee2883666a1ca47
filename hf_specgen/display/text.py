"""A generated text, coloured by where each token came from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from . import html
from .origins import TARGET, legend, origin, origins_of

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from transformers import PreTrainedTokenizerBase

    from ..decoding.output import SpecGenerateEncoderDecoderOutput, SpecGenerateOutput

CONTEXT = 8
"""Tokens of the prompt that are decoded together with the first new one: a text's first token loses its space."""
INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class OriginText:
    """
    Attributes:
        prompt: what was there before.
        pieces: (text, name of its origin) of each new token; empty texts for special tokens, and for tokens that hold
            a part of a character only, which is with the one that ends it.
    """

    prompt: str
    pieces: tuple[tuple[str, str], ...]

    @property
    def spans(self) -> list[tuple[str, str]]:
        """`pieces`, neighbours of one origin together."""
        written = [piece for piece in self.pieces if piece[0]]
        return [
            ("".join(text for text, _ in group), name) for name, group in groupby(written, key=lambda piece: piece[1])
        ]

    def counts(self) -> dict[str, int]:
        """Tokens by the name of their origin."""
        return _counts([name for _, name in self.pieces])

    def __str__(self) -> str:
        return self.prompt + "".join(text for text, _ in self.pieces)

    def __rich__(self):
        from rich.text import Text

        return Text.assemble(self.prompt, *((text, origin(name).terminal) for text, name in self.spans))

    def _repr_html_(self) -> str:
        return html.block(_legend_html(self.counts()) + self._body_html())

    def _body_html(self) -> str:
        spans = "".join(_span_html(text, name) for text, name in self.spans)
        return f'<pre style="{html.PRE}">{html.escape(self.prompt)}{spans}</pre>'


@dataclass(frozen=True)
class OriginTexts(Sequence):
    """The rows of a batch."""

    rows: tuple[OriginText, ...]

    def __getitem__(self, index):
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.rows))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.rule import Rule

        yield legend_line(self.counts())
        for row in self.rows:
            yield from (Rule(style="dim"), row.__rich__())

    def counts(self) -> dict[str, int]:
        """Tokens of all rows by the name of their origin."""
        return _counts([name for row in self.rows for _, name in row.pieces])

    def _repr_html_(self) -> str:
        return html.block(_legend_html(self.counts()) + "".join(row._body_html() for row in self.rows))


def coloured(
    out: SpecGenerateOutput | SpecGenerateEncoderDecoderOutput, tokenizer: PreTrainedTokenizerBase
) -> OriginTexts:
    """The texts of a call, for `print`, rich and notebooks: `coloured(out, tokenizer)` at the end of a cell.

    Args:
        out: of a speculative `generate(…, return_dict_in_generate=True)`.

    Raises:
        TypeError: something else.
    """
    stats, mask = getattr(out, "spec_stats", None), getattr(out, "draft_mask", None)
    if stats is None or mask is None:
        raise TypeError(
            f"coloured() needs what a speculative generate() returns with return_dict_in_generate=True, not a "
            f"{type(out).__name__}."
        )
    columns = out.sequences.shape[1] - mask.shape[1]
    rows = []
    for index, ids in enumerate(out.sequences.tolist()):
        prompt, new = ids[:columns], ids[columns:]
        names = origins_of(stats.rows[index]) if stats.rows else [TARGET.name] * len(new)
        texts = pieces(tokenizer, new[: len(names)], prompt[-CONTEXT:])
        whole = _decoded(tokenizer, ids[: columns + len(names)])
        rows.append(OriginText(whole.removesuffix("".join(texts)), tuple(zip(texts, names, strict=True))))
    return OriginTexts(tuple(rows))


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], before: Sequence[int] = ()) -> list[str]:
    """What each token adds to the text after `before`. Together they are the text, also where tokens split characters:
    a character is with the token that ends it."""
    ids = [*before, *ids]
    found, begin, read = [], 0, len(before)
    for end in range(read + 1, len(ids) + 1):
        known, text = _decoded(tokenizer, ids[begin:read]), _decoded(tokenizer, ids[begin:end])
        if text.endswith(INCOMPLETE) and end < len(ids):
            found.append("")
            continue
        found.append(text[len(known.rstrip(INCOMPLETE)) :])
        begin, read = read, end
    return found


def legend_line(counts: dict[str, int]):
    """The origins as one line of rich text, each in its style."""
    from rich.text import Text

    entries = [(f"{one.label} ({counts[one.name]})", one.terminal) for one in legend(list(counts))]
    return Text("  ").join([Text("prompt"), *(Text(*entry) for entry in entries)])


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {one.name: names.count(one.name) for one in legend(names)}


def _legend_html(counts: dict[str, int]) -> str:
    total = sum(counts.values())
    shown = "".join(
        f"{_span_html(one.label, one.name)} {html.muted(f'{counts[one.name]} of {total} tokens')}&emsp;"
        for one in legend(list(counts))
    )
    return f'<div style="margin-bottom:0.5em">{shown}</div>'


def _span_html(text: str, name: str) -> str:
    """Line ends and indentation are not painted: they would be most of the colour."""
    one = origin(name)
    style = f"background:{one.background};color:inherit;border-radius:2px"
    painted = (
        f'<{one.tag} style="{style}" title="{html.escape(one.label)}">{html.escape(part)}</{one.tag}>'
        if part.strip()
        else part
        for part in re.split(r"(\n\s*)", text)
    )
    return "".join(painted)


def _decoded(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
