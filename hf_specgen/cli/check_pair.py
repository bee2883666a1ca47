"""hf-specgen check-pair: may this draft draft for this target, and what is to be expected of it?"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from hf_specgen.measuring.measurement import Measurement
    from hf_specgen.pairing import PairReport
    from hf_specgen.pairing.loading import Pair

COLOURS = {
    "exact": "green",
    "exact-with-padding": "green",
    "mappable": "green",
    "cross-vocabulary": "yellow",
    "unknown": "yellow",
    "refused": "red",
}
EXIT_CODES = {"unknown": 2, "refused": 1}


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of the draft model.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    measure: Annotated[
        Path | None,
        typer.Option(help="Prompts (.txt, .json, .jsonl): load both models and measure what to expect on them."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="With --measure: tokens per prompt.", min=3)] = 64,
    temperature: Annotated[float, typer.Option(help="With --measure: of sampling; 0 decodes greedily.", min=0.0)] = 0.0,
    limit: Annotated[int, typer.Option(help="With --measure: at most so many of the prompts.", min=1)] = 12,
    dtype: Annotated[str, typer.Option(help="With --measure: as in from_pretrained.")] = "auto",
    draft_quantization: Annotated[
        str | None,
        typer.Option(help="As in load_pair (nf4 …): for the estimates, and --measure.", show_default=False),
    ] = None,
) -> None:
    """Compare the vocabularies of two models id by id, and what their checkpoints hold.

    Reads configs, tokenizers and the headers of the weights only, unless --measure is given. Exit code: 0 usable, 1
    refused, 2 could not be checked.
    """
    from hf_specgen.measuring.prompts import read_prompts
    from hf_specgen.pairing import check_pair

    try:
        prompts = None if measure is None else read_prompts(measure, limit)
        report = check_pair(target, draft, draft_quantization=draft_quantization)
        if prompts and report.usable:
            from hf_specgen.pairing.loading import load_pair

            pair = load_pair(target, draft, dtype=dtype, draft_quantization=draft_quantization)
            report = dataclasses.replace(report, measurement=_measured(pair, prompts, max_new_tokens, temperature))
    except (OSError, ValueError, ImportError) as error:  # a missing folder, a broken config: one line, no traceback
        _give_up(str(error))
    except Exception as error:  # the last resort of a command: 1 means refused, so no traceback may end with it
        _give_up(f"could not be checked ({type(error).__name__}: {error})")
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2, allow_nan=False))
    else:
        _print(report)
    raise typer.Exit(EXIT_CODES.get(report.verdict, 0))


def _give_up(why: str) -> NoReturn:
    typer.echo(f"check-pair: {' '.join(why.split())}", err=True)
    raise typer.Exit(2) from None


def _measured(pair: Pair, prompts: list, max_new_tokens: int, temperature: float) -> Measurement:
    if pair.tokenizer is None:
        raise ValueError("--measure needs the target's tokenizer, and its folder has none.")

    import torch
    from transformers.utils import logging

    from hf_specgen.measuring.measure import measure_pair

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.manual_seed(0)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    return measure_pair(
        pair.target,
        pair.draft,
        prompts,
        tokenizer=pair.tokenizer,
        assistant_tokenizer=pair.assistant_tokenizer,
        max_new_tokens=max_new_tokens,
        **sampling,
    )


def _print(report: PairReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # soft: a reason piped into a file stays one line
    text = Text(report.summary())
    text.highlight_regex(r"(?m)^verdict .*$", f"bold {COLOURS[report.verdict]}")
    console.print(text)
    if report.differing and report.verdict != "cross-vocabulary":  # where nearly all differ, ten say nothing
        table = Table("id", "target", "draft", box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for id_, ours, theirs in report.differing:
            table.add_row(str(id_), Text(repr(ours)), Text(repr(theirs)))  # Text: "[PAD]" is no markup
        console.print("First differing ids:", table, sep="\n")
