"""`Measurement` in a notebook: what each K would bring."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import html

if TYPE_CHECKING:
    from ..measuring.measurement import Measurement

ABSENT = "–"


def html_of(measurement: Measurement) -> str:
    wins = bool(measurement.best_k)
    return html.block(html.verdict(measurement.verdict, html.GOOD if wins else html.WARN), table(measurement))


def table(measurement: Measurement) -> str:
    """Costs in a line, then a row for each K."""
    told = (
        f"{measurement.prompts} prompt(s), {measurement.new_tokens} new tokens, "
        f"{'sampled' if measurement.do_sample else 'greedy'}; a target step takes "
        f"{1000 * measurement.target_step_seconds:.3g} ms, a draft step {_show(measurement.cost_ratio, '.2f')} of it"
    )
    best = measurement.fastest
    rows = []
    for one in measurement.lengths:
        cells = (
            str(one.k),
            _show(one.forecast.acceptance_rate, ".0%"),
            _show(one.forecast.tokens_per_round, ".2f"),
            _show(one.round_cost, ".2f"),
            _show(one.decode_speedup, ".2f", "×"),
        )
        rows.append([f"<b>{cell}</b>" if one is best else cell for cell in cells])
    head = ("K", "accepted", "tokens per round", "cost in target steps", "speed-up")
    return html.muted(told) + html.table(rows, head)


def _show(value: float | None, form: str, unit: str = "") -> str:
    return ABSENT if value is None else f"{value:{form}}{unit}"
