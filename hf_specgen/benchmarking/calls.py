"""What a contender is given, and what it gives back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from ..stats import RowStats, SpecStats

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class Models:
    """`assistant_tokenizer`: the draft's, where its ids are not the target's."""

    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase
    assistant_tokenizer: PreTrainedTokenizerBase | None = None

    @property
    def tokenizers(self) -> dict[str, Any]:
        """Arguments of `generate` for a draft with ids of its own."""
        if self.assistant_tokenizer is None:
            return {}
        return {"tokenizer": self.tokenizer, "assistant_tokenizer": self.assistant_tokenizer}


@dataclass(frozen=True)
class Call:
    """One prompt, or several to decode together.

    Attributes:
        input_ids, attention_mask: int64 `[rows, columns]`, padded on the left.
        temperature: 0 is greedy.
        top_k, top_p: 0 and 1 leave all tokens.
        eos: ids that end a row.
        seed: of a sampled call; torch's global generator has it already.
    """

    input_ids: torch.Tensor
    attention_mask: torch.Tensor
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    eos: tuple[int, ...]
    pad: int
    seed: int

    def options(self) -> dict[str, Any]:
        """As arguments of `generate`."""
        options = {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "max_new_tokens": self.max_new_tokens,
            "eos_token_id": list(self.eos) or None,
            "pad_token_id": self.pad,
            "do_sample": self.temperature > 0,
        }
        if self.temperature > 0:
            options |= {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}
        return options

    def rows(self) -> list[Call]:
        """Each row as a call of its own, without padding."""
        pairs = zip(self.input_ids, self.attention_mask.bool(), strict=True)
        rows = [ids[mask][None] for ids, mask in pairs]
        return [replace(self, input_ids=ids, attention_mask=torch.ones_like(ids)) for ids in rows]

    def new_ids(self, sequences: torch.Tensor) -> list[list[int]]:
        """Each row's new tokens, up to and with its EOS, of what `generate` returned."""
        rows = sequences[:, self.input_ids.shape[1] :].tolist()
        ends = (next((i + 1 for i, token in enumerate(row) if token in self.eos), len(row)) for row in rows)
        return [row[:end] for row, end in zip(rows, ends, strict=True)]


@dataclass
class Answer:
    """What came of a call. None: this contender does not tell.

    Attributes:
        ids: new tokens of each row, up to and with its EOS.
        first_token_seconds: from the call to the first new token.
        decode_seconds: everything after both models' prefills.
        stats: rounds, drafted and accepted tokens; of ours, all that it holds.
        split: seconds of `decode_seconds` in the draft, in the target, in everything else.
        draft_forwards: of one position each, the draft's prefill not among them.
    """

    ids: list[list[int]]
    first_token_seconds: float | None = None
    decode_seconds: float | None = None
    stats: SpecStats | None = None
    split: tuple[float, float, float] | None = None
    draft_forwards: int | None = None


def eos_of(model: PreTrainedModel) -> tuple[int, ...]:
    """Ids that end a text of this model's, as `Call.eos`."""
    eos = model.generation_config.eos_token_id
    return tuple(eos) if isinstance(eos, (list, tuple)) else () if eos is None else (eos,)


def joined(answers: list[Answer]) -> Answer:
    """Of rows that were decoded one after the other."""
    if len(answers) == 1:
        return answers[0]
    decode = [answer.decode_seconds for answer in answers]
    stats = None
    if all(answer.stats is not None for answer in answers):
        stats = SpecStats()
        for answer in answers:
            stats.add(answer.stats)
    return Answer(
        ids=[row for answer in answers for row in answer.ids],
        decode_seconds=None if None in decode else sum(decode),
        stats=stats,
    )


def told(rounds: list[tuple[int, int, str | None]], emitted: int) -> SpecStats:
    """Of one row of a contender that counts in its own way.

    Args:
        rounds: drafted and accepted tokens, and where they came from (None: not told, or nothing drafted).
    """
    row = RowStats(emitted, trace=[(d, a) for d, a, _ in rounds], sources=[s if d else None for d, _, s in rounds])
    return SpecStats(rows=[row], calls=1)


@contextlib.contextmanager
def settings_of(model: PreTrainedModel | None, **settings: Any) -> Iterator[None]:
    """Inside, the model's generation config says these and which ids are special; nothing of its own sampling."""
    if model is None:
        yield
        return
    from transformers import GenerationConfig

    own = model.generation_config
    special = {name: getattr(own, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model.generation_config = GenerationConfig(**special, **settings)
    try:
        yield
    finally:
        model.generation_config = own
