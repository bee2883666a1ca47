"""hf-specgen chat: a conversation, of which each turn reads only what is new."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

import typer

from . import options, provenance, terminal
from .common import quiet
from .errors import described, one_line
from .exit_codes import FAILED

if TYPE_CHECKING:
    from .conversation import Conversation
    from .writer import Writer

NAME = "chat"
STOPPED = "stopped"
"""Why there is no more of an answer, after Ctrl-C."""
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
    object per turn, each on a line of its own; where there is no answer, or not all of it, "stopped" says why.
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
    if chat.failed and not chat.stats.calls:
        raise typer.Exit(FAILED)


class Chat:
    """The turns.

    Attributes:
        stats: of all answers that came to their end.
        failed: whether there was a turn without an answer, or with a part of one, that Ctrl-C has not stopped.
    """

    def __init__(self, writer: Writer, conversation: Conversation, colours: bool, as_json: bool):
        from ..stats import SpecStats

        self.writer, self.conversation, self.colours, self.as_json = writer, conversation, colours, as_json
        self.session, self.stats, self.failed = writer.new_session(), SpecStats(), False

    def run(self) -> None:
        """Until the input ends, or says so."""
        while True:
            try:
                line = _next_line()
            except UnicodeDecodeError as error:
                self._stop("", f"The line is not UTF-8 text ({error}).")
                continue
            if line is None or (said := line.strip()) == "/exit":
                return
            if said == "/reset":
                self.conversation.reset()
                if self.session is not None:
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
        from .writer import FullContext

        pieces: list[str] = []
        answer = None
        try:
            with contextlib.nullcontext(nowhere) if self.as_json else on_stdout(self.colours) as show:

                def write(piece: str, source: str | None) -> None:
                    pieces.append(piece)
                    show(piece, source)

                answer = self.writer.answer(self.conversation.ask(said), write, self.session)
        except KeyboardInterrupt:
            why = STOPPED
        except OSError:
            raise  # of the output: nobody reads it, or the disk is full
        except FullContext as error:
            why = f"{error} (/reset begins anew)"
        except Exception as error:  # whatever a model, a template or a lack of memory ends a turn with: not the chat
            why = described(error)
        text = "".join(pieces)
        self.conversation.answered(text)
        if answer is None:
            self._stop(text, why)
            return
        self.stats.add(answer.stats)
        if self.as_json:
            terminal.print_json(figures.to_dict(answer), indent=None)
        else:
            terminal.console(stderr=True).print(figures.line(answer), style="dim", markup=False)

    def _stop(self, text: str, why: str) -> None:
        """Say why there is no more than this of an answer; in JSON as well, where a program reads."""
        why = " ".join(why.split())
        self.failed |= why != STOPPED
        if self.as_json:
            terminal.print_json({"text": text, "stopped": why}, indent=None)
        typer.echo(f"{NAME}: {why}", err=True)


def _next_line() -> str | None:
    """What was typed, with line editing where both ends are a terminal, or piped; None at the end of the input.

    Raises:
        UnicodeDecodeError: not UTF-8.
    """
    typed = sys.stdin.isatty()
    try:
        if typed and sys.stdout.isatty():
            with contextlib.suppress(ImportError):  # not on every platform
                import readline  # noqa: F401 (input() uses it)
            return input("> ")
        if typed:
            typer.echo("> ", nl=False, err=True)  # stdout is what somebody else reads
        if line := sys.stdin.buffer.readline():
            return line.decode("utf-8").rstrip("\r\n")
    except EOFError:
        pass
    except KeyboardInterrupt:
        if typed:
            typer.echo(err=True)  # what is said of it gets a line of its own
        raise
    if typed:
        typer.echo(err=True)
    return None
