"""The texts that are compared: the target's own, and those that it decodes with its draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..api import SpecGenerationMixin
from ..benchmarking.calls import Call, Models, eos_of
from ..cache.reader import device_of
from ..stats import SpecStats, collect_stats

ALONE, BATCH, DEFAULT = "alone", "batch", "default"
MODES: dict[str, dict[str, str | None]] = {
    ALONE: {"spec_source": "draft", "num_assistant_tokens_schedule": "constant"},
    BATCH: {"spec_source": "hybrid", "num_assistant_tokens_schedule": "constant"},
    DEFAULT: {"spec_source": None, "num_assistant_tokens_schedule": None},
}
"""How greedy texts are decoded: arguments of `generate`, where None leaves the choice to it."""


@dataclass(frozen=True)
class Text:
    """A greedy text.

    Attributes:
        prompt: index.
        how: it was decoded: `ALONE`, in a `BATCH`, or alone by `DEFAULT` settings.
        ids, problem: see `Decoded`.
        drafted, accepted: tokens.
        most: tokens drafted in one round.
    """

    prompt: int
    how: str
    ids: list[int]
    problem: str | None
    drafted: int = 0
    accepted: int = 0
    most: int = 0


@dataclass(frozen=True)
class Decoded:
    """New tokens of each row up to and with its EOS; `problem[b]`: how row b ends wrongly, or None."""

    ids: list[list[int]]
    problems: list[str | None]
    stats: SpecStats


def call_of(models: Models, rows: Sequence[Sequence[int]], new: int, temperature: float = 0.0, seed: int = 0) -> Call:
    """Prompts as one call, padded on the left, where the target takes its ids. No top-k, no top-p."""
    eos = eos_of(models.target)
    pad = models.tokenizer.pad_token_id
    pad = pad if pad is not None else next(iter(eos), 0)
    columns = max(map(len, rows))
    ids = torch.tensor([[pad] * (columns - len(row)) + list(row) for row in rows])
    mask = torch.tensor([[0] * (columns - len(row)) + [1] * len(row) for row in rows])
    device = device_of(models.target, torch.device("cpu"))
    return Call(ids.to(device), mask.to(device), new, temperature, 0, 1.0, eos, pad, seed)


def speculate(
    models: Models, call: Call, strategy: str, k: int | None, source: str | None = "draft", **options
) -> Decoded:
    """Decode with the draft, K tokens in every round. None: as `generate` decides. `options`: more for `generate`."""
    constant = {"num_assistant_tokens": k, "num_assistant_tokens_schedule": "constant"}
    options |= {} if k is None else constant
    options |= {} if source is None else {"spec_source": source}
    with collect_stats() as stats:
        out = SpecGenerationMixin.generate(
            models.target,
            **call.options(),
            **models.tokenizers,
            **options,
            assistant_model=models.draft,
            spec_strategy=strategy,
        )
    ids, columns = call.new_ids(out), call.input_ids.shape[1]
    ends = [_problem(row, raw, call) for row, raw in zip(ids, out[:, columns:].tolist(), strict=True)]
    return Decoded(ids, ends, stats)


def _problem(new: list[int], raw: list[int], call: Call) -> str | None:
    if not new or (new[-1] not in call.eos and len(new) != call.max_new_tokens):
        return f"it ends after {len(new)} tokens, neither with an EOS nor at {call.max_new_tokens}"
    if any(token != call.pad for token in raw[len(new) :]):
        return f"it goes on after the EOS at token {len(new) - 1}"
    return None
