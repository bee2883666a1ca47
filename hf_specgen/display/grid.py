"""A table of figures in a terminal or a file, of which none is ever cut."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text


class Grid(Table):
    """Names, then figures, without lines.

    As wide as it needs, whatever the console's width (a pipe counts as 80 columns): rich would put "…" in the place of
    figures. Print it uncropped: `console.print(grid, crop=False)`.

    Args:
        heads: of the columns; a head may have several lines.
        justify: of all columns but the first.
    """

    def __init__(self, heads: Iterable[str], justify: JustifyMethod = "right"):
        super().__init__(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for index, head in enumerate(heads):
            self.add_column(Text(head), justify=justify if index else "left", vertical="bottom", no_wrap=True)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return super().__rich_console__(console, options.update(max_width=sys.maxsize))
