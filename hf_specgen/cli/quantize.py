"""hf-specgen quantize: a quantized copy of a draft, with its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    draft: Annotated[Path, typer.Argument(help="Folder of the dense draft.", show_default=False)],
    to: Annotated[
        str, typer.Option("--to", help="nf4, fp4, int8, torchao-int8, int4 or awq (see below).", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder to make.", show_default=False)],
    calibration: Annotated[
        Path | None, typer.Option(help="Text for awq.", show_default="Python's own source code")
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(help="Weights per scale, for int4 and awq: 32, 64 or 128.", show_default="the largest that fits"),
    ] = None,
) -> None:
    """Write a quantized copy of a draft, its head included, and check that it loads and says what the draft says.

    nf4, fp4 and int8 are bitsandbytes' formats, torchao-int8 is torchao's. int4 and awq are 4-bit integers in AutoAWQ's
    file format, which transformers loads through gptqmodel: int4 rounds to the nearest, awq also chooses each group's
    range by the activations on a text. (load_pair's draft_quantization="int4" is torchao's, made from a dense draft
    while it is loaded: that one cannot be saved.)

    Exit code: 0 written, 1 not good enough (nothing is left of it), 2 could not start.
    """
    from transformers.utils import logging

    from ..quantization.card import command as used
    from ..quantization.writing import NotLikeOriginalError, write_quantized

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        written = write_quantized(draft, out, to, group_size=group_size, calibration=calibration)
    except NotLikeOriginalError as error:
        typer.echo(f"quantize: {error}", err=True)
        raise typer.Exit(1) from None
    except (OSError, ValueError, ImportError) as error:
        typer.echo(f"quantize: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(
        f"{out}: {written.bytes_after / 1e6:.1f} MB, before {written.bytes_before / 1e6:.1f} MB; cosine of the logits "
        f"{written.likeness:.3f}, same best token at {written.same_choice:.0%} of {written.positions} positions\n"
        f"{used(written)}"
    )
