"""`hf-specgen demo`: the embedded pair decodes, beside plain decoding."""

import json
import statistics
from typing import Annotated

import typer


def command(
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 96,
    num_assistant_tokens: Annotated[
        int, typer.Option("--num-assistant-tokens", "-k", min=1, help="Draft length K.")
    ] = 5,
    repeats: Annotated[int, typer.Option(min=1, help="Interleaved repetitions; the median counts.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print figures as JSON.")] = False,
) -> None:
    """Run plain and speculative decoding side by side on the pair that comes with the package. No network."""
    from transformers.utils import logging

    from ..demo import PROMPTS
    from ..demo.run import compare

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    answers, stats = compare(
        PROMPTS, max_new_tokens=max_new_tokens, num_assistant_tokens=num_assistant_tokens, repeats=repeats
    )
    same = all(answer.same_ids for answer in answers)
    speedup = statistics.median(answer.speedup for answer in answers)
    if as_json:
        figures = {
            "same_ids": same,
            "speedup": speedup,
            "acceptance_rate": stats.acceptance_rate,
            "tokens_per_target_forward": stats.tokens_per_target_forward,
            "prompts": [{"prompt": a.prompt, "speedup": a.speedup, "same_ids": a.same_ids} for a in answers],
        }
        print(json.dumps(figures, indent=2))
    else:
        show(answers, stats, same, speedup)
    if not same:
        raise typer.Exit(1)


def show(answers, stats, same: bool, speedup: float) -> None:
    """The texts, coloured by where each token came from, and the figures."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    legend = Text.assemble("prompt  ", ("from the draft", "green"), "  ", ("from the target", "bold yellow"))
    console.print(legend)
    for answer in answers:
        console.rule(style="dim")
        text = Text(answer.prompt)
        for piece, drafted in answer.pieces:
            text.append(piece, style="green" if drafted else "bold yellow")
        console.print(text)
        console.print(f"{answer.speedup:.2f}× plain, {'same ids' if answer.same_ids else 'DIFFERENT IDS'}", style="dim")
    console.rule(style="dim")
    console.print(str(stats))
    verdict = (
        "the same ids as plain decoding" if same else "OTHER IDS THAN PLAIN DECODING: this is a fault, please report it"
    )
    console.print(f"\n{verdict}, {speedup:.2f}× as fast (median over {len(answers)} prompts)", style="bold")
