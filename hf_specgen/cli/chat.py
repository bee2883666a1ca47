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
    from .conversation import Conversation
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
        colours = show and not as_json and provenance.begin(NAME)
        chat = Chat(writer, conversation, colours, as_json)
        chat.run()
    from . import figures

    figures.report(chat.stats, stats, advice)


class Chat:
    """The turns. `stats`: of all answers that were not stopped."""

    def __init__(self, writer: Writer, conversation: Conversation, colours: bool, as_json: bool):
        from ..session import SpecSession
        from ..stats import SpecStats

        self.writer, self.conversation, self.colours, self.as_json = writer, conversation, colours, as_json
        self.session, self.stats = SpecSession(), SpecStats()

    def run(self) -> None:
        """Until the input ends, or says so."""
        while (line := _next_line()) is not None:
            said = line.strip()
            if said == "/exit":
                return
            if said == "/reset":
                self.conversation.reset()
                self.session.reset()
            elif said == "/stats":
                terminal.console(stderr=True).print(str(self.stats), markup=False)
            elif said in ("/help", "/?") or (said.startswith("/") and " " not in said):
                typer.echo("; ".join(f"{name}: {what}" for name, what in COMMANDS.items()), err=True)
            elif said:
                self._turn(line)

    def _turn(self, said: str) -> None:
        """An answer. One that cannot be given, or is stopped by Ctrl-C, does not end the chat."""
        from . import figures
        from .streaming import nowhere, on_stdout

        pieces: list[str] = []
        answer, why = None, ""
        try:
            with contextlib.nullcontext(nowhere) if self.as_json else on_stdout(self.colours) as show:

                def write(piece: str, source: str | None) -> None:
                    pieces.append(piece)
                    show(piece, source)

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
        if why:
            typer.echo(f"{NAME}: {why}", err=True)
        elif not self.as_json:
            terminal.console(stderr=True).print(figures.line(answer), style="dim", markup=False)


def _next_line() -> str | None:
    """What was typed, with line editing on a terminal; None at the end of the input."""
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\r\n") if line else None
    with contextlib.suppress(ImportError):  # not on every platform
        import readline  # noqa: F401 (input() uses it)
    try:
        return input("> ")
    except EOFError:
        typer.echo()
        return None
    except KeyboardInterrupt:
        typer.echo()  # what is said of it gets a line of its own
        raise
