"""hf-specgen verify: bug or rounding? Is the text of a pair the target's own, greedy and sampled?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .common import command_line, quiet, words
from .errors import one_line
from .exit_codes import DONE, NO
from .out import checked_out

if TYPE_CHECKING:
    from hf_specgen.verifying.certificate import Certificate


@one_line("verify", interrupted="interrupted, nothing was written")
def command(
    target: options.Target,
    draft: options.Draft,
    prompts: options.Prompts = None,
    limit: options.Limit = 4,
    max_new_tokens: options.MaxNewTokens = 48,
    temperature: options.Temperature = 1.0,
    strategies: options.Strategies = "rejection",
    k: options.FixedK = 5,
    samples: Annotated[
        int,
        typer.Option(metavar="N", help="Continuations that are drawn: four times as many see half as large an error."),
    ] = 384,
    seed: options.FixedSeed = 0,
    dtype: options.Dtype = "auto",
    device: options.Device = None,
    draft_quantization: options.DraftQuantization = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the certificate to it.", show_default=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Tell a bug from rounding: is the pair's text the target's own?

    Greedy text (alone, in a batch, and as generate() decides by itself) is held against plain decoding and its own
    noise: every token is judged by plain decoding's scores after the text's own beginning. A TIE is within twice the
    noise that plain decoding itself shows between widths of a forward and batch sizes, and there may be no more of them
    than rounding makes. Longer texts: --max-new-tokens. Sampled tokens go through exact tests of their law: drafted by
    the model and copied from the text, with top-k, top-p, a repetition penalty and without. Which wrong rules would
    have been seen is stated. (--temperature 0 leaves them out; at most 3 tokens are drafted in a round there.) Nothing
    is written if it is interrupted.
    """
    out = checked_out("--out", out)
    from hf_specgen.verifying.verification import Verification

    with quiet():
        verification = Verification(
            target,
            draft,
            prompts=prompts,
            limit=limit,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            strategies=words(strategies) or (),
            num_assistant_tokens=k,
            samples=samples,
            seed=seed,
            dtype=dtype,
            device=device,
            draft_quantization=draft_quantization,
        )
        with terminal.bar(terminal.console(stderr=True)) as listen:
            certificate = verification.run(listen)
    certificate.command = command_line()
    try:
        _print(certificate, as_json)
    finally:  # also if whatever reads stdout has gone
        if out is not None:
            certificate.save(out)
    raise typer.Exit(DONE if certificate.lossless else NO)


def _print(certificate: Certificate, as_json: bool) -> None:
    if as_json:
        terminal.print_json(certificate.to_dict())
        return
    from rich.text import Text

    from hf_specgen.display.certificate import COLOURS

    text = Text(str(certificate))
    text.highlight_regex(r"(?m)^verdict .*$", f"bold {COLOURS[certificate.verdict].terminal}")
    terminal.console().print(text)
