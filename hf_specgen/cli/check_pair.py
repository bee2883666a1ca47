"""hf-specgen check-pair: may this draft draft for this target?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_specgen.pairing import PairReport

COLOURS = {"exact": "green", "exact-with-padding": "green", "unknown": "yellow", "refused": "red"}


def command(
    target: Annotated[Path, typer.Argument(help="Folder of the target model.", show_default=False)],
    draft: Annotated[Path, typer.Argument(help="Folder of the draft model.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compare the vocabularies of two local model folders, id by id.

    Reads configs and tokenizers only. Exit code: 0 usable, 1 refused, 2 could not be checked.
    """
    from hf_specgen.pairing import check_pair

    try:
        report = check_pair(target, draft)
    except (OSError, ValueError) as error:  # a missing folder, a broken config: one line, no traceback
        typer.echo(f"check-pair: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)
    raise typer.Exit(0 if report.usable else 1)


def _print(report: PairReport) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # soft: a reason piped into a file stays one line
    text = Text(report.summary())
    text.highlight_regex(r"(?m)^verdict .*$", f"bold {COLOURS[report.verdict]}")
    console.print(text)
    if report.differing:
        table = Table("id", "target", "draft", box=None, pad_edge=False, padding=(0, 3, 0, 0))
        for id_, ours, theirs in report.differing:
            table.add_row(str(id_), Text(repr(ours)), Text(repr(theirs)))  # Text: "[PAD]" is no markup
        console.print("First differing ids:", table, sep="\n")
