"""hf-specgen verify: bug or rounding? Is the text of a pair the target's own, greedy and sampled?"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import INTERRUPTED, give_up, one_line, quiet, words

if TYPE_CHECKING:
    from hf_specgen.verifying.certificate import Certificate
    from hf_specgen.verifying.verification import Verification

NAME, NOT_VERIFIED = "verify", 2
COLOURS = {"LOSSLESS": "green", "LOSSLESS UP TO ROUNDING": "green", "FAULT": "red"}


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    draft: Annotated[str, typer.Argument(help="Folder or Hub id of the draft model.", show_default=False)],
    prompts: Annotated[
        Path | None,
        typer.Option(help="Own prompts: .txt, .json, .jsonl, Spec-Bench's file.", show_default="short ones of ours"),
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many of the prompts.")] = 4,
    max_new_tokens: Annotated[int, typer.Option(help="Of each greedy text.")] = 48,
    temperature: Annotated[float, typer.Option(help="Of the sampled tokens; 0 tests greedy text only.")] = 1.0,
    strategies: Annotated[str, typer.Option(help="Laws to test: rejection, block, coupled.")] = "rejection",
    k: Annotated[int, typer.Option("--num-assistant-tokens", "-k", help="Drafted per round (sampled: at most 3).")] = 5,
    samples: Annotated[
        int, typer.Option(help="Continuations that are drawn: four times as many see half as large an error.")
    ] = 384,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    dtype: Annotated[str, typer.Option(help="As in from_pretrained.")] = "auto",
    device: Annotated[str, typer.Option(help="Like cuda:1 or cpu.", show_default="as load_pair chooses")] = "",
    draft_quantization: Annotated[str, typer.Option(help="As in load_pair: nf4, …", show_default=False)] = "",
    out: Annotated[Path | None, typer.Option(help="Write the certificate to this file.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the certificate as JSON.")] = False,
) -> None:
    """Tell a bug from rounding: greedy text against plain decoding and its own noise, sampled tokens against their law.

    Every token of the speculative text is judged by plain decoding's scores after the text's own beginning: a TIE is
    within twice the noise that plain decoding itself shows between widths of a forward and batch sizes. Sampled tokens
    go through exact tests, whose power is stated. Exit code: 0 lossless (ties included), 1 fault, 2 could not be
    verified, 130 interrupted (nothing is written).
    """
    try:
        _check_out(out)
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
                device=device or None,
                draft_quantization=draft_quantization or None,
            )
            certificate = _run(verification)
    except KeyboardInterrupt:
        give_up(NAME, "interrupted, nothing was written", INTERRUPTED)
    except (OSError, ValueError, ImportError) as error:  # a missing folder, a wrong value: one line, no traceback
        give_up(NAME, str(error), NOT_VERIFIED)
    except Exception as error:  # the last resort of a command: 1 means a fault, so no traceback may end with it
        give_up(NAME, f"could not be verified ({type(error).__name__}: {error})", NOT_VERIFIED)
    certificate.command = shlex.join(["hf-specgen", *sys.argv[1:]])
    _print(certificate, as_json)
    if out is not None:
        with one_line(NAME, NOT_VERIFIED):
            certificate.save(out)
    raise typer.Exit(0 if certificate.lossless else 1)


def _check_out(out: Path | None) -> None:
    """Before minutes are spent on what cannot be written."""
    if out is None:
        return
    if out.is_dir():
        raise ValueError(f"--out {out} is a folder; name a file in it, such as {out / 'certificate.json'}.")
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise ValueError(f"--out {out}: {above} is no folder.")


def _run(verification: Verification) -> Certificate:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    options = {"transient": True, "disable": not console.is_terminal, "auto_refresh": False}  # no thread of its own
    with Progress(*columns, console=console, **options) as progress:
        bar = progress.add_task("loading", total=None)

        def listen(what: str, done: int, expected: int) -> None:
            progress.update(bar, completed=done, total=expected, description=what, refresh=True)

        return verification.run(listen)


def _print(certificate: Certificate, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(certificate.to_dict(), indent=2, allow_nan=False))
        return
    from rich.console import Console
    from rich.text import Text

    text = Text(str(certificate))
    text.highlight_regex(r"(?m)^verdict .*$", f"bold {COLOURS[certificate.verdict]}")
    Console(highlight=False, soft_wrap=True).print(text)  # soft: a line piped into a file stays one line
