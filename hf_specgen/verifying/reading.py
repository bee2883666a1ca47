"""Plain decoding's scores along a text: as `generate` itself computes them, token by token, and in blocks of positions.

Only the scores of a few tokens are kept at each position: the one that was taken and the best ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from ..benchmarking.calls import Call, Models
from ..cache.reader import read_prompt

BEST = 8


@dataclass(frozen=True)
class Reading:
    """Scores after each beginning of one text.

    Attributes:
        ids: int64 `[tokens, 1 + best]`: the token that the text takes, then the best ones, in order.
        scores: float32, same shape: their logits, on the CPU.
    """

    ids: torch.Tensor
    scores: torch.Tensor

    @property
    def taken(self) -> list[int]:
        return self.ids[:, 0].tolist()

    @property
    def shortfall(self) -> torch.Tensor:
        """Float32 `[tokens]`: how far the token taken is below the best one. 0 where it is the best."""
        return self.scores[:, 1] - self.scores[:, 0]

    @property
    def lead(self) -> torch.Tensor:
        """Float32 `[tokens]`: how far the best one is ahead of the second."""
        return self.scores[:, 1] - self.scores[:, 2]


def decode(models: Models, call: Call) -> Reading:
    """Plain decoding of a call with one row: its text, and the scores it was taken by."""
    (found,) = _generate(models, call, _Watch(call.input_ids.shape[1], 1))
    end = len(call.new_ids(torch.cat([call.input_ids.cpu(), found.ids[None, :, 0]], dim=1))[0])
    return Reading(found.ids[:end], found.scores[:end])


def follow(models: Models, call: Call, texts: Sequence[Reading | Sequence[int]]) -> list[Reading]:
    """Plain decoding led along texts, one per row of the call.

    Args:
        texts: tokens, or a reading of them: then the scores of its ids are taken, not those of the best ones here.
    """
    return _generate(models, call, _Watch(call.input_ids.shape[1], len(texts), texts))


def in_blocks(models: Models, call: Call, texts: Sequence[Reading], width: int) -> list[Reading]:
    """Plain forwards of `width` positions per row, on a stock cache, instead of one."""
    longest = max(len(text.taken) for text in texts)
    filled = [[*text.taken, *[text.taken[-1]] * (longest - len(text.taken))] for text in texts]
    start, mask = call.input_ids.shape[1], None if call.attention_mask.all() else call.attention_mask
    logits, cache = read_prompt(models.target, call.input_ids, mask)
    parts = [logits]
    for block in torch.tensor(filled, device=call.input_ids.device)[:, :-1].split(width, dim=1):
        if block.shape[1]:
            mask = None if mask is None else torch.cat([mask, torch.ones_like(block)], dim=1)
            logits, cache = read_prompt(models.target, block, mask, block.shape[1], cache=cache, start=start)
            parts.append(logits)
            start += block.shape[1]
    scores = torch.cat(parts, dim=1).float()
    return [
        Reading(text.ids, row[: len(text.ids)].gather(1, text.ids.to(row.device)).cpu())
        for text, row in zip(texts, scores, strict=True)
    ]


def _generate(models: Models, call: Call, watch: _Watch) -> list[Reading]:
    options = call.options()
    if watch.texts is not None:  # they say themselves where they end
        options |= {"eos_token_id": None, "max_new_tokens": max(map(len, watch.texts))}
    type(models.target).generate(models.target, **options, logits_processor=LogitsProcessorList([watch]))
    return watch.readings()


class _Watch(LogitsProcessor):
    """Keeps scores as plain decoding goes along; leads it along texts, where there are some."""

    def __init__(self, columns: int, rows: int, texts: Sequence[Reading | Sequence[int]] | None = None):
        self.columns = columns
        self.texts, self.ids = None, [None] * rows
        if texts is not None:
            self.texts = [list(t.taken if isinstance(t, Reading) else t) for t in texts]
            self.ids = [t.ids if isinstance(t, Reading) else None for t in texts]
        self.found: list[list[tuple[torch.Tensor, torch.Tensor]]] = [[] for _ in range(rows)]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = input_ids.shape[1] - self.columns
        best = scores.argmax(-1).tolist()
        follows = [text[min(at, len(text) - 1)] for text in self.texts] if self.texts else best
        for b, token in enumerate(follows):
            if self.texts is None or at < len(self.texts[b]):
                self._keep(b, at, token, scores[b])
        if self.texts is None:
            return scores
        led = torch.full_like(scores, -torch.inf)
        return led.scatter(1, torch.tensor(follows, device=scores.device)[:, None], 0.0)

    def _keep(self, b: int, at: int, token: int, scores: torch.Tensor) -> None:
        if (known := self.ids[b]) is not None:
            ids = known[at].to(scores.device)
        else:
            best = scores.topk(min(BEST, len(scores))).indices
            ids = torch.cat([torch.tensor([token], device=scores.device), best])
        self.found[b].append((ids.cpu(), scores[ids].float().cpu()))

    def readings(self) -> list[Reading]:
        return [Reading(*(torch.stack(parts) for parts in zip(*row, strict=True))) for row in self.found]
