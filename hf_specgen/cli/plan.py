"""hf-specgen plan: where do this target and this draft go, and is there room?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hf_specgen.planning.plan import Plan


def command(
    target: Annotated[str, typer.Argument(help="Folder, GGUF file or Hub id of the target model.", show_default=False)],
    draft: Annotated[str, typer.Argument(help="Folder, GGUF file or Hub id of the draft model.", show_default=False)],
    gpus: Annotated[
        str,
        typer.Option(help='Like "4x80GB" or "2x24GB,1x80GB". Without it and --cpu: this machine.', show_default=False),
    ] = "",
    cpu: Annotated[
        str, typer.Option(help="Memory to offload to, or to compute in without GPUs.", show_default=False)
    ] = "",
    batch_size: Annotated[int, typer.Option(min=1, help="Rows that both caches hold.")] = 1,
    length: Annotated[int, typer.Option(min=1, help="Tokens per row, prompt and answer.")] = 4096,
    target_quantization: Annotated[str, typer.Option(help="nf4, fp4, int8, …", show_default=False)] = "",
    draft_quantization: Annotated[str, typer.Option(help="nf4, fp4, int8, …", show_default=False)] = "",
    draft_device: Annotated[
        str, typer.Option(help="A number, or cpu. Default: that of the target's head.", show_default=False)
    ] = "",
    reserve: Annotated[str, typer.Option(help="Kept free on each computing device.")] = "2GiB",
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON, in bytes.")] = False,
) -> None:
    """Plan the devices of a pair from configs and safetensors headers. No weights are read.

    Exit code: 0 it fits, 1 it does not (or only with a part of the target offloaded), 2 could not tell.
    """
    from hf_specgen.planning.plan import SpecMemoryError, parse_devices, plan_pair

    try:
        plan = plan_pair(
            target,
            draft,
            devices=parse_devices(gpus, cpu or None) if gpus or cpu else None,
            target_quantization=target_quantization or None,
            draft_quantization=draft_quantization or None,
            draft_device=draft_device or None,
            batch_size=batch_size,
            length=length,
            reserve=reserve,
            dtype=dtype,
        )
    except SpecMemoryError as error:
        typer.echo(f"plan: {error}", err=True)
        raise typer.Exit(1) from None
    except (ImportError, OSError, ValueError) as error:  # no accelerate, a missing folder, a wrong size: no traceback
        typer.echo(f"plan: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(plan.to_dict(), indent=2))
    else:
        _print(plan)
    raise typer.Exit(0 if plan.fits else 1)


def _print(plan: Plan) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # soft: a note piped into a file stays one line
    head, *rows = plan.rows()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in head:
        table.add_column(column.replace(" ", "\n"), justify="right", vertical="bottom")
    for row in rows:
        table.add_row(*row)
    text = Text(plan.summary())
    text.highlight_regex(r"^fits.*", "bold green" if plan.fits else "bold yellow")
    console.print(table, "1 GB is 10⁹ bytes", text, sep="\n")
