"""hf-specgen quantize: a quantized copy of a draft, with its model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options, terminal
from .common import quiet
from .errors import give_up, one_line
from .exit_codes import NO
from .out import checked_out

NAME = "quantize"


@one_line(NAME, interrupted="interrupted, nothing is left of it")
def command(
    draft: Annotated[Path, typer.Argument(metavar="DRAFT", help="Folder of the dense draft.", show_default=False)],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="NAME", help="nf4, fp4, int8, torchao-int8, int4 or awq (see above).", show_default=False
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder to make.", show_default=False)],
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text for awq.", show_default="Python's own source code")
    ] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Weights per scale, for int4 and awq: 32, 64 or 128.",
            show_default="the largest that fits",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write a quantized copy of a draft, checked to say what it says.

    Its head is quantized, too. nf4, fp4 and int8 are bitsandbytes' formats, torchao-int8 is torchao's. int4 and awq are
    4-bit integers in AutoAWQ's file format, which transformers loads through gptqmodel: int4 rounds to the nearest, awq
    also chooses each group's range by the activations on a text. (--draft-quantization int4 of other commands is
    torchao's, made from a dense draft while it is loaded: that one cannot be saved.)
    """
    out = checked_out("--out", out, folder=True)
    from ..quantization.card import command as used
    from ..quantization.writing import NotLikeOriginalError, write_quantized

    try:
        with quiet(), terminal.bar(terminal.console(stderr=True)) as listen:
            written = write_quantized(draft, out, to, group_size=group_size, calibration=calibration, listener=listen)
    except NotLikeOriginalError as error:
        if as_json:
            terminal.print_json({"written": False, "method": to, "why": str(error)})
        give_up(NAME, str(error), NO)
    if as_json:
        terminal.print_json(
            {
                "written": True,
                "folder": str(out),
                "method": written.method,
                "bytes_before": written.bytes_before,
                "bytes_after": written.bytes_after,
                "likeness": written.likeness,
                "same_choice": written.same_choice,
                "positions": written.positions,
                "command": used(written),
            }
        )
        return
    typer.echo(
        f"{out}: {written.bytes_after / 1e6:.1f} MB, before {written.bytes_before / 1e6:.1f} MB; cosine of the logits "
        f"{written.likeness:.3f}, same best token at {written.same_choice:.0%} of {written.positions} positions\n"
        f"{used(written)}"
    )
