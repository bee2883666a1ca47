"""A generated text, coloured by where each token came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from ..decoding.pieces import pieces_of
from . import html
from .origins import TARGET, legend, origin

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.text import Text
    from transformers import PreTrainedTokenizerBase

    from ..decoding.output import SpecGenerateEncoderDecoderOutput, SpecGenerateOutput


@dataclass(frozen=True)
class OriginText:
    """
    Attributes:
        prompt: what was there before.
        pieces: (text, source) of each new token, as `pieces_of` and `RowStats.token_sources` give them.
    """

    prompt: str
    pieces: tuple[tuple[str, str | None], ...]

    @property
    def spans(self) -> list[tuple[str, str | None]]:
        """`pieces`, neighbours of one source together."""
        written = [piece for piece in self.pieces if piece[0]]
        return [
            ("".join(text for text, _ in group), source)
            for source, group in groupby(written, key=lambda piece: piece[1])
        ]

    def counts(self) -> dict[str | None, int]:
        """Tokens by their source."""
        return _counts([source for _, source in self.pieces])

    def __str__(self) -> str:
        return self.prompt + "".join(text for text, _ in self.pieces)

    def __rich__(self):
        from rich.text import Text

        return Text.assemble(self.prompt, *((text, origin(source).terminal) for text, source in self.spans))

    def _repr_html_(self) -> str:
        return html.block(_legend_html(self.counts()) + self._body_html())

    def _body_html(self) -> str:
        spans = "".join(_span_html(text, source) for text, source in self.spans)
        return html.pre(html.escape(self.prompt) + spans)


@dataclass(frozen=True)
class OriginTexts(Sequence[OriginText]):
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

        yield self.legend()
        for row in self.rows:
            yield from (Rule(style="dim"), row.__rich__())

    def counts(self) -> dict[str | None, int]:
        """Tokens of all rows by their source."""
        return _counts([source for row in self.rows for _, source in row.pieces])

    def legend(self) -> Text:
        """For a terminal: the prompt's style, and each origin's, with how many tokens came from it."""
        from rich.text import Text

        counts = self.counts()
        return Text("prompt  ") + legend_line(counts, counts)

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
        # Plain decoding, transformers' own, counts no rows.
        sources = stats.rows[index].token_sources if stats.rows else [TARGET.source] * _length(new, tokenizer)
        texts = pieces_of(tokenizer, new[: len(sources)], prompt)
        whole = tokenizer.decode(
            ids[: columns + len(sources)], skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        rows.append(OriginText(whole.removesuffix("".join(texts)), tuple(zip(texts, sources, strict=True))))
    return OriginTexts(tuple(rows))


def legend_line(sources: Iterable[str | None], counts: Mapping[str | None, int] | None = None) -> Text:
    """The origins as one line of rich text, each in its style; `counts`: of tokens by source, to be told as well."""
    from rich.text import Text

    told = {one: "" if counts is None else f" ({counts[one.source]})" for one in legend(sources)}
    return Text("  ").join(Text(one.label + count, one.terminal) for one, count in told.items())


def _length(new: list[int], tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens of a row are its own: of the special ones at its end the first, which has ended it; what follows
    is padding. (Padding that follows no end of text, but a stop string, counts as one token.)"""
    special, length = {*tokenizer.all_special_ids}, len(new)
    while length > 1 and {*new[length - 2 : length]} <= special:
        length -= 1
    return length


def _counts(sources: Sequence[str | None]) -> dict[str | None, int]:
    return {one.source: sources.count(one.source) for one in legend(sources)}


def _legend_html(counts: dict[str | None, int]) -> str:
    total = sum(counts.values())
    shown = "".join(
        f"{_span_html(one.label, one.source)} {html.muted(f'{counts[one.source]} of {total} tokens')}&emsp;"
        for one in legend(list(counts))
    )
    return f'<div style="margin-bottom:0.5em">{shown}</div>'


def _span_html(text: str, source: str | None) -> str:
    """Line ends and indentation are not painted: they would be most of the colour."""
    one = origin(source)
    style = f"background:{one.background};color:inherit;border-radius:2px"
    painted = (
        f'<{one.tag} style="{style}" title="{html.escape(one.label)}">{html.escape(part)}</{one.tag}>'
        if part.strip()
        else part
        for part in re.split(r"(\n\s*)", text)
    )
    return "".join(painted)
