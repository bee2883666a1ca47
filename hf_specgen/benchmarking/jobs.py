"""Which calls a bench consists of: prompts, at a temperature, in batches, filled up with text."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..measuring.prompts import Messages, encode
from .names import Entrant
from .record import Cell
from .settings import Settings
from .tasks import Tasks, filler, spread

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MIXED = "mixed"
"""The task of a batch with prompts of all tasks."""


@dataclass(frozen=True)
class Job:
    """One call, whoever makes it. `rows`: token ids of each prompt, as long as they are."""

    task: str
    prompt: int
    temperature: float
    batch: int
    context: int
    rows: tuple[tuple[int, ...], ...]

    def cell(self, entrant: Entrant) -> Cell:
        where = (self.task, self.prompt, self.temperature, self.batch, self.context)
        return Cell(entrant.name, *where, k=entrant.k, strategy=entrant.strategy)

    def entrants(self, among: list[Entrant]) -> list[Entrant]:
        """Who makes it: greedily, all acceptance rules are one, so the first stands for all."""
        if self.temperature:
            return among
        return list({entrant.name: entrant for entrant in reversed(among)}.values())[::-1]

    @property
    def seed(self) -> int:
        """The same for all contenders and repetitions."""
        return zlib.crc32(repr((self.task, self.prompt, self.temperature, self.batch, self.context)).encode())

    @property
    def columns(self) -> int:
        return max(map(len, self.rows))


def groups(tasks: Tasks, settings: Settings, tokenizer: PreTrainedTokenizerBase) -> list[list[Job]]:
    """The jobs, in groups of equal temperature, batch and context.

    Raises:
        ValueError: a prompt that the tokenizer cannot take.
    """
    found = []
    for context in settings.contexts:
        texts = _Encoder(tokenizer, context)
        for batch in settings.batch_sizes if settings.concurrency is None else [settings.concurrency]:
            places = _starts(tasks, settings, batch)
            filled = [(task, start, tuple(map(texts, rows))) for task, start, rows in places]
            for temperature in settings.temperatures:
                found.append([Job(task, start, temperature, batch, context, rows) for task, start, rows in filled])
    return found


def mixture(tasks: Tasks, count: int) -> list[str | Messages]:
    """Prompts of all tasks in turn, again from the beginning where there are not as many."""
    turns = [prompts[i % len(prompts)] for i in range(count) for prompts in tasks.values()]
    return turns[:count]


def _starts(tasks: Tasks, settings: Settings, batch: int) -> list[tuple[str, int, list[str | Messages]]]:
    """(task, index of the first prompt, prompts): an index means the same prompt whatever else is chosen."""
    if settings.concurrency is not None:
        return [(MIXED, 0, mixture(tasks, batch))]
    return [
        (task, start, [prompts[(start + i) % len(prompts)] for i in range(batch)])
        for task, prompts in tasks.items()
        for start in spread(len(prompts), settings.per_task)[::batch]
    ]


class _Encoder:
    """Prompts → token ids, filled up to `context` tokens with text in front of the (last) question."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, context: int):
        self.tokenizer, self.context = tokenizer, context
        self.text: list[int] = []
        if context:
            once = tokenizer(filler() + "\n\n", add_special_tokens=False)["input_ids"]
            self.text = once * (1 + context // len(once))

    def __call__(self, prompt: str | Messages) -> tuple[int, ...]:
        ids = self._ids(prompt)
        if len(ids) >= self.context:
            return ids
        before = self.tokenizer.decode(self.text[: self.context - len(ids)])
        if isinstance(prompt, str):
            return self._ids(f"{before}\n\n{prompt}")
        *earlier, last = prompt
        return self._ids([*earlier, last | {"content": f"{before}\n\n{last['content']}"}])

    def _ids(self, prompt: str | Messages) -> tuple[int, ...]:
        return tuple(encode(self.tokenizer, prompt)["input_ids"][0].tolist())
