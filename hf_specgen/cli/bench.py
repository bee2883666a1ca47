"""hf-specgen bench: a pair against plain decoding, stock assisted decoding and other packages, on several tasks."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import INTERRUPTED, give_up, numbers, one_line, quiet, words

if TYPE_CHECKING:
    from hf_specgen.benchmarking import Bench, Record


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    draft: Annotated[
        str, typer.Argument(help="Of the draft model. Not needed by plain, compiled and lookup.", show_default=False)
    ] = "",
    against: Annotated[
        str,
        typer.Option(
            help="Who decodes: plain, compiled, stock, stock-kN, ours, ours-kN, draft (ours without lookup), lookup "
            "(ours without a draft), flashspec, economize, economize-draft. stock-k, ours-k: once for each of -k.",
            show_default="plain, stock, ours, other packages that are installed",
        ),
    ] = "",
    tasks: Annotated[
        str,
        typer.Option(
            help="Of code, qa, math, writing, translation, summarization, json, sql, code-editing, or of --prompts.",
            show_default="all",
        ),
    ] = "",
    per_task: Annotated[int, typer.Option(min=1, help="Prompts of each task.")] = 2,
    prompts: Annotated[
        Path | None, typer.Option(help="Own prompts: .txt, .json, .jsonl, Spec-Bench's file.", show_default=False)
    ] = None,
    temperatures: Annotated[str, typer.Option(help="0 is greedy.")] = "0",
    ks: Annotated[
        str, typer.Option("--num-assistant-tokens", "-k", help="Like 1,2,4 or 1-8.", show_default=False)
    ] = "",
    strategies: Annotated[str, typer.Option(help="Of ours, for sampling: rejection, block, coupled.")] = "rejection",
    batch_sizes: Annotated[str, typer.Option(help="Prompts of a task decoded together.")] = "1",
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, help="Prompts of all tasks decoded together: the throughput.", show_default=False),
    ] = None,
    contexts: Annotated[str, typer.Option(help="Fill prompts up to so many tokens; 0 leaves them.")] = "0",
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Answers end by themselves, or here.")] = 128,
    top_k: Annotated[int, typer.Option(min=0, help="Of sampling; 0 leaves all tokens.")] = 0,
    top_p: Annotated[float, typer.Option(help="Of sampling; 1 leaves all tokens.")] = 1.0,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repetitions.")] = 3,
    ideal: Annotated[bool, typer.Option("--ideal", help="Also time the models' bare forwards.")] = False,
    dtype: Annotated[str, typer.Option(help="As in from_pretrained.")] = "auto",
    device: Annotated[str, typer.Option(help="Like cuda:1 or cpu.", show_default="as load_pair chooses")] = "",
    draft_quantization: Annotated[str, typer.Option(help="As in load_pair: nf4, …", show_default=False)] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for records.jsonl and manifest.json. An interrupted bench goes on from it."),
    ] = None,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON, not the table.")] = False,
) -> None:
    """Measure speculative decoding on nine kinds of tasks: contenders take turns on each prompt, prefills included.

    Greedy answers are compared with plain decoding's, token by token. Stock assisted decoding and flashspec take one
    row at a time: a batch is then decoded row by row. Exit code: 0 measured, 1 some calls failed, 2 could not start or
    not write, 130 interrupted (what was measured is kept and shown).
    """
    with one_line("bench"):
        if plots is not None:
            from hf_specgen.benchmarking.plots import check_available

            check_available()
        from hf_specgen.benchmarking import Bench, Settings

        settings = Settings(
            against=words(against),
            tasks=words(tasks),
            per_task=per_task,
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
                draft or None,
                settings,
                prompts=prompts,
                dtype=dtype,
                device=device or None,
                draft_quantization=draft_quantization or None,
                out=out,
                command=shlex.join(["hf-specgen", *sys.argv[1:]]),
            )
            stopped = _run(bench)
        _show(bench, as_json, plots)
    if isinstance(stopped, OSError):
        give_up("bench", f"{stopped}: {bench.missing()} calls were not made", 2)
    if stopped is not None:
        kept = f"; the same command goes on from {out}" if out else ""
        give_up("bench", f"interrupted, {bench.missing()} calls were not made{kept}", INTERRUPTED)
    raise typer.Exit(1 if any(record.error for record in bench.records) else 0)


def _run(bench: Bench) -> KeyboardInterrupt | OSError | None:
    """What ended it early, once something was measured: Ctrl-C, or a disk that is full."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    said = set()
    options = {"transient": True, "disable": not console.is_terminal, "auto_refresh": False}  # no thread of its own
    with Progress(*columns, console=console, **options) as progress:
        bar = progress.add_task("loading", total=bench.missing())

        def listen(record: Record) -> None:
            cell = record.cell
            label = f"{cell.task} T={cell.temperature:g} {cell.contender}"
            progress.update(bar, advance=1, description=label, refresh=True)
            if record.error and (cell.contender, record.error) not in said:
                said.add((cell.contender, record.error))
                console.print(f"bench: {cell.contender}: {record.error}", markup=False)

        try:
            bench.run(listen)
        except (KeyboardInterrupt, OSError) as stopped:
            if isinstance(stopped, OSError) and not bench.records:
                raise
            return stopped
    return None


def _show(bench: Bench, as_json: bool, plots: Path | None) -> None:
    from rich.console import Console

    if as_json:
        content = {"manifest": bench.store.manifest, "records": [record.to_dict() for record in bench.records]}
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
    else:
        from hf_specgen.benchmarking.report import table

        Console(highlight=False).print(table(bench.records))
    if plots is not None:
        from hf_specgen.benchmarking.plots import draw

        for path in (drawn := draw(bench.records, plots)):
            typer.echo(path, err=True)
        if not drawn:
            typer.echo("bench: no plots, for there is nothing to compare: name more contenders than plain", err=True)
