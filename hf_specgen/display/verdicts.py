"""How good a verdict is, and its colour: one definition for terminals and notebooks."""

from __future__ import annotations

from typing import NamedTuple

from . import html


class Colour(NamedTuple):
    terminal: str
    """A rich style."""
    notebook: str
    """Of CSS."""


GOOD, WARN, BAD = Colour("green", html.GOOD), Colour("yellow", html.WARN), Colour("red", html.BAD)
