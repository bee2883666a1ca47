"""Where tokens came from, as a terminal shows it: see `display.origins` for names and colours."""

from __future__ import annotations

import typer
from rich.color import ColorSystem
from rich.style import Style

from ..display.origins import KNOWN, origin
from ..display.text import legend_line
from .terminal import console


def painted(piece: str, source: str | None) -> str:
    """For a stream: with the terminal's own codes, and nothing else of the piece changed."""
    return Style.parse(origin(source).terminal).render(piece, color_system=ColorSystem.STANDARD)


def begin(command: str) -> bool:
    """Print the legend, once, in front of coloured text. False where there are no colours, which it says."""
    on = console()
    if on.color_system is None or on.no_color:
        typer.echo(f"{command}: --show needs a terminal with colours; --json lists each token's source.", err=True)
        return False
    on.print(legend_line(KNOWN))
    return True
