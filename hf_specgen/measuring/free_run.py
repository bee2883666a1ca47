"""Free running: a draft that writes text of its own drafts against texts of its target, which need not be asked again.

What such a draft writes next depends on how it has written so far, so each K is a run of its own, a row of one batch.
"""

from __future__ import annotations

import torch
from transformers import GenerationConfig, LogitsProcessorList

from ..drafters import TextDrafter
from ..drafters.base import LoneRow
from ..processors import RowProcessors
from .forecast import Forecast, Outlook
from .teacher import room_of


@torch.no_grad()
def free_run(
    drafter: TextDrafter,
    text: torch.Tensor,
    scores: tuple[torch.Tensor, ...],
    config: GenerationConfig,
    target_context: float,
    largest: int,
) -> Outlook:
    """The counts of greedy decoding with K = 1 … `largest`, one by one; the overlap is that of the largest.

    Args:
        text: int64 `[length]`, the prompt and the new tokens.
        scores: of each new token, `[1, vocabulary]`.
        config: as `generate` prepares it for this call.
        target_context: positions that the target has.
    """
    tokens, prompt = text.tolist(), len(text) - len(scores)
    found = [Forecast(k, texts=1, emitted=len(scores), rounds=1.0) for k in range(1, largest + 1)]
    right: list[float] = []
    if len(scores) == 1:
        return Outlook(found, right, teacher_forced=False)
    own = RowProcessors(LogitsProcessorList())
    rows = [LoneRow(text, tokens[: prompt + 1], config.max_length - 1, own, k - 1) for k in range(1, largest + 1)]
    drafter.begin(rows, scores[0].shape[-1])
    while rows:
        widths = [min(row.index + 1, room_of(drafter, row, target_context)) for row in rows]
        proposal = drafter.propose(rows, widths, None, None)  # it draws nothing
        accepted = []
        for b, (row, width, count) in enumerate(zip(rows, widths, proposal.counts.tolist(), strict=True)):
            row.last_drafted = proposal.tokens[b, :count].tolist()
            accepted.append(_agreeing(row.last_drafted, tokens[row.length :]))
            row.tokens = tokens[: row.length + accepted[b] + 1]
            found[row.index].add_round(width, count, accepted[b])
            if row.index == largest - 1:
                right += [float(i < accepted[b]) for i in range(min(count, accepted[b] + 1))]
        if proposal.width:
            drafter.settle(rows, None, accepted)
        for b in reversed(range(len(rows))):
            if rows[b].length == len(tokens):
                drafter.drop(b)
                rows[b] = rows[-1]
                rows.pop()
    return Outlook(found, right, teacher_forced=False)


def _agreeing(drafted: list[int], true: list[int]) -> int:
    """How many tokens at the front are the same."""
    same = [*(a == b for a, b in zip(drafted, true, strict=False)), False]
    return same.index(False)
