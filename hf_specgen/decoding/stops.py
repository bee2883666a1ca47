"""When a row ends: every criterion, asked token by token inside an accepted block, as plain decoding asks it."""

from types import FunctionType

import torch
from transformers import StoppingCriteriaList
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from ..copying import own_copy, rebinds_its_variables


class Stops:
    """The criteria of one row. Those that look at one token or the length are asked on the host. transformers' others
    see the unpadded row, `[1, length]`. Custom ones see what they see in plain decoding, a batch with its padding, but
    every row of it is this one: what they say of other rows does not matter."""

    def __init__(self, criteria: StoppingCriteriaList, prompt: torch.Tensor, pad: int, row: int, rows: int):
        """
        Args:
            criteria: as `generate` prepared them. Custom ones are copied if there are other rows that use them too.
            prompt: int64 `[columns]`, this row of the input, with its padding.
            pad: its padding columns: lengths count columns of the padded input, as in plain decoding.
            row, rows: its index, and how many there are.
        """
        self.prompt, self.pad, self.row, self.rows = prompt, pad, row, rows
        self.eos: set[int] = set()
        self.max_tokens: int | None = None
        self.built_in, self.custom = [], []
        for criterion in criteria:
            if type(criterion) is EosTokenCriteria:
                self.eos.update(criterion.eos_token_id.tolist())
            elif type(criterion) is MaxLengthCriteria:
                limit = criterion.max_length - pad
                self.max_tokens = limit if self.max_tokens is None else min(limit, self.max_tokens)
            elif type(criterion).__module__.startswith("transformers."):
                self.built_in.append(criterion)
            else:
                # A function's variables are most often looked at from outside, or set there: flags to stop, logs.
                own = rows > 1 and (not isinstance(criterion, FunctionType) or rebinds_its_variables(criterion))
                self.custom.append(own_copy(criterion, "stopping criterion") if own else criterion)

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
            for criterion in self.built_in:
                done = bool(criterion(ids[None, : length + i], None).any()) or done
            if self.custom:  # all of them are asked, as plain does: a stateful one counts its calls
                batch = self._batch(ids[: length + i])
                seen = None if scores is None else scores[: len(scores) - len(new) + i]
                seen = None if seen is None else tuple(s.expand(self.rows, -1) for s in seen)
                for criterion in self.custom:
                    said = torch.as_tensor(criterion(batch, seen)).flatten()
                    done = bool(said[self.row] if len(said) == self.rows else said.any()) or done
            if done:
                return i, True
        return len(new), False

    def _batch(self, text: torch.Tensor) -> torch.Tensor:
        """`[rows, columns + new]`: the row as plain decoding has it, once for every row there is."""
        new = text[len(self.prompt) - self.pad :]
        return torch.cat([self.prompt, new]).expand(self.rows, -1)
