"""The `hf-specgen` command: one file per subcommand, which imports torch and the like only when it runs."""

from importlib.metadata import version
from typing import Annotated

import typer

from . import bench, card, check_pair, cost, demo, plan, quantize, recommend, tune, verify

app = typer.Typer(
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(version("hf-specgen"))
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """Lossless, batched speculative decoding inside Hugging Face generate()."""


app.command("recommend")(recommend.command)
app.command("check-pair")(check_pair.command)
app.command("plan")(plan.command)
app.command("quantize")(quantize.command)
app.command("bench")(bench.command)
app.command("tune")(tune.command)
app.command("verify")(verify.command)
app.command("cost")(cost.command)
app.command("card")(card.command)
app.command("demo")(demo.command)


def main() -> None:
    app(prog_name="hf-specgen")
