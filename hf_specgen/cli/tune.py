"""hf-specgen tune: the best settings for a pair on this machine, as a file that generate() takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import INTERRUPTED, give_up, numbers, one_line, quiet, words

if TYPE_CHECKING:
    from hf_specgen.config import SpecConfig
    from hf_specgen.tuning import Tuner


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    draft: Annotated[
        str, typer.Argument(help="Of the draft model. Without one: lookup or nothing.", show_default=False)
    ] = "",
    prompts: Annotated[
        Path | None, typer.Option(help="Own prompts: .txt, .json, .jsonl, Spec-Bench's file.", show_default=False)
    ] = None,
    tasks: Annotated[
        str,
        typer.Option(
            help="Of code, qa, math, writing, translation, summarization, json, sql, code-editing, or of --prompts.",
            show_default="all",
        ),
    ] = "",
    limit: Annotated[int, typer.Option(help="Prompts, spread over the tasks; at least one of each.")] = 12,
    temperatures: Annotated[str, typer.Option(help="0 is greedy. A call takes what was found at the nearest.")] = "0,1",
    per_task: Annotated[
        bool, typer.Option("--per-task", help="Also look for what is better on each task alone.")
    ] = False,
    batch_sizes: Annotated[
        str,
        typer.Option(
            help="Prompts of a task decoded together, like 1,8. A greedy call takes what was found at the nearest "
            "number of rows; sampled calls, whose ids must not depend on their neighbours, what is best at all of them."
        ),
    ] = "1",
    max_new_tokens: Annotated[int, typer.Option(help="Answers end by themselves, or here.")] = 64,
    repeats: Annotated[int, typer.Option(help="Rounds of the race; those far behind leave after the first.")] = 3,
    minutes: Annotated[
        float | None, typer.Option(help="About as long as it may take.", show_default="as long as it takes")
    ] = None,
    dtype: Annotated[str, typer.Option(help="As in from_pretrained.")] = "auto",
    device: Annotated[str, typer.Option(help="Like cuda:1 or cpu.", show_default="as load_pair chooses")] = "",
    draft_quantization: Annotated[str, typer.Option(help="As in load_pair: nf4, …", show_default=False)] = "",
    out: Annotated[Path, typer.Option(help="Folder for spec_config.json; an older one is replaced.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Find a pair's best settings: source, draft length, draft vocabulary, acceptance rule, or no drafts at all.

    Candidates take turns on each prompt; the median of decode tokens per second over plain decoding's decides, and the
    default wins unless another one is better by more than noise. Exit code: 0 written, 1 the models could not decode,
    2 could not start, 130 interrupted. Nothing is written unless it is 0.
    """
    with one_line("tune"):
        from hf_specgen.tuning import Tuner

        if out.exists() and not out.is_dir():
            raise ValueError(f"--out {out} is a file: pass a folder.")
        with quiet():
            tuner = Tuner(
                target,
                draft or None,
                prompts,
                tasks=words(tasks),
                limit=limit,
                temperatures=numbers("--temperatures", temperatures, float),
                per_task=per_task,
                batch_sizes=numbers("--batch-sizes", batch_sizes, int),
                max_new_tokens=max_new_tokens,
                repeats=repeats,
                minutes=minutes,
                dtype=dtype,
                device=device or None,
                draft_quantization=draft_quantization or None,
            )
    try:
        with one_line("tune", 1), quiet():
            config = _run(tuner)
    except KeyboardInterrupt:
        why = "interrupted, nothing was written (--minutes ends by itself, with what was measured)"
        give_up("tune", why, INTERRUPTED)
    with one_line("tune", 1):
        _show(tuner, config, config.save_pretrained(out), as_json)


def _run(tuner: Tuner) -> SpecConfig:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    options = {"transient": True, "disable": not console.is_terminal, "auto_refresh": False}  # no thread of its own
    with Progress(*columns, console=console, **options) as progress:
        bar = progress.add_task("loading", total=None)

        def listen(what: str, done: int, expected: int) -> None:
            progress.update(bar, completed=done, total=expected, description=what, refresh=True)

        return tuner.run(listen)


def _show(tuner: Tuner, config: SpecConfig, path: Path, as_json: bool) -> None:
    from rich.console import Console

    from hf_specgen.tuning import report
    from hf_specgen.tuning.file import to_dict

    if as_json:
        found = {"file": str(path), "config": to_dict(config), "temperatures": [*map(report.to_dict, tuner.outcomes)]}
        typer.echo(json.dumps(found, indent=2, allow_nan=False))
        return
    console = Console(highlight=False, soft_wrap=True)  # soft: a line piped into a file stays one line
    console.print(report.table(tuner.outcomes))
    drafts = "" if tuner.draft is None else "assistant_model=draft, "
    typer.echo(f"{path} is written. In Python:")
    typer.echo(f'hf_specgen.enable(target, {drafts}spec_config="{path.parent}")')
