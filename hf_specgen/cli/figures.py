"""What `generate` and `chat` say of an answer: a line, all figures, advice, JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .terminal import console

if TYPE_CHECKING:
    from ..stats import SpecStats
    from .writer import Answer


def line(answer: Answer) -> str:
    stats, count = answer.stats, len(answer.ids)
    facts = [f"{count} token{'' if count == 1 else 's'} in {answer.seconds:.2f} s ({count / answer.seconds:.1f}/s)"]
    if stats.tokens_per_target_forward is not None:
        facts.append(f"{stats.tokens_per_target_forward:.2f} per target forward")
    if stats.drafted:
        facts.append(f"{stats.accepted} of {stats.drafted} drafted accepted ({stats.acceptance_rate:.0%})")
    why = stats.fallback_reason or stats.off_reason
    return ", ".join(facts) + (f"; without drafts: {why}" if why else "")


def report(stats: SpecStats, everything: bool, advice: bool) -> None:
    """On stderr: stdout is the text's."""
    on = console(stderr=True)
    if everything:
        on.print(str(stats), markup=False)
    if advice:
        on.print(str(stats.advice()), markup=False)


def to_dict(answer: Answer) -> dict[str, Any]:
    return {
        "text": answer.text,
        "ids": answer.ids,
        "sources": answer.sources,
        "prompt_tokens": answer.prompt_tokens,
        "seconds": answer.seconds,
        "seed": answer.seed,
        "stats": _figures(answer.stats),
    }


NAMES = (
    "strategy",
    "lossless",
    "rounds",
    "drafted",
    "accepted",
    "acceptance_rate",
    "tokens_per_target_forward",
    "target_forwards",
    "draft_forwards",
    "prefill_seconds",
    "draft_seconds",
    "verify_seconds",
    "rest_seconds",
    "actual_speedup",
    "theoretical_speedup",
    "fallback_reason",
    "off_reason",
)
"""Of `SpecStats`."""


def _figures(stats: SpecStats) -> dict[str, Any]:
    by_source = {
        source: {"drafted": seen.drafted, "accepted": seen.accepted} for source, seen in stats.by_source.items()
    }
    advice = [{"rule": advice.rule, "seen": advice.seen, "do": advice.do} for advice in stats.advice()]
    return {name: getattr(stats, name) for name in NAMES} | {"by_source": by_source, "advice": advice}
