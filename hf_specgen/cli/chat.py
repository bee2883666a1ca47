"""hf-specgen chat: a conversation, of which each turn reads only what is new."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import typer

from . import options, provenance, terminal
from .common import quiet
from .errors import described, one_line

if TYPE_CHECKING:
    from .streaming import Write
    from .writer import Writer

NAME = "chat"
COMMANDS = {"/exit": "leave", "/reset": "begin anew", "/stats": "figures of the chat so far"}


@one_line(NAME)
def command(
    target: options.Target,
    draft: options.MaybeDraft = None,
    system: options.System = None,
    max_new_tokens: options.MaxNewTokens = 512,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = None,
    top_k: options.TopK = None,
    seed: options.Seed = None,
    strategy: options.Strategy = None,
    k: options.K = None,
    spec_config: options.SpecConfig = None,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    draft_quantization: options.DraftQuantization = None,
    show: options.Show = False,
    stats: options.Stats = False,
    advice: options.AdviceToo = False,
    as_json: options.Json = False,
) -> None:
    """Talk to a target; both models keep their caches between turns.

    A line is a turn, typed or piped. /exit (or Ctrl-D) leaves, /reset begins anew, /stats prints figures; Ctrl-C stops
    an answer, or leaves where none is being given. Without a chat template the text simply goes on. --json prints an
    object per answer, each on a line of its own.
    """
    from .conversation import Conversation
    from .streaming import nowhere, to_stdout
    from .writer import Writer, warnings_of_a_line

    with quiet(), warnings_of_a_line(NAME):
        writer = Writer(
            target,
            draft,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            strategy=strategy,
            k=k,
            spec_config=spec_config,
            dtype=dtype,
            device=device,
            draft_quantization=draft_quantization,
        )
        conversation = Conversation(writer.tokenizer, system)
        with terminal.spinner("loading"):
            writer.load()
        if sys.stdin.isatty():
            told = ", ".join(f"{name} {what}" for name, what in COMMANDS.items())
            terminal.console(stderr=True).print(f"{told}; Ctrl-C stops an answer.", style="dim")
        write = nowhere if as_json else to_stdout(provenance.begin(NAME) if show else False)
        chat = Chat(writer, conversation, write, as_json)
        chat.run()
    from . import figures

    figures.report(chat.stats, stats, advice)


class Chat:
    """The turns. `stats`: of all answers that were not stopped."""

    def __init__(self, writer: Writer, conversation, write: Write, as_json: bool):
        from ..session import SpecSession
        from ..stats import SpecStats

        self.writer, self.conversation, self.write, self.as_json = writer, conversation, write, as_json
        self.session, self.stats = SpecSession(), SpecStats()

    def run(self) -> None:
        """Until the input ends, or says so."""
        while (said := _next_line()) not in (None, "/exit"):
            if said == "/reset":
                self.conversation.reset()
                self.session.reset()
            elif said == "/stats":
                terminal.console(stderr=True).print(str(self.stats), markup=False)
            elif said in ("/help", "/?") or (said.startswith("/") and " " not in said):
                typer.echo("; ".join(f"{name}: {what}" for name, what in COMMANDS.items()), err=True)
            elif said:
                self._turn(said)

    def _turn(self, said: str) -> None:
        """An answer. One that cannot be given, or is stopped by Ctrl-C, does not end the chat."""
        from . import figures

        pieces: list[str] = []

        def write(piece: str, source: str | None) -> None:
            pieces.append(piece)
            self.write(piece, source)

        answer, why = None, ""
        try:
            answer = self.writer.answer(self.conversation.ask(said), write, self.session)
        except KeyboardInterrupt:
            why = "stopped"
        except ValueError as error:  # a text that has become too long, say
            why = f"{described(error)} (/reset begins anew)"
        self.conversation.answered("".join(pieces))
        if answer is not None:
            self.stats.add(answer.stats)
        if self.as_json and answer is not None:
            terminal.print_json(figures.to_dict(answer), indent=None)
        elif pieces and not self.as_json:
            typer.echo()
        if why:
            typer.echo(f"{NAME}: {why}", err=True)
        elif not self.as_json:
            terminal.console(stderr=True).print(figures.line(answer), style="dim", markup=False)


def _next_line() -> str | None:
    """What was typed, with line editing on a terminal; None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.strip() if line else None
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # noqa: F401 (input() uses it)
    try:
        return input("> ").strip()
    except EOFError:
        typer.echo()
        return None
