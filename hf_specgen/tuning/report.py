"""What was tried and why the winner won, as a person reads it in a terminal, and as JSON holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..benchmarking.summary import PLAIN, Spread, Summary, summarize
from ..display.grid import Grid
from .choosing import EVERYTHING, Scope, gain, rates_of

if TYPE_CHECKING:
    from .tuner import Outcome


def rows(outcome: Outcome) -> list[dict[str, Any]]:
    """Those that decoded, by batch size, the fastest first: medians over plain and over the default, with half the
    distance between the quartiles. None: no call to compare with."""
    found = []
    for summary in summarize(outcome.records, by_task=False):
        name, batch = summary.contender.name, summary.setting.batch
        rates = rates_of(outcome.records, Scope(batch=batch))
        ratios = {"speedup": gain(rates, name, PLAIN), "of_default": gain(rates, name, outcome.default)}
        found.append({"name": name, "batch": batch, **_spreads(ratios), **_figures(summary)})
    return sorted(found, key=lambda row: (row["batch"], -(row["of_default"] or 0.0)))


def to_dict(outcome: Outcome) -> dict[str, Any]:
    winners = [
        {**scope._asdict(), "winner": decision.winner, "speedup": decision.speedup, "why": decision.why}
        for scope, decision in outcome.decisions.items()
    ]
    about = {"temperature": outcome.temperature, "default": outcome.default, "refused": outcome.refused}
    return about | {"winners": winners, "tried": rows(outcome)}


def table(outcomes: Iterable[Outcome]) -> RenderableType:
    """A block per temperature, with a grid per batch size. For a console that does not crop, see `Grid`."""
    return Group(*(part for outcome in outcomes for part in _block(outcome)))


def _block(outcome: Outcome) -> Iterator[RenderableType]:
    for batch, listed in groupby(rows(outcome), key=lambda row: row["batch"]):
        yield from _grid(outcome, batch, list(listed))
    for name, why in (*outcome.refused.items(), *_errors(outcome)):
        yield Text(f"{name}: {why}", "yellow")
    for scope, decision in outcome.decisions.items():
        what = "plain decoding" if decision.winner == PLAIN else decision.winner
        where = "" if scope == EVERYTHING else f"{scope}: "
        yield Text.assemble(f"→ {where}", (what, "bold"), f": {decision.why}")
    yield Text()


def _grid(outcome: Outcome, batch: int, listed: list[dict[str, Any]]) -> Iterator[RenderableType]:
    yield Text.assemble(
        (f"temperature {outcome.temperature:g}" + (f", batch {batch}" if batch > 1 else ""), "bold underline"),
        ("  decode tokens per second: median ± half the distance between the quartiles", "dim"),
    )
    grid = Grid(("", "of plain", "of the\ndefault", "drafts\naccepted", "tokens per\nforward", "calls"))
    winner = outcome.decisions.get(Scope(batch=batch), outcome.decisions[EVERYTHING]).winner
    for row in listed:
        style = "bold" if row["name"] == winner else ""
        mark = " (default)" if row["name"] == outcome.default else ""
        cells = (
            _ratio(row["speedup"], row["spread"]),
            _ratio(row["of_default"], None),
            _shown(row["accepted"], ".0%"),
            _shown(row["tokens_per_forward"], ".2f"),
            str(row["calls"]),
        )
        grid.add_row(Text(row["name"] + mark, style), *(Text(cell, style) for cell in cells))
    yield grid


def _errors(outcome: Outcome) -> dict[str, str]:
    failed = {record.cell.contender: record.error for record in outcome.records if record.error is not None}
    return failed.items()


def _spreads(ratios: dict[str, Spread | None]) -> dict[str, float | None]:
    found = {name: None if ratio is None else ratio.median for name, ratio in ratios.items()}
    over_plain = ratios["speedup"]
    return found | {"spread": None if over_plain is None else (over_plain.high - over_plain.low) / 2}


def _figures(summary: Summary) -> dict[str, Any]:
    return {
        "accepted": summary.acceptance_rate,
        "tokens_per_forward": summary.tokens_per_forward,
        "calls": summary.calls,
    }


def _ratio(value: float | None, spread: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" + (f" ±{spread:.2f}".replace("±0", "±") if spread else "")


def _shown(value: float | None, form: str) -> str:
    return "–" if value is None else f"{value:{form}}"
