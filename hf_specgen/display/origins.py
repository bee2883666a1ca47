"""Where a token comes from, and how that is shown: one definition for terminals, notebooks and plots.

The colours are Paul Tol's "bright" scheme, which colour-blind readers can tell apart; emphasis tells them apart without
colours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..stats import RowStats


@dataclass(frozen=True)
class Origin:
    """
    Attributes:
        name: as in `RowStats.sources`; "target" for what the target wrote itself.
        label: in a legend.
        colour: hexadecimal, of plots, and with transparency of backgrounds.
        terminal: a rich style.
        tag: HTML element that shows it where styles are stripped.
    """

    name: str
    label: str
    colour: str
    terminal: str
    tag: str = "span"

    @property
    def background(self) -> str:
        """CSS colour, so transparent that any theme's text can be read on it."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.28)"


DRAFT = Origin("draft", "from the draft", "#228833", "green")
LOOKUP = Origin("lookup", "copied from the text", "#AA3377", "underline magenta", "u")
TARGET = Origin("target", "from the target", "#CCBB44", "bold yellow", "b")

TIMES = {"draft": DRAFT.colour, "verify": TARGET.colour, "rest": "#4477AA", "prefill": "#BBBBBB"}
"""Colours of what time goes into, as `SpecStats` names it."""

_KNOWN = {one.name: one for one in (DRAFT, LOOKUP, TARGET)}


def origin(name: str) -> Origin:
    """How tokens of this source are shown; those of a source of the user's own like cyan ones with its name."""
    return _KNOWN.get(name) or Origin(name, f"from {name}", "#66CCEE", "cyan")


def origins_of(row: RowStats) -> list[str]:
    """The name of each new token's origin."""
    found: list[str] = []
    for source, (_, accepted) in zip(row.sources, row.trace, strict=True):
        found += [source] * accepted + [TARGET.name]
    return found[: row.emitted]


def legend(names: Sequence[str]) -> list[Origin]:
    """Each origin once, in a fixed order."""
    order = [*_KNOWN, *names]
    return [origin(name) for name in sorted({*names}, key=order.index)]
