"""Tables of figures lose none of them, however narrow the console."""

import io

import pytest
from rich.console import Console

from hf_specgen.display.grid import Grid


@pytest.mark.parametrize("is_terminal", [False, True])
def test_as_wide_as_it_needs(is_terminal):
    console = Console(file=io.StringIO(), width=10, force_terminal=is_terminal, color_system=None)
    grid = Grid(["", "tokens\nper second", "saving"])
    grid.add_row("a contender", "123,456,789.01", "50.0%")
    console.print(grid, crop=False)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    assert lines == [
        "                     tokens",
        "                 per second  saving",
        "a contender  123,456,789.01   50.0%",
    ]
