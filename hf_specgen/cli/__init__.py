"""The `hf-specgen` command: one file per subcommand, which imports torch and the like only when it runs."""

from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from . import (
    bench,
    card,
    chat,
    check_pair,
    cost,
    demo,
    env,
    exit_codes,
    generate,
    plan,
    quantize,
    recommend,
    standard_streams,
    tune,
    verify,
)
from .errors import TRACEBACK, give_up, one_line

NAME = "hf-specgen"
UsageError = typer.BadParameter.__base__
"""click's, or that of the copy of click which newer typers bring along."""

CONTENTS = {
    "See it work": {"demo": demo},
    "Choose a draft": {"recommend": recommend, "check-pair": check_pair, "plan": plan, "quantize": quantize},
    "Write text": {"generate": generate, "chat": chat},
    "Measure and tune": {"bench": bench, "tune": tune, "cost": cost},
    "Prove and report": {"verify": verify, "card": card, "env": env},
}
"""Panels of the help, in the order in which they are needed."""


class Group(TyperGroup):
    """Whatever ends a command, ends it with one line and one of our exit codes."""

    def main(self, *args: Any, standalone_mode: bool = True, **kwargs: Any) -> None:
        code = None
        try:
            with one_line(NAME):
                try:
                    code = super().main(*args, standalone_mode=False, **kwargs)
                except UsageError as error:
                    inside = error.ctx is not None and error.ctx.parent is not None
                    command, path = (error.ctx.info_name, f"{NAME} {error.ctx.info_name}") if inside else (NAME, NAME)
                    give_up(command, f"{error.format_message().rstrip('.')}. Try: {path} --help", exit_codes.FAILED)
                except SystemExit as ended:
                    if isinstance(ended.__context__, BrokenPipeError):  # click and rich end it with a code of theirs
                        raise BrokenPipeError from None
                    raise
        except typer.Exit as ended:
            code = ended.exit_code
        raise SystemExit(code or exit_codes.DONE)


app = typer.Typer(
    cls=Group,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"{exit_codes.table()}\n\n{TRACEBACK}=1 in the environment prints the traceback of an error, too.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(version(NAME))
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Lossless, batched speculative decoding inside Hugging Face generate()."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for panel, commands in CONTENTS.items():
    for name, module in commands.items():
        app.command(name, rich_help_panel=panel, epilog=exit_codes.of_command(name))(module.command)


def main() -> None:
    standard_streams.prepare()
    app(prog_name=NAME)
