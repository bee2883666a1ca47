"""hf-specgen card: a model card for a pair, a quantized draft or a custom_generate repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options, terminal
from .common import words
from .errors import give_up, one_line
from .exit_codes import NO
from .out import checked_out, expanded

NAME = "card"


@one_line(NAME, interrupted="interrupted, nothing was written")
def command(
    target: options.Target,
    draft: options.Draft,
    bench: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="What hf-specgen bench --out has written.", show_default=False)
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What hf-specgen verify --out has written.", show_default=False)
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Card of a pair, draft or custom-generate.", show_default="as the draft is"),
    ] = None,
    title: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Of the card.", show_default="the models' names")
    ] = None,
    notes: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Markdown, put first: where the weights come from.", show_default=False),
    ] = None,
    base_model: Annotated[
        str | None,
        typer.Option(
            metavar="IDS",
            help="On the Hub: what a quantized draft was made from, or a pair's two models.",
            show_default="what its folder states",
        ),
    ] = None,
    target_license: Annotated[
        str | None, typer.Option(metavar="ID", help="Like apache-2.0.", show_default="what its folder states")
    ] = None,
    draft_license: Annotated[
        str | None, typer.Option(metavar="ID", help="Like apache-2.0.", show_default="what its folder states")
    ] = None,
    draft_quantization: options.DraftQuantization = None,
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="File (.md), or folder for a README.md.", show_default="printed")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the card that is there.")] = False,
    as_json: options.Json = False,
) -> None:
    """Write a model card for the Hub, from what was measured.

    How to use the models, what was measured, limits, licences. Figures come from --bench and --certificate alone, which
    must be of this pair; what was not measured is said not to be.
    """
    file = None if out is None else _file(out, overwrite)
    from hf_specgen.cards.card import Wanted, make
    from hf_specgen.files import write_whole

    card = make(
        Wanted(
            target,
            draft,
            bench=bench,
            certificate=certificate,
            kind=kind,
            title=title,
            notes=notes,
            draft_quantization=draft_quantization,
            target_licence=target_license,
            draft_licence=draft_license,
            base_models=words(base_model) or (),
        )
    )
    if file is not None:
        write_whole(file, card.text)
    if as_json:
        terminal.print_json({"file": file and str(file), "metadata": card.metadata, "text": card.text})
    else:
        typer.echo(card.text if file is None else file, nl=file is not None)
    if card.faulty:
        give_up(NAME, "the certificate says FAULT, and so does the card", NO)


def _file(out: Path, overwrite: bool) -> Path:
    """A folder may have a dot in its name: only what ends as Markdown does, or is there already, is a file."""
    out = expanded(out)
    is_file = not out.is_dir() and (out.exists() or out.suffix.lower() in (".md", ".markdown"))
    file = checked_out("--out", out if is_file else out / "README.md")
    if file.is_file() and not overwrite:
        raise FileExistsError(f"{file} is there already: pass --overwrite to replace it.")
    return file
