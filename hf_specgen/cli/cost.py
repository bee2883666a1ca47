"""hf-specgen cost: what a million tokens cost and how many GPUs a load needs, with and without speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .common import words
from .errors import one_line

if TYPE_CHECKING:
    from hf_specgen.benchmarking.pricing import Cost, Terms, Throughputs
    from hf_specgen.display.grid import Grid

SECONDS_PER_DAY = 86_400


@one_line("cost")
def command(
    price_per_hour: Annotated[
        float | None, typer.Option(metavar="PRICE", help="Of one GPU. Needed.", show_default=False)
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of a bench (--out), or a file of its records.", show_default=False),
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(metavar="X", help="Instead of --results: with speculation.", show_default=False)
    ] = None,
    plain_tokens_per_second: Annotated[
        float | None, typer.Option(metavar="X", help="Instead of --results: without.", show_default=False)
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="NAMES", help="With --results: only these.", show_default="all")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="With --results: only this one.", show_default="each")
    ] = None,
    load: Annotated[
        float | None, typer.Option(metavar="X", help="Tokens per second wanted in all.", show_default=False)
    ] = None,
    tokens_per_day: Annotated[
        float | None, typer.Option(metavar="X", help="The same, per day.", show_default=False)
    ] = None,
    gpus_per_replica: Annotated[int, typer.Option(metavar="N", help="GPUs that this throughput takes.")] = 1,
    utilization: Annotated[
        float, typer.Option(metavar="SHARE", help="Of the paid time, in which tokens are made.")
    ] = 1.0,
    currency: Annotated[str, typer.Option(metavar="SIGN", help="In front of prices.")] = "$",
    as_json: options.Json = False,
) -> None:
    """Price a million tokens, and count the GPUs that a load needs.

    From measured throughput, with and without speculation.
    """
    from hf_specgen.benchmarking.pricing import Terms, costs

    if price_per_hour is None:
        raise ValueError("--price-per-hour is missing: what one GPU costs for an hour.")
    if load is not None and tokens_per_day is not None:
        raise ValueError("--load and --tokens-per-day say the same: pass one of them.")
    wanted = load if tokens_per_day is None else tokens_per_day / SECONDS_PER_DAY
    terms = Terms(price_per_hour, gpus_per_replica, utilization, wanted)
    measured = _measured(results, tokens_per_second, plain_tokens_per_second, words(tasks) or (), batch_size)
    tables = [(one, costs(one.tokens_per_second, terms)) for one in measured]
    if as_json:
        terminal.print_json(_plain(terms, currency, tables))
    else:
        _print(terms, currency, tables)


def _measured(
    results: Path | None, speculative: float | None, plain: float | None, tasks: Sequence[str], batch: int | None
) -> list[Throughputs]:
    from hf_specgen.benchmarking.pricing import by_hand, throughputs
    from hf_specgen.benchmarking.store import read_records

    if results is None:
        if speculative is None or plain is None:
            raise ValueError("Pass --results, or both --tokens-per-second and --plain-tokens-per-second.")
        if tasks or batch is not None:
            raise ValueError("--tasks and --batch-size choose among --results, which is missing.")
        return [by_hand(speculative, plain)]
    if speculative is not None or plain is not None:
        raise ValueError("--results holds the tokens per second: pass either it or them.")
    return throughputs(read_records(results), list(tasks), batch)


def _plain(terms: Terms, currency: str, tables: list[tuple[Throughputs, list[Cost]]]) -> dict:
    listed = [
        (one.setting._asdict() if one.setting else {})
        | {"tasks": list(one.tasks), "calls": one.calls, "left_out": dict(one.left_out)}
        | {"configurations": [asdict(cost) for cost in costs]}
        for one, costs in tables
    ]
    return {"currency": currency} | asdict(terms) | {"tables": listed}


def _print(terms: Terms, currency: str, tables: list[tuple[Throughputs, list[Cost]]]) -> None:
    from rich.text import Text

    console = terminal.console()
    facts = [
        f"{currency}{_money(terms.price_per_hour)} per GPU and hour",
        f"{terms.gpus_per_replica} GPU{'s' if terms.gpus_per_replica > 1 else ''} per replica",
        f"busy {terms.utilization:.0%} of the time",
    ]
    if terms.load is not None:
        facts.append(f"{terms.load:,.6g} tokens/s wanted")
    console.print(Text(", ".join(facts)))
    for one, costs in tables:
        console.print()
        note = "Throughput as given: it holds for the batch and the prompts it was measured with."
        if one.setting:
            console.print(Text(str(one.setting), "bold"))
            tasks = ", ".join(one.tasks)
            note = f"Measured at this setting, over {one.calls} calls each ({tasks}); it holds for no other."
        console.print(Text(note, "dim"))
        console.print(_table(terms, currency, costs))
        for name, why in one.left_out.items():
            console.print(Text(f"left out: {name} ({why})", "yellow"))


def _table(terms: Terms, currency: str, costs: list[Cost]) -> Grid:
    from rich.text import Text

    from hf_specgen.display.grid import Grid

    columns = [("", lambda cost: cost.name)]
    columns.append(("tokens/s\nper GPU", lambda cost: f"{cost.tokens_per_second_per_gpu:,.2f}"))
    if terms.gpus_per_replica > 1:
        columns.append(("tokens/s\nper replica", lambda cost: f"{cost.tokens_per_second:,.2f}"))
    columns.append((f"{currency} per\nmillion", lambda cost: _money(cost.million)))
    columns.append(("saving", lambda cost: _saving(cost, cost.million_saving)))
    if terms.load is not None:
        columns.append(("GPUs", lambda cost: f"{cost.gpus:,}"))
        columns.append((f"{currency} per\nhour", lambda cost: _money(cost.hour)))
        columns.append(("saving", lambda cost: _saving(cost, cost.hour_saving)))
    table = Grid(head for head, _ in columns)
    for cost in costs:
        style = "yellow" if cost.million_saving < 0 else ""
        table.add_row(*(Text(value(cost), style) for _, value in columns))
    return table


def _saving(cost: Cost, share: float) -> str:
    return "–" if cost.name == "plain" else f"{share:.1%}"


def _money(amount: float) -> str:
    """At least two decimals, and three digits that say something."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.3g}"
