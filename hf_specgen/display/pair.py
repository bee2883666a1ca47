"""`PairReport` in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import html
from .measurement import ABSENT, table
from .verdicts import BAD, GOOD, WARN

if TYPE_CHECKING:
    from ..pairing.report import PairReport

COLOURS = {
    "exact": GOOD,
    "exact-with-padding": GOOD,
    "mappable": GOOD,
    "cross-vocabulary": WARN,
    "unknown": WARN,
    "refused": BAD,
}


def html_of(report: PairReport) -> str:
    found = [html.verdict(report.verdict, COLOURS[report.verdict].notebook, " ".join(report.reasons))]
    sides = ("target", "draft")
    rows = [
        ("tokens", *(_told(getattr(report, f"{side}_tokens")) for side in sides)),
        ("rows of logits", *(_told(getattr(report, f"{side}_rows")) for side in sides)),
        ("ends with", *(_told(", ".join(map(str, getattr(report, f"{side}_eos"))) or None) for side in sides)),
        ("context", *(_told(getattr(report, f"{side}_context")) for side in sides)),
        ("weights", *(_told(getattr(report, f"{side}_weights")) for side in sides)),
    ]
    names = [html.escape(_short(report.target)), html.escape(_short(report.draft))]
    found.append(html.table([("", *names), *(row for row in rows if row[1:] != (ABSENT, ABSENT))], ("", *sides)))
    if report.parameter_ratio is not None:
        found.append(
            f"<div>The draft has {report.parameter_ratio:.2f} of the target's parameters and reads "
            f"{report.cost_ratio:.2f} of its bytes per token.</div>"
        )
    if report.differing:
        listed = [(str(i), html.escape(repr(ours)), html.escape(repr(theirs))) for i, ours, theirs in report.differing]
        found.append(html.table(listed, ("id", *sides)))
    if report.measurement is not None:
        found += [html.verdict(report.measurement.verdict, html.GOOD if report.measurement.best_k else html.WARN)]
        found.append(table(report.measurement))
    return html.block(*found)


def _short(name: str) -> str:
    """A folder's own name; where it lies is nobody's business but that machine's."""
    return Path(name).name if Path(name).is_absolute() else name


def _told(value: Any) -> str:
    return ABSENT if value is None else html.escape(f"{value:,}" if isinstance(value, int) else str(value))
