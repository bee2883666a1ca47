"""Teacher forcing: a draft reads a text of its target in one forward, and says what it would have drafted."""

from __future__ import annotations

import torch
from transformers import GenerationConfig, LogitsProcessorList

from ..cache.reader import read_prompt
from ..drafters import ModelDrafter
from ..drafters.base import LoneRow
from ..processors import RowProcessors, on_draft, trials_for_draft
from .forecast import Agreement


@torch.no_grad()
def agreement(
    drafter: ModelDrafter,
    text: torch.Tensor,
    scores: tuple[torch.Tensor, ...],
    processors: LogitsProcessorList,
    config: GenerationConfig,
    target_context: float,
) -> Agreement:
    """How far the draft agrees with a text that its target has decoded plainly.

    With another vocabulary, a token that the draft does not share is never kept. It reads the text one token after the
    other, as in decoding, where a round holds one unshared token at most. Only a special token without a counterpart
    may be read otherwise there: here as the draft's filler, there as nothing when it comes behind accepted ones.

    Args:
        drafter: one that drafts the target's tokens, one by one.
        text: int64 `[length]`, the prompt and the new tokens.
        scores: the target's processed scores of each new token, `[1, vocabulary]`.
        processors, config: as `generate` prepares them for this call.
        target_context: positions that the target has.
    """
    new = len(scores)
    prompt = len(text) - new
    drafter.vocabulary = scores[0].shape[-1]
    row = LoneRow(text, text[:prompt].tolist(), config.max_length - 1, RowProcessors(processors))
    read, room = [0], [0]  # before the new token at t: ids that the draft has read, tokens that it may draft
    for token in text[prompt:-1].tolist():
        row.tokens.append(token)
        read.append(len(drafter.reading.text(row)))
        room.append(room_of(drafter, row, target_context))
    known = sum(length < drafter.context for length in read[1:])  # from token 1 on
    kept, ends, overlap = [0.0] * new, [0.0] * new, [None] * new
    if known:
        ids = drafter.reading.text(row)[: read[known]]
        row.tokens = text[: prompt + 1].tolist()
        q = _draft_scores(drafter, row, ids, read[1 : known + 1])
        for t in range(1, known + 1):
            judge = _sampled if config.do_sample else _greedy
            p = scores[t][0].to(torch.float32)
            kept[t], overlap[t], ends[t] = judge(p, q[t - 1], int(text[prompt + t]), drafter.eos)
    return Agreement(kept, overlap, ends, torch.isin(text[prompt:], drafter.eos).tolist(), room)


def room_of(drafter: ModelDrafter, row: LoneRow, target_context: float) -> int:
    """Most tokens that a round may draft that begins at the end of this row."""
    left = target_context - row.length
    # Beyond its context only models without a table of positions get: those have no end.
    return int(min(drafter.room(row), left if left >= 0 else float("inf")))


def _draft_scores(drafter: ModelDrafter, row: LoneRow, ids: list[int], read: list[int]) -> torch.Tensor:
    """The draft's processed scores after so many of its ids each, float32 `[len(read), vocabulary]`.

    `row` ends where the first of them drafts; its `ids` go on with what the text says.
    """
    home = row.ids.device
    inputs = drafter._known(torch.tensor([ids], device=drafter.device))
    logits, _ = read_prompt(drafter.model, inputs, None, keep_logits=read[-1] - read[0] + 1)
    after = torch.tensor([length - read[0] for length in read], device=logits.device)
    logits = drafter._of_target(logits[0, after], home)
    trials = trials_for_draft([row])
    if trials is None:  # they do not look at the text
        return on_draft([row], None, logits, 0)
    return torch.cat([on_draft([row], trials, logits[i : i + 1], i) for i in range(len(read))])


def _greedy(p: torch.Tensor, q: torch.Tensor, token: int, eos: torch.Tensor) -> tuple[float, float, float]:
    """(kept, overlap, ends) of one position, see `Agreement`; p, q: processed scores `[vocabulary]`."""
    drafted = int(q.argmax())
    same = float(drafted == token and bool(q[drafted] > float("-inf")))
    return same, same, float(drafted in eos.tolist())


def _sampled(p: torch.Tensor, q: torch.Tensor, token: int, eos: torch.Tensor) -> tuple[float, float, float]:
    p, q = p.double().softmax(-1), q.double().softmax(-1).nan_to_num(0.0)  # NaN: nothing left to draft
    excess = (q - p).clamp(min=0)
    mass = float(excess.sum())
    ends = float(excess[eos[eos < len(q)]].sum()) / mass if mass else 0.0
    return min(1.0, float(q[token] / p[token])), float(torch.minimum(p, q).sum()), ends
