"""From finished rows to what `generate()` returns."""

from dataclasses import dataclass

import torch
from transformers.generation.utils import GenerateDecoderOnlyOutput

from .. import compat
from ..stats import SpecStats
from .rows import Row


@dataclass
class SpecGenerateOutput(GenerateDecoderOnlyOutput):
    """`GenerateDecoderOnlyOutput` with what speculation adds.

    Attributes:
        spec_stats: statistics of the call.
        draft_mask: bool `[rows, new tokens]`: which new tokens came from the draft (False at padding).
    """

    spec_stats: SpecStats | None = None
    draft_mask: torch.Tensor | None = None


def sequences_of(input_ids: torch.Tensor, rows: list[Row], pad: int) -> torch.Tensor:
    """`[rows, columns + new tokens]`: the input as it was given, and the new tokens, padded on the right."""
    width = max(len(row.new_tokens) for row in rows)
    new = [row.new_tokens + [pad] * (width - len(row.new_tokens)) for row in rows]
    return torch.cat([input_ids, torch.tensor(new, dtype=input_ids.dtype, device=input_ids.device)], dim=1)


def as_dict(sequences: torch.Tensor, rows: list[Row], stats: SpecStats, cache) -> SpecGenerateOutput:
    steps = max(len(row.new_tokens) for row in rows)
    mask = [row.from_draft + [False] * (steps - len(row.from_draft)) for row in rows]
    return SpecGenerateOutput(
        sequences=sequences,
        scores=_by_step([row.scores for row in rows], steps),
        logits=_by_step([row.logits for row in rows], steps),
        spec_stats=stats,
        draft_mask=torch.tensor(mask, device=sequences.device),
        **{compat.CACHE_NAME: cache},
    )


def _by_step(by_row: list[list[torch.Tensor] | None], steps: int) -> tuple[torch.Tensor, ...] | None:
    """Per step `[rows, vocabulary]`, zero where a row had ended."""
    if by_row[0] is None:
        return None
    nothing = torch.zeros_like(by_row[0][0])
    return tuple(torch.stack([kept[i] if i < len(kept) else nothing for kept in by_row]) for i in range(steps))
