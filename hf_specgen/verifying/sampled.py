"""The sampled part of a verification: where and how tokens are drawn, and each strategy's law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..benchmarking.calls import Models
from . import contexts, drawing, law
from .table import Rounding
from .ways import ORDER, WAYS

DRAFTED = 3
"""Tokens drafted in a round, at most."""
NEW = DRAFTED + 2
"""New tokens of a continuation, at most."""
LEAST = len(ORDER)
"""Samples for each prompt, at least: one of each way."""


def settings(num_assistant_tokens: int) -> dict[str, Any]:
    """How continuations are drawn, for the certificate."""
    return {
        "num_assistant_tokens": min(DRAFTED, num_assistant_tokens),
        "schedule": "constant",
        "ways": [asdict(way) for way in WAYS],
    }


def steps(prompts: int, samples: int, strategies: Sequence[str]) -> int:
    """Contexts that are looked for, and batches that are drawn."""
    return prompts + len(drawing.batches(samples, prompts)) * len(strategies)


def check_laws(
    models: Models,
    texts: Sequence[tuple[Sequence[int], Sequence[int]]],
    rounding: Rounding,
    listener: Callable[[str], None],
    *,
    temperature: float,
    strategies: Sequence[str],
    samples: int,
    num_assistant_tokens: int,
    seed: int,
) -> list[law.Law]:
    """
    Args:
        texts: prompts, and plain decoding's greedy answers.
        num_assistant_tokens: drafted in a round; no more than `DRAFTED`.
        listener: told of each step.

    Raises:
        SpecUnsupportedError: nothing was drafted.
    """
    k = min(DRAFTED, num_assistant_tokens)
    unread = contexts.unread(models, NEW + max(len(ids) + len(answer) for ids, answer in texts))
    places: list[contexts.Context] = []
    for prompt, (ids, answer) in enumerate(texts):
        places += contexts.choose(models, prompt, ids, answer, temperature, k, unread is None)
        listener("contexts")
    return [
        law.check_law(
            models,
            places,
            strategy,
            temperature=temperature,
            samples=samples,
            k=k,
            rounding=rounding,
            unread=unread,
            level=law.LEVEL / len(strategies),
            seed=seed,
            listener=lambda strategy=strategy: listener(f"sampling, {strategy}"),
        )
        for strategy in strategies
    ]
