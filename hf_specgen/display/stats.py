"""`SpecStats` in a notebook: its figures, acceptance by position as bars, the time as one bar of its parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import html
from .origins import DRAFT, TIMES

if TYPE_CHECKING:
    from ..stats import SpecStats

ROWS = 16
"""Listed by themselves, at most."""


def html_of(stats: SpecStats) -> str:
    found = [html.verdict(stats.title, html.BAD if stats.lossless is False else html.GOOD)]
    if stats.calls:
        shown = {"by position": _positions(stats), "seconds": _seconds(stats)}
        rows = [
            (html.escape(name).replace("  ", "&emsp;"), shown.get(name) or html.escape(x))
            for name, x in stats.figures()
        ]
        found.append(html.table(rows))
    if len(stats.rows) > 1:
        found.append(_rows(stats))
    return html.block(*found)


def _positions(stats: SpecStats) -> str:
    rows = (
        f'<span style="display:inline-block;width:1.8em">{place}</span>{html.bar(rate, DRAFT.colour, f"{rate:.0%}")}'
        for place, rate in enumerate(stats.acceptance_by_position.reached, start=1)
    )
    return "<br>".join(rows)


def _seconds(stats: SpecStats) -> str:
    seconds = {part: getattr(stats, f"{part}_seconds") for part in ("prefill", "draft", "verify", "rest")}
    return html.stack([(part, x, f"{x:.2f} s", TIMES[part]) for part, x in seconds.items()])


def _rows(stats: SpecStats) -> str:
    head = ("row", "new tokens", "drafted", "accepted", "tokens per forward")
    cells = [
        (str(i), str(row.emitted), str(row.drafted), str(row.accepted), f"{row.tokens_per_target_forward or 0:.2f}")
        for i, row in enumerate(stats.rows[:ROWS])
    ]
    left = len(stats.rows) - ROWS
    return html.table(cells, head) + (html.muted(f"and {left} more rows") if left > 0 else "")
