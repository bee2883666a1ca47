"""Where a token comes from, and how that is shown: one definition for terminals, notebooks and plots.

The colours are Paul Tol's "bright" scheme, which colour-blind readers can tell apart; emphasis tells them apart without
colours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Origin:
    """
    Attributes:
        source: as in `RowStats.token_sources`; None for the target's own tokens.
        label: in a legend.
        terminal: a rich style.
        colour: hexadecimal, of plots, and with transparency of backgrounds in notebooks.
        tag: HTML element that tells it apart where styles are stripped.
    """

    source: str | None
    label: str
    terminal: str
    colour: str
    tag: str = "span"

    @property
    def background(self) -> str:
        """CSS colour, so transparent that any theme's text can be read on it."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},0.28)"


DRAFT = Origin("draft", "draft model", "green", "#228833")
LOOKUP = Origin("lookup", "text lookup", "cyan", "#66CCEE", "u")
TARGET = Origin(None, "target itself", "bold yellow", "#CCBB44", "b")

TIMES = {"draft": DRAFT.colour, "verify": TARGET.colour, "rest": "#4477AA", "prefill": "#BBBBBB"}
"""Colours of what time goes into, as `SpecStats` names it."""

KNOWN = {one.source: one for one in (DRAFT, LOOKUP, TARGET)}


def origin(source: str | None) -> Origin:
    """How tokens of this source are shown; a source that a drafter of one's own names, by its name."""
    return KNOWN.get(source) or Origin(source, str(source), "magenta", "#AA3377", "i")


def legend(sources: Iterable[str | None]) -> list[Origin]:
    """Each origin once: the known ones first."""
    found = dict.fromkeys(sources)
    return [origin(source) for source in (*(k for k in KNOWN if k in found), *(s for s in found if s not in KNOWN))]
