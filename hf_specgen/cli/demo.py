"""`hf-specgen demo`: the embedded pair decodes, beside plain decoding."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import typer

from . import options, terminal
from .common import quiet
from .errors import one_line
from .exit_codes import NO

if TYPE_CHECKING:
    from ..demo.run import Answer
    from ..stats import SpecStats


@one_line("demo")
def command(
    max_new_tokens: options.MaxNewTokens = 96,
    k: options.FixedK = 5,
    repeats: options.Repeats = 3,
    as_json: options.Json = False,
) -> None:
    """Decode plainly and speculatively with the pair that comes along.

    Shows that the ids are the same, which token came from where, the statistics and the speed-up. No network.
    """
    from ..demo import PROMPTS
    from ..demo.run import compare

    with quiet(), terminal.spinner("decoding"):
        answers, stats = compare(PROMPTS, max_new_tokens=max_new_tokens, num_assistant_tokens=k, repeats=repeats)
    same = all(answer.same_ids for answer in answers)
    speedup = statistics.median(answer.speedup for answer in answers)
    if as_json:
        terminal.print_json(
            {
                "same_ids": same,
                "speedup": speedup,
                "acceptance_rate": stats.acceptance_rate,
                "tokens_per_target_forward": stats.tokens_per_target_forward,
                "prompts": [{"prompt": a.text.prompt, "speedup": a.speedup, "same_ids": a.same_ids} for a in answers],
            }
        )
    else:
        _show(answers, stats, same, speedup)
    if not same:
        raise typer.Exit(NO)


def _show(answers: list[Answer], stats: SpecStats, same: bool, speedup: float) -> None:
    """The texts, coloured by where each token came from, and the figures."""
    from ..display import OriginTexts

    console = terminal.console()
    console.print(OriginTexts(tuple(answer.text for answer in answers)).legend())
    for answer in answers:
        console.rule(style="dim")
        console.print(answer.text)
        console.print(f"{answer.speedup:.2f}× plain, {'same ids' if answer.same_ids else 'DIFFERENT IDS'}", style="dim")
    console.rule(style="dim")
    console.print(str(stats), markup=False)
    verdict = (
        "the same ids as plain decoding" if same else "OTHER IDS THAN PLAIN DECODING: this is a fault, please report it"
    )
    console.print(f"\n{verdict}, {speedup:.2f}× as fast (median over {len(answers)} prompts)", style="bold")
