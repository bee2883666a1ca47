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

    Args:
        drafter: one whose ids stand for the target's, one by one.
        text: int64 `[length]`, the prompt and the new tokens.
        scores: the target's processed scores of each new token, `[1, vocabulary]`.
        processors, config: as `generate` prepares them for this call.
        target_context: positions that the target has.
    """
    new = len(scores)
    prompt = len(text) - new
    drafter.vocabulary = scores[0].shape[-1]
    known = max(0, int(min(new, drafter.context - prompt)) - 1)  # from token 1 on; none beyond the draft's context
    kept, ends, overlap = [0.0] * new, [0.0] * new, [None] * new
    if known:
        q = _draft_scores(drafter, text[: prompt + known + 1], prompt, processors)
        for t in range(1, known + 1):
            judge = _sampled if config.do_sample else _greedy
            p = scores[t][0].to(torch.float32)
            kept[t], overlap[t], ends[t] = judge(p, q[t - 1], int(text[prompt + t]), drafter.eos)
    lengths = range(prompt, len(text))
    limits = [min(config.max_length - 1, drafter.context, _end(target_context, length)) for length in lengths]
    return Agreement(
        kept=kept,
        overlap=overlap,
        ends=ends,
        eos=torch.isin(text[prompt:], drafter.eos).tolist(),
        room=[max(0, int(limit - length)) for limit, length in zip(limits, lengths, strict=True)],
    )


def _end(context: float, length: int) -> float:
    """Beyond its context only models without a table of positions get: those have no end."""
    return context if length <= context else float("inf")


def _draft_scores(
    drafter: ModelDrafter, text: torch.Tensor, prompt: int, processors: LogitsProcessorList
) -> torch.Tensor:
    """The draft's processed scores for all new tokens but the first, float32 `[new − 1, vocabulary]`."""
    tokens, own = text.tolist(), RowProcessors(processors)
    new = len(tokens) - prompt
    read = drafter.reading.text(LoneRow(text, tokens[:-1], len(tokens), own))
    ids = drafter._known(torch.tensor([read], device=drafter.device))
    logits, _ = read_prompt(drafter.model, ids, None, keep_logits=new - 1)
    logits = drafter._of_target(logits[0], text.device)
    row = LoneRow(text, tokens[: prompt + 1], len(tokens), own)
    trials = trials_for_draft([row])
    if trials is None:  # they do not look at the text
        return on_draft([row], None, logits, 0)
    return torch.cat([on_draft([row], trials, logits[i : i + 1], i) for i in range(new - 1)])


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
