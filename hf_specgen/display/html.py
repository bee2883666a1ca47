"""Small pieces of HTML for notebooks.

No style sheet and no script: notebooks strip them. Colours are transparent or the theme's own, for dark and light ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bar", "block", "escape", "muted", "pre", "stack", "table", "verdict"]

PRE = (
    "margin:0 0 0.75em 0;padding:0;background:transparent;color:inherit;white-space:pre-wrap;overflow-wrap:anywhere;"
    "font-family:ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:0.95em"
)
LINE = "rgba(128,128,128,0.35)"
GOOD, WARN, BAD = "#228833", "#CCBB44", "#EE6677"


def block(*parts: str) -> str:
    return f'<div style="line-height:1.5;overflow-x:auto">{"".join(parts)}</div>'


def muted(text: str) -> str:
    return f'<span style="opacity:0.7">{escape(text)}</span>'


def pre(content: str) -> str:
    """Text with its own spaces and line ends. `content` is HTML."""
    return f'<pre style="{PRE}">{content}</pre>'


def verdict(text: str, colour: str, note: str = "") -> str:
    """A title with a bar in the verdict's colour beside it."""
    return (
        f'<div style="border-left:4px solid {colour};padding-left:0.6em;margin-bottom:0.5em">'
        f"<b>{escape(text)}</b> {muted(note) if note else ''}</div>"
    )


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """Cells are HTML. The first column is left-aligned, the others right-aligned where there is a head."""

    def line(cells: Sequence[str], tag: str) -> str:
        style = f"padding:0.15em 1.2em 0.15em 0;border:0;border-bottom:1px solid {LINE};background:transparent"
        first, others = "left;white-space:nowrap", "right" if head else "left"
        found = (
            f'<{tag} style="{style};vertical-align:top;text-align:{others if i else first}">{cell}</{tag}>'
            for i, cell in enumerate(cells)
        )
        return f'<tr style="background:transparent">{"".join(found)}</tr>'

    top = f"<thead>{line([escape(cell) for cell in head], 'th')}</thead>" if head else ""
    body = "".join(line(row, "td") for row in rows)
    return f'<table style="border-collapse:collapse;margin:0 0 0.75em 0">{top}<tbody>{body}</tbody></table>'


def bar(share: float, colour: str, text: str, width: int = 220) -> str:
    """A horizontal bar, `share` of `width` pixels, with its figure beside it."""
    filled = round(max(0.0, min(1.0, share)) * width)
    return (
        f'<span style="display:inline-block;width:{filled}px;height:0.7em;background:{colour};border-radius:2px">'
        f"</span> {escape(text)}"
    )


def stack(parts: Sequence[tuple[str, float, str, str]], width: int = 420) -> str:
    """One bar of several parts, and a legend: (label, value, how the value is told, colour)."""
    total = sum(value for _, value, _, _ in parts)
    if not total:
        return ""
    bars = "".join(
        f'<span title="{escape(label)}" style="display:inline-block;width:{round(value / total * width)}px;height:1em;'
        f'background:{colour}"></span>'
        for label, value, _, colour in parts
    )
    names = "&emsp;".join(
        f'<span style="color:{colour}">&#9632;</span> {escape(label)} {escape(told)}'
        for label, _, told, colour in parts
    )
    return f'<div style="line-height:1;font-size:1em">{bars}</div><div style="margin-bottom:0.5em">{names}</div>'
