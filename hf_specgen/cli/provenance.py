"""Where tokens came from, as a terminal shows it: one name and one colour for each source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer
from rich.color import ColorSystem
from rich.style import Style
from rich.text import Text

from .terminal import console

SHOWN = {
    "draft": ("draft model", "green"),
    "lookup": ("text lookup", "cyan"),
    None: ("target itself", "bold yellow"),
}
"""Name and colour by source (`RowStats.token_sources`)."""
OTHER = "magenta"
"""A drafter of one's own."""


def shown(source: str | None) -> tuple[str, str]:
    return SHOWN.get(source, (str(source), OTHER))


def coloured(pieces: Iterable[tuple[str, str | None]]) -> Text:
    """Pieces of text with their sources."""
    return Text.assemble(*((piece, shown(source)[1]) for piece, source in pieces))


def legend(sources: Sequence[str | None] = (*SHOWN,)) -> Text:
    return Text("  ").join(coloured([(shown(source)[0], source)]) for source in sources)


def painted(piece: str, source: str | None) -> str:
    """For a stream: as `coloured`, with the terminal's own codes, and nothing else of the piece changed."""
    return Style.parse(shown(source)[1]).render(piece, color_system=ColorSystem.STANDARD)


def begin(command: str) -> bool:
    """Print the legend, once, in front of coloured text. False where there are no colours, which it says."""
    on = console()
    if on.color_system is None:
        typer.echo(f"{command}: --show needs a terminal with colours; --json lists each token's source.", err=True)
        return False
    on.print(legend())
    return True
