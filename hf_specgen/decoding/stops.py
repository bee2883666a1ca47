"""When a row ends: every criterion, asked token by token inside an accepted block, as plain decoding asks it."""

import copy

import torch
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ..errors import SpecUnsupportedError


class Stops:
    """The criteria of one row. Those that look at one token or the length are asked on the host, the others with
    `[1, length]` ids of the unpadded row."""

    def __init__(self, criteria: StoppingCriteriaList, pad: int, own_copies: bool):
        """
        Args:
            criteria: as `generate` prepared them.
            pad: padding columns of this row: lengths count columns of the padded input, as in plain decoding.
            own_copies: custom criteria are copied, because other rows use them too.
        """
        self.eos: set[int] = set()
        self.max_tokens: int | None = None
        self.others = []
        for criterion in criteria:
            if type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.tolist())
            elif type(criterion) is MaxLengthCriteria:
                limit = criterion.max_length - pad
                self.max_tokens = limit if self.max_tokens is None else min(limit, self.max_tokens)
            else:
                self.others.append(_copied(criterion) if own_copies else criterion)

    def end(
        self, ids: torch.Tensor, length: int, new: list[int], scores: list[torch.Tensor] | None
    ) -> tuple[int, bool]:
        """How many of the `new` tokens stay, and whether the row ends with the last of them.

        Args:
            ids: `[capacity]`, the row's text; positions `length` … `length + len(new) - 1` already hold `new`.
            length: of the text before `new`.
            scores: the row's processed scores so far and for `new`, each `[vocabulary]`, if they are kept.
        """
        for i, token in enumerate(new, start=1):
            done = token in self.eos or (self.max_tokens is not None and length + i >= self.max_tokens)
            if self.others:
                text = ids[None, : length + i]
                seen = None if scores is None else tuple(s[None] for s in scores[: len(scores) - len(new) + i])
                for criterion in self.others:  # all of them, as plain does: a stateful one counts its calls
                    done = bool(torch.as_tensor(criterion(text, seen)).any()) or done
            if done:
                return i, True
        return len(new), False


def _copied(criterion):
    if type(criterion).__module__.startswith("transformers."):
        return criterion
    try:
        return copy.deepcopy(criterion)
    except Exception as error:
        raise SpecUnsupportedError(
            f"The stopping criterion {type(criterion).__name__} cannot be copied ({error}), so that rows of a "
            "batch would share its state. Pass one prompt at a time, or give it a __deepcopy__."
        ) from error
