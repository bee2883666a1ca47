"""Whether an answer is plain decoding's, token by token, and how close the two tokens were where it is not."""

from __future__ import annotations

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from .calls import Answer, Call
from .contenders import Plain


class Reference:
    """Plain's greedy answer to a call. It decodes that itself only if nobody has brought it.

    Attributes:
        ids: plain's new tokens of each row, once they are known.
    """

    def __init__(self, plain: Plain, call: Call):
        self.plain, self.call = plain, call
        self.ids: list[list[int]] | None = None
        self._logits: dict[tuple[int, int], torch.Tensor] = {}

    def compare(self, answer: Answer) -> tuple[bool, int | None, float | None]:
        """(same, first other token, plain's logit of its own token there - its logit of the other one).

        Of the row that parts first. The gap is None where one of the two has ended.
        """
        if self.ids is None:
            self.ids = self.plain.decode(self.call).ids
        parted = [
            (_first_difference(wanted, got), row)
            for row, (wanted, got) in enumerate(zip(self.ids, answer.ids, strict=True))
            if wanted != got
        ]
        if not parted:
            return True, None, None
        at, row = min(parted)
        wanted, got = self.ids[row], answer.ids[row]
        if at == min(len(wanted), len(got)):
            return False, at, None
        logits = self._logits_at(row, at)
        return False, at, float(logits[wanted[at]] - logits[got[at]])

    def _logits_at(self, row: int, at: int) -> torch.Tensor:
        """float32 `[vocabulary]`, of the same decoding once more: another way to read the text rounds differently."""
        if (row, at) not in self._logits:
            keep = _Keep(row, self.call.input_ids.shape[1] + at)
            self.plain.decode(self.call, stopping_criteria=[keep.reached], logits_processor=LogitsProcessorList([keep]))
            self._logits[row, at] = keep.logits
        return self._logits[row, at]


class _Keep(LogitsProcessor):
    """Keeps the logits of one row at one step."""

    def __init__(self, row: int, columns: int):
        self.row, self.columns = row, columns

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == self.columns:
            self.logits = scores[self.row].float().cpu()
        return scores

    def reached(self, input_ids: torch.Tensor, scores, **_) -> torch.Tensor:
        return torch.full(input_ids.shape[:1], input_ids.shape[1] > self.columns, device=input_ids.device)


def _first_difference(wanted: list[int], got: list[int]) -> int:
    shorter = min(len(wanted), len(got))
    return next((i for i in range(shorter) if wanted[i] != got[i]), shorter)
