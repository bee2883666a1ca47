"""hf-specgen tune: the best settings for a pair on this machine, as a file that generate() takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .common import numbers, quiet, words
from .errors import one_line
from .out import checked_out

if TYPE_CHECKING:
    from hf_specgen.config import SpecConfig
    from hf_specgen.tuning import Tuner

STOPPED = "interrupted, nothing was written (--minutes ends by itself, with what was measured)"


@one_line("tune", interrupted=STOPPED)
def command(
    target: options.Target,
    draft: options.MaybeDraft = None,
    prompts: options.Prompts = None,
    tasks: options.Tasks = None,
    limit: options.Limit = 12,
    per_task: Annotated[
        bool, typer.Option("--per-task", help="Also look for what is better on each task alone.")
    ] = False,
    max_new_tokens: options.MaxNewTokens = 64,
    temperatures: options.Temperatures = "0,1",
    batch_sizes: options.BatchSizes = "1",
    repeats: options.Repeats = 3,
    minutes: Annotated[
        float | None, typer.Option(metavar="N", help="About as long as it may take.", show_default="as it takes")
    ] = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    draft_quantization: options.DraftQuantization = None,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="For spec_config.json; an older one is replaced.")] = Path(
        "."
    ),
    as_json: options.Json = False,
) -> None:
    """Find a pair's best settings here, as a file for generate().

    Source, draft length, draft vocabulary, acceptance rule, or no drafts at all. Candidates take turns on each prompt,
    and those far behind leave after the first of the --repeats; the median of decode tokens per second over plain
    decoding's decides, and the default wins unless another one is better by more than noise.

    Later calls take what was found at the nearest temperature; greedy ones also at the nearest batch size, sampled
    ones, whose ids must not depend on their neighbours, what is best at all of them. Nothing is written unless the exit
    code is 0.
    """
    out = checked_out("--out", out, folder=True)
    from hf_specgen.tuning import Tuner

    with quiet():
        tuner = Tuner(
            target,
            draft,
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
            device=device,
            draft_quantization=draft_quantization,
        )
        with terminal.bar(terminal.console(stderr=True)) as listen:
            config = tuner.run(listen)
    path = None
    try:
        path = config.save_pretrained(out)
    finally:  # also if the disk is full
        _show(tuner, config, path, as_json)


def _show(tuner: Tuner, config: SpecConfig, path: Path | None, as_json: bool) -> None:
    from hf_specgen.tuning import report
    from hf_specgen.tuning.file import to_dict

    if as_json:
        found = {
            "file": path and str(path),
            "config": to_dict(config),
            "temperatures": [*map(report.to_dict, tuner.outcomes)],
        }
        terminal.print_json(found)
        return
    terminal.console().print(report.table(tuner.outcomes))
    if path is None:
        return
    drafts = "" if tuner.draft is None else "assistant_model=draft, "
    typer.echo(f"{path} is written. In Python:")
    typer.echo(f'hf_specgen.enable(target, {drafts}spec_config="{path.parent}")')
