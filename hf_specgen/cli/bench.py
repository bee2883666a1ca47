"""hf-specgen bench: a pair against plain decoding, stock assisted decoding and other packages, on several tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .common import command_line, numbers, quiet, words
from .errors import give_up, one_line
from .exit_codes import DONE, FAILED, INTERRUPTED, NO
from .out import checked_out

if TYPE_CHECKING:
    from hf_specgen.benchmarking import Bench, Record

NAME = "bench"


@one_line(NAME)
def command(
    target: options.Target,
    draft: options.MaybeDraft = None,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Who decodes: plain, compiled, stock, stock-kN, ours, ours-kN, draft (ours without lookup), lookup "
            "(ours without a draft), flashspec, economize, economize-draft. stock-k, ours-k: once for each of -k.",
            show_default="plain, stock, ours, other packages that are installed",
        ),
    ] = None,
    prompts: options.Prompts = None,
    tasks: options.Tasks = None,
    prompts_per_task: Annotated[int, typer.Option(metavar="N", min=1, help="Prompts to take of each task.")] = 2,
    max_new_tokens: options.MaxNewTokens = 128,
    temperatures: options.Temperatures = "0",
    top_p: Annotated[float, typer.Option(metavar="P", help="Of sampling; 1 leaves all tokens.")] = 1.0,
    top_k: Annotated[int, typer.Option(metavar="N", min=0, help="Of sampling; 0 leaves all tokens.")] = 0,
    strategies: options.Strategies = "rejection",
    ks: Annotated[
        str | None,
        typer.Option("--num-assistant-tokens", "-k", metavar="LIST", help="Like 1,2,4 or 1-8.", show_default=False),
    ] = None,
    batch_sizes: options.BatchSizes = "1",
    concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Prompts of all tasks decoded together: the throughput.", show_default=False
        ),
    ] = None,
    contexts: Annotated[
        str, typer.Option(metavar="LIST", help="Fill prompts up to so many tokens; 0 leaves them.")
    ] = "0",
    repeats: options.Repeats = 3,
    ideal: Annotated[bool, typer.Option("--ideal", help="Also time the models' bare forwards.")] = False,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    draft_quantization: options.DraftQuantization = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="For records.jsonl and manifest.json. An interrupted bench goes on from it.",
            show_default=False,
        ),
    ] = None,
    plots: Annotated[Path | None, typer.Option(metavar="FOLDER", help="For plots.", show_default=False)] = None,
    as_json: options.Json = False,
) -> None:
    """Measure a pair against plain and stock decoding on nine tasks.

    Contenders take turns on each prompt, prefills included. Greedy answers are compared with plain decoding's, token by
    token. Stock assisted decoding and flashspec take one row at a time: a batch is then decoded row by row. Plain,
    compiled and lookup need no draft. What was measured when Ctrl-C or a full disk ended it is kept and shown.
    """
    out, plots = checked_out("--out", out, folder=True), checked_out("--plots", plots, folder=True)
    if plots is not None:
        from hf_specgen.benchmarking.plots import check_available

        check_available()
    from hf_specgen.benchmarking import Bench, Settings

    settings = Settings(
        against=words(against),
        tasks=words(tasks),
        per_task=prompts_per_task,
        temperatures=numbers("--temperatures", temperatures, float),
        ks=numbers("-k", ks, int),
        strategies=words(strategies) or (),
        batch_sizes=numbers("--batch-sizes", batch_sizes, int),
        contexts=numbers("--contexts", contexts, int),
        concurrency=concurrency,
        max_new_tokens=max_new_tokens,
        top_k=top_k,
        top_p=top_p,
        repeats=repeats,
        ideal=ideal,
    )
    with quiet():
        bench = Bench(
            target,
            draft,
            settings,
            prompts=prompts,
            dtype=dtype,
            device=device,
            draft_quantization=draft_quantization,
            out=out,
            command=command_line(),
        )
        stopped = _run(bench)
    try:
        _show(bench, as_json)
    finally:  # also if whatever reads stdout has gone
        if plots is not None:
            _draw(bench, plots)
    if isinstance(stopped, OSError):
        give_up(NAME, f"{stopped}: {bench.missing()} calls were not made", FAILED)
    if stopped is not None:
        kept = f"; the same command goes on from {out}" if out else ""
        give_up(NAME, f"interrupted, {bench.missing()} calls were not made{kept}", INTERRUPTED)
    raise typer.Exit(NO if any(record.error for record in bench.records) else DONE)


def _run(bench: Bench) -> KeyboardInterrupt | OSError | None:
    """What ended it early, once something was measured: Ctrl-C, or a disk that is full."""
    console = terminal.console(stderr=True)
    said = set()
    with terminal.bar(console, bench.missing()) as step:

        def listen(record: Record) -> None:
            cell = record.cell
            step(f"{cell.task} T={cell.temperature:g} {cell.contender}")
            if record.error and (cell.contender, record.error) not in said:
                said.add((cell.contender, record.error))
                console.print(f"bench: {cell.contender}: {record.error}", markup=False)

        try:
            bench.run(listen)
        except (KeyboardInterrupt, OSError) as stopped:
            if not bench.records:
                raise
            return stopped
    return None


def _show(bench: Bench, as_json: bool) -> None:
    if as_json:
        content = {"manifest": bench.store.manifest, "records": [record.to_dict() for record in bench.records]}
        terminal.print_json(content)
        return
    from hf_specgen.benchmarking.report import table

    terminal.console().print(table(bench.records), soft_wrap=False, crop=False)


def _draw(bench: Bench, plots: Path) -> None:
    from hf_specgen.benchmarking.plots import draw

    for path in (drawn := draw(bench.records, plots)):
        typer.echo(path, err=True)
    if not drawn:
        typer.echo("bench: no plots, for there is nothing to compare: name more contenders than plain", err=True)
