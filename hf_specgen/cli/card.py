"""hf-specgen card: a model card for a pair, a quantized draft or a custom_generate repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .common import give_up, one_line, words

NAME, NOT_WRITTEN = "card", 2


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of the draft model.", show_default=False)],
    bench: Annotated[
        Path | None, typer.Option(help="Folder that hf-specgen bench --out has written.", show_default=False)
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="File that hf-specgen verify --out has written.", show_default=False)
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="Card of a pair, of a draft, or of a custom-generate repository.", show_default="as the draft is"
        ),
    ] = "",
    title: Annotated[str, typer.Option(help="Of the card.", show_default="the models' names")] = "",
    notes: Annotated[
        Path | None,
        typer.Option(help="Markdown of your own, put first: where the weights come from.", show_default=False),
    ] = None,
    base_model: Annotated[
        str, typer.Option(help="Ids on the Hub, for the metadata.", show_default="TARGET and DRAFT, if they are ids")
    ] = "",
    target_license: Annotated[
        str, typer.Option(help="As the Hub writes it: apache-2.0.", show_default="what its folder states")
    ] = "",
    draft_license: Annotated[str, typer.Option(help="The same.", show_default="what its folder states")] = "",
    draft_quantization: Annotated[str, typer.Option(help="As in bench and verify: nf4, …", show_default=False)] = "",
    out: Annotated[Path | None, typer.Option(help="File, or folder for a README.md.", show_default="printed")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the card that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print metadata, text and file as JSON.")] = False,
) -> None:
    """Write a model card with the Hub's metadata: how to use it, what was measured, limits, licences.

    Figures come from --bench and --certificate alone, which must be of this pair; what was not measured is said not to
    be. Exit code: 0 written, 1 written, and the certificate says FAULT, 2 could not be written.
    """
    with one_line(NAME, NOT_WRITTEN):
        file = None if out is None else _file(out, overwrite)
        from hf_specgen.cards.card import Wanted, make

        card = make(
            Wanted(
                target,
                draft,
                bench=bench,
                certificate=certificate,
                kind=kind or None,
                title=title or None,
                notes=notes,
                draft_quantization=draft_quantization or None,
                target_licence=target_license or None,
                draft_licence=draft_license or None,
                base_models=words(base_model) or (),
            )
        )
        if file is not None:
            _write(file, card.text)
    if as_json:
        told = {"file": None if file is None else str(file), "metadata": card.metadata, "text": card.text}
        typer.echo(json.dumps(told, indent=2, allow_nan=False))
    else:
        typer.echo(card.text if file is None else file, nl=file is not None)
    if card.faulty:
        give_up(NAME, "the certificate says FAULT, and so does the card", 1)


def _file(out: Path, overwrite: bool) -> Path:
    file = out / "README.md" if out.is_dir() or not out.suffix else out
    if file.exists() and not overwrite:
        raise FileExistsError(f"{file} is there already: pass --overwrite to replace it.")
    return file


def _write(file: Path, text: str) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partly = file.with_name(f"{file.name}.partly")
    try:
        partly.write_text(text, encoding="utf-8")
        partly.replace(file)
    finally:
        partly.unlink(missing_ok=True)
