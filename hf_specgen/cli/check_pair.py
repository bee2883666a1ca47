"""hf-specgen check-pair: may this draft draft for this target, and what is to be expected of it?"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .common import quiet
from .errors import one_line
from .exit_codes import DONE, FAILED, NO

if TYPE_CHECKING:
    from hf_specgen.measuring.measurement import Measurement
    from hf_specgen.pairing import PairReport
    from hf_specgen.pairing.loading import Pair

EXIT_CODES = {"unknown": FAILED, "refused": NO}


@one_line("check-pair")
def command(
    target: options.Target,
    draft: options.Draft,
    measure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Load both models and measure what to expect on these prompts: {options.PROMPTS}.",
            show_default=False,
        ),
    ] = None,
    limit: options.Limit = 12,
    max_new_tokens: options.MaxNewTokens = 64,
    temperature: options.Temperature = 0.0,
    dtype: options.Dtype = "auto",
    draft_quantization: options.DraftQuantization = None,
    as_json: options.Json = False,
) -> None:
    """Tell whether a draft fits a target, and what to expect of it.

    Compares the vocabularies id by id, and what the checkpoints hold. Reads configs, tokenizers and the headers of the
    weights only. The other options matter with --measure (and --draft-quantization for the estimates, too).
    """
    from hf_specgen.measuring.prompts import read_prompts
    from hf_specgen.pairing import check_pair

    prompts = None if measure is None else read_prompts(measure, limit)
    report = check_pair(target, draft, draft_quantization=draft_quantization)
    if prompts and report.usable:
        from hf_specgen.pairing.loading import load_pair

        with quiet(), terminal.bar(terminal.console(stderr=True)) as listen:
            pair = load_pair(target, draft, dtype=dtype, draft_quantization=draft_quantization)
            measurement = _measured(pair, prompts, max_new_tokens, temperature, listen)
        report = dataclasses.replace(report, measurement=measurement)
    if as_json:
        terminal.print_json(report.to_dict())
    else:
        _print(report)
    raise typer.Exit(EXIT_CODES.get(report.verdict, DONE))


def _measured(
    pair: Pair, prompts: list, max_new_tokens: int, temperature: float, listen: terminal.Listener
) -> Measurement:
    if pair.tokenizer is None:
        raise ValueError("--measure needs the target's tokenizer, and its folder has none.")

    import torch

    from hf_specgen.measuring.measure import measure_pair

    torch.manual_seed(0)
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    return measure_pair(
        pair.target,
        pair.draft,
        prompts,
        tokenizer=pair.tokenizer,
        assistant_tokenizer=pair.assistant_tokenizer,
        max_new_tokens=max_new_tokens,
        listener=listen,
        **sampling,
    )


def _print(report: PairReport) -> None:
    from rich.text import Text

    from hf_specgen.display.grid import Grid
    from hf_specgen.display.pair import COLOURS

    console = terminal.console()
    text = Text(report.summary())
    text.highlight_regex(r"(?m)^verdict .*$", f"bold {COLOURS[report.verdict].terminal}")
    console.print(text)
    if report.differing and report.verdict != "cross-vocabulary":  # where nearly all differ, ten say nothing
        table = Grid(("id", "target", "draft"), justify="left")
        for id_, ours, theirs in report.differing:
            table.add_row(str(id_), Text(repr(ours)), Text(repr(theirs)))  # Text: "[PAD]" is no markup
        console.print("First differing ids:", table, sep="\n")
