"""The `hf-specgen` command: one file per subcommand, which imports torch and the like only when it runs."""

import typer

from . import check_pair, demo

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()  # without it typer drops the name of a lone command
def _root() -> None:
    """Lossless, batched speculative decoding inside Hugging Face generate()."""


app.command("check-pair")(check_pair.command)
app.command("demo")(demo.command)


def main() -> None:
    app(prog_name="hf-specgen")
