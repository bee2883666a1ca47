"""hf-specgen plan: where do this target and this draft go, and is there room?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .errors import give_up, one_line
from .exit_codes import DONE, NO

if TYPE_CHECKING:
    from hf_specgen.planning.plan import Plan

NAME = "plan"


@one_line(NAME)
def command(
    target: options.Target,
    draft: options.Draft,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="LIST", help='Like "4x80GB" or "2x24GB,1x80GB".', show_default="this machine's"),
    ] = None,
    cpu: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory to offload to, or to compute in without GPUs.", show_default="this machine's"
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Rows that both caches hold.")] = 1,
    length: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens per row, prompt and answer.")] = 4096,
    target_quantization: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="As --draft-quantization, for the target.", show_default="as its files are"),
    ] = None,
    draft_quantization: options.DraftQuantization = None,
    draft_device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A number, or cpu.", show_default="that of the target's head"),
    ] = None,
    reserve: Annotated[str, typer.Option(metavar="SIZE", help="Kept free on each computing device.")] = "2GiB",
    dtype: options.Dtype = "auto",
    as_json: options.Json = False,
) -> None:
    """Plan on which devices a pair goes, and whether there is room.

    From configs and safetensors headers: no weights are read. --json gives bytes, or why there is no place for them.
    """
    from hf_specgen.planning.plan import SpecMemoryError, parse_devices, plan_pair

    try:
        plan = plan_pair(
            target,
            draft,
            devices=parse_devices(gpus or "", cpu) if gpus or cpu else None,
            target_quantization=target_quantization,
            draft_quantization=draft_quantization,
            draft_device=draft_device,
            batch_size=batch_size,
            length=length,
            reserve=reserve,
            dtype=dtype,
        )
    except SpecMemoryError as error:
        if as_json:
            terminal.print_json({"fits": False, "why": str(error)})
        give_up(NAME, str(error), NO)
    if as_json:
        terminal.print_json(plan.to_dict())
    else:
        _print(plan)
    raise typer.Exit(DONE if plan.fits else NO)


def _print(plan: Plan) -> None:
    from rich.text import Text

    from hf_specgen.display.grid import Grid

    console = terminal.console()
    head, *rows = plan.rows()
    table = Grid(column.replace(" ", "\n") for column in head)
    for row in rows:
        table.add_row(*row)
    text = Text(plan.summary())
    text.highlight_regex(r"^fits.*", "bold green" if plan.fits else "bold yellow")
    console.print(table, "1 GB is 10⁹ bytes", text, sep="\n")
