"""Continuations that the real loop draws after a few contexts, in all `WAYS`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from .. import compat
from ..benchmarking.calls import Models
from ..session import SpecSession
from ..stats import RowStats, SpecStats
from .contexts import Context
from .texts import call_of, speculate
from .ways import ORDER, WAYS

ROWS = 16
"""Continuations that are drawn together. Few: the first batch of each source reads the contexts for its rows, which
takes longer than all that follows; the others go on from its session."""


@dataclass(frozen=True)
class Continuation:
    """
    Attributes:
        way: index in `WAYS`.
        tokens: new ones, up to and with an EOS.
        modelled: of each token, whether it was judged as the draft model's: accepted, or drawn where one was rejected.
        bonus: the first token that follows a draft of which all was accepted; None if there is none.
        problem: how it ends wrongly, or None.
    """

    context: Context
    way: int
    tokens: tuple[int, ...]
    modelled: tuple[bool, ...]
    bonus: int | None
    problem: str | None


def draw(
    models: Models,
    contexts: Sequence[Context],
    strategy: str,
    temperature: float,
    samples: int,
    k: int,
    seed: int = 0,
    listener: Callable[[], None] = lambda: None,
) -> tuple[list[Continuation], SpecStats]:
    """Continuations of k + 2 tokens or up to an EOS: a first token from the prefill, then a drafted block and the token
    after it, so that acceptance, residual and bonus all occur. The contexts of a way share its batches."""
    stateless = not (compat.keeps_state(models.target) or compat.keeps_state(models.draft))
    places = {source: [c for c in contexts if c.source == source] for source in {way.source for way in WAYS}}
    sessions = {source: SpecSession() if stateless else None for source in places}
    turn = dict.fromkeys(places, 0)
    drawn: list[Continuation] = []
    stats = SpecStats()
    for number, rows in enumerate(batches(samples, len(contexts) // len(places))):
        kind = ORDER[number % len(ORDER)]
        way = WAYS[kind]
        own = places[way.source]
        which = [own[(turn[way.source] + b) % len(own)] for b in range(rows)]
        turn[way.source] += rows
        call = call_of(models, [context.ids for context in which], k + 2, temperature, seed)
        decoded = speculate(
            models,
            replace(call, top_k=way.top_k, top_p=way.top_p),
            strategy,
            k,
            way.source,
            generator=torch.Generator().manual_seed(seed * 1_000_003 + number),
            spec_session=sessions[way.source],
            repetition_penalty=way.repetition_penalty,
        )
        stats.add(decoded.stats)
        for row in zip(which, decoded.ids, decoded.stats.rows, decoded.problems, strict=True):
            drawn.append(_continuation(kind, *row))
        listener()
    return drawn, stats


def batches(samples: int, prompts: int) -> list[int]:
    """Rows of each batch: turns of `ORDER`. Whole turns of the prompts, if they fit in: then each row of a session
    keeps its context."""
    turns = math.ceil(samples / (ROWS * len(ORDER)))
    rows = math.ceil(samples / (turns * len(ORDER)))
    rows = rows // prompts * prompts or rows
    return [min(rows, samples - first) for first in range(0, samples, rows)]


def _continuation(way: int, context: Context, tokens: list[int], row: RowStats, problem: str | None) -> Continuation:
    modelled: list[bool] = []
    bonuses: list[int] = []
    for (drafted, accepted), source in zip(row.trace, row.sources, strict=True):
        whole = accepted == drafted
        if drafted and whole:
            bonuses.append(len(modelled) + accepted)
        modelled += [source == "draft"] * accepted + [source == "draft" and not whole]
    bonus = next((at for at in bonuses if at < len(tokens)), None)
    return Continuation(context, way, tuple(tokens), tuple(modelled[: len(tokens)]), bonus, problem)
