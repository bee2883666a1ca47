"""hf-specgen generate: text from a prompt, as it comes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, provenance, terminal
from .common import quiet
from .errors import one_line

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

NAME = "generate"


@one_line(NAME)
def command(
    target: options.Target,
    draft: options.MaybeDraft = None,
    prompt: Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The prompt.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="FILE", help="Read the prompt from a file.", show_default=False)
    ] = None,
    system: options.System = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Go on with the text as it is, without the tokenizer's chat template.")
    ] = False,
    max_new_tokens: options.MaxNewTokens = 256,
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
    """Answer a prompt with the target's own text, only faster.

    The prompt comes from --prompt, --file or standard input, and goes through the tokenizer's chat template where there
    is one. The text appears on stdout as it is decoded, figures on stderr; --json prints one object with text, ids, the
    source of each token and the figures.
    """
    text = _prompt(prompt, file)
    from . import figures
    from .streaming import on_stdout
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
        inputs = _inputs(writer.tokenizer, text, system, raw)
        with terminal.spinner("loading"):
            writer.load()
        if as_json:
            answer = writer.answer(inputs)
            terminal.print_json(figures.to_dict(answer), indent=None)
        else:
            with on_stdout(colours=show and provenance.begin(NAME)) as write:
                answer = writer.answer(inputs, write)
            terminal.console(stderr=True).print(figures.line(answer), style="dim", markup=False)
    figures.report(answer.stats, stats, advice)


def _prompt(prompt: str | None, file: Path | None) -> str:
    """
    Raises:
        ValueError: none, more than one, an empty one, or not text.
    """
    if prompt is not None and file is not None:
        raise ValueError("--prompt and --file are both prompts: pass one of them.")
    if prompt is None:
        if file is None and sys.stdin.isatty():
            raise ValueError("There is no prompt: pass --prompt TEXT, --file FILE, or text on standard input.")
        where = "standard input" if file is None else str(file)
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
        try:
            prompt = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{where} is not UTF-8 text ({error}).") from None
    if not prompt.strip():
        raise ValueError("The prompt is empty.")
    return prompt


def _inputs(tokenizer: PreTrainedTokenizerBase, text: str, system: str | None, raw: bool) -> BatchEncoding:
    from ..measuring.prompts import encode, encode_text
    from .conversation import opening, user

    if raw:
        if system is not None:
            raise ValueError("--system needs the chat template, which --raw leaves out.")
        return encode_text(tokenizer, text)
    return encode(tokenizer, text if system is None else [*opening(tokenizer, system), user(text)])
