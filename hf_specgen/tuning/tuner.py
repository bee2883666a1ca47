"""Tuning: what it is to look at, checked; then a race for each temperature, and what follows from them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from ..benchmarking.jobs import Job, groups
from ..benchmarking.loading import Side, load
from ..benchmarking.machine import device_name, versions
from ..benchmarking.record import Record
from ..benchmarking.settings import Settings
from ..benchmarking.summary import PLAIN
from ..benchmarking.tasks import Tasks, chosen, own_tasks, read_tasks
from ..config import SpecConfig
from ..pairing import pair_up
from ..pairing.places import device_at
from .choosing import EVERYTHING, Decision, Scope, choose, choose_apart, rates_of
from .fingerprint import fingerprint
from .race import Listener, Race
from .tuned import Entry, Tuned

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..benchmarking.calls import Models
    from ..measuring.prompts import Messages

    ModelOrName = PreTrainedModel | str | os.PathLike[str]
    Prompts = Sequence[str | Messages] | Mapping[str, Sequence[str | Messages]] | str | os.PathLike[str] | None

GIVEN = "prompts"
"""The task of prompts that were given as a list."""


@dataclass(frozen=True)
class Outcome:
    """What was found at one temperature: for all calls, and for those of each task or batch size that differs."""

    temperature: float
    decisions: dict[Scope, Decision]
    records: list[Record]
    refused: dict[str, str]
    default: str


class Tuner:
    """Made, it has checked what can be checked without weights; `run` loads and measures.

    Args:
        target, draft: folders, Hub ids or models; no draft: lookup against plain decoding.
        prompts: a list, a dict of lists by task, a file (see `tasks.read_tasks`); None: the package's own tasks.
        tokenizer: the target's; None: the one beside its checkpoint.
        temperatures: 0 is greedy.
        tasks: names; None for all that the prompts have.
        limit: prompts, spread over the tasks; at least one of each.
        per_task: look at each task apart, too, with at least two prompts of each.
        batch_sizes: prompts of a task decoded together. Of several, each is looked at apart where calls may be told
            apart by their rows (see `Tuned.at`).
        max_new_tokens, repeats: of an answer, and of the race.
        minutes: about as long as it may take, shared among the temperatures; None: as long as it takes.
        dtype, device, draft_quantization: as in `load_pair`, for what is not loaded yet.

    Attributes:
        outcomes: by temperature, of `run`.

    Raises:
        ValueError, OSError, ImportError: what is wrong, before anything is loaded.
    """

    def __init__(
        self,
        target: ModelOrName,
        draft: ModelOrName | None = None,
        prompts: Prompts = None,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        temperatures: Sequence[float] = (0.0, 1.0),
        tasks: Iterable[str] | None = None,
        limit: int = 12,
        per_task: bool = False,
        batch_sizes: Sequence[int] = (1,),
        max_new_tokens: int = 64,
        repeats: int = 3,
        minutes: float | None = None,
        dtype: str = "auto",
        device: str | None = None,
        draft_quantization: str | None = None,
    ):
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"limit={limit!r}: pass a whole number of at least 1.")
        if minutes is not None and not minutes > 0:
            raise ValueError(f"minutes={minutes!r}: pass a number above 0, or leave it out.")
        if draft is None and draft_quantization is not None:
            raise ValueError(f"draft_quantization={draft_quantization!r}, but there is no draft.")
        self.tasks = chosen(_tasks(prompts), tasks)
        self.settings = Settings(
            per_task=max(2 if per_task else 1, limit // len(self.tasks)),
            temperatures=tuple(temperatures),
            batch_sizes=tuple(batch_sizes),
            max_new_tokens=max_new_tokens,
            repeats=repeats,
        )
        self.per_task, self.minutes, self.device = per_task, minutes, device
        device_at(device, "device")
        self.target = Side("target", target, dtype)
        self.draft = None if draft is None else Side("draft", draft, dtype, draft_quantization)
        self.tokenizer = tokenizer or self.target.tokenizer()
        self.groups = _by_temperature(self.tasks, self.settings, self.tokenizer)
        self._check_lengths()
        self.outcomes: list[Outcome] = []

    def run(self, listener: Listener = lambda *step: None) -> SpecConfig:
        """Load and measure. Nothing is written.

        Args:
            listener: see `race.Listener`.

        Raises:
            ValueError, OSError, ImportError: the models cannot be loaded, or cannot decode.
        """
        models = load(self.target, self.draft, self.tokenizer, self.device)
        tokens = _trimmable(models)
        start, made, entries = time.monotonic(), 0, []
        for number, group in enumerate(self.groups):
            left, temperature = len(self.groups) - number, group[0].temperature
            share = float("inf") if self.minutes is None else 60 * self.minutes * (number + 1) / len(self.groups)

            def told(what: str, done: int, expected: int, made=made, left=left, temperature=temperature) -> None:
                listener(f"T={temperature:g} {what}", made + done, made + left * expected)

            race = Race(models, group, self.settings, tokens, start + share, self._apart(temperature), told)
            race.run()
            made += race.done
            entries += self._decide(race, temperature)
        tuned = Tuned(
            target=fingerprint(models.target),
            draft=None if models.draft is None else fingerprint(models.draft),
            entries=tuple(entries),
            tasks=tuple(self.tasks) if self.per_task else (),
            batch_sizes=self.settings.batch_sizes,
            measured=self._measured(models),
        )
        return replace(entries[0].settings, tuned=tuned)

    def _apart(self, temperature: float) -> list[Scope]:
        sizes = self.settings.batch_sizes if len(self.settings.batch_sizes) > 1 and not temperature else ()
        tasks = self.tasks if self.per_task else ()
        return [*(Scope(task=task) for task in tasks), *(Scope(batch=size) for size in sizes)]

    def _decide(self, race: Race, temperature: float) -> list[Entry]:
        decisions = {EVERYTHING: choose(rates_of(race.records), race.default)}
        for scope in race.apart:
            if (found := choose_apart(rates_of(race.records, scope), decisions[EVERYTHING].winner)) is not None:
                decisions[scope] = found
        self.outcomes.append(Outcome(temperature, decisions, race.records, race.refused, race.default))
        return [
            Entry(temperature, _settings(race, decision, scope.task), *scope, round(decision.speedup, 3), decision.why)
            for scope, decision in decisions.items()
        ]

    def _measured(self, models: Models) -> dict[str, Any]:
        return {
            "versions": versions(),
            "device": device_name(models.target.device),
            "threads": torch.get_num_threads(),
            "max_new_tokens": self.settings.max_new_tokens,
            "prompts": dict(Counter(job.task for job in self.groups[0] if job.batch == self.settings.batch_sizes[0])),
        }

    def _check_lengths(self) -> None:
        room = self.target.context_length()
        for job in (job for group in self.groups for job in group):
            if job.columns + self.settings.max_new_tokens > room:
                raise ValueError(
                    f"A prompt of {job.task!r} of {job.columns} tokens and {self.settings.max_new_tokens} new ones do "
                    f"not fit into the target's {room} positions: leave it out, or ask for less."
                )


def tune(target: ModelOrName, draft: ModelOrName | None = None, prompts: Prompts = None, **options: Any) -> SpecConfig:
    """The best settings for a pair on this machine, of what `Tuner` tries: `tune(target, draft, prompts,
    tokenizer=tokenizer).save_pretrained(folder)`, then `generate(..., spec_config=folder)`.

    Args:
        options: those of `Tuner`, which says what all of them mean.

    Raises:
        ValueError, OSError, ImportError: see `Tuner`.
    """
    return Tuner(target, draft, prompts, **options).run()


def _settings(race: Race, decision: Decision, task: str | None) -> SpecConfig:
    """Of the winner; of a task apart, with what its prompts have told."""
    if decision.winner == PLAIN:
        return SpecConfig("rejection", spec_source="none", off_reason=decision.why)
    config = race.tried[decision.winner].config
    if task is None or config.knowledge is None or not any(of == task for of, _ in race.surveys):
        return config
    own = race.knowledge(task)
    return replace(config, knowledge=replace(own, costs=config.knowledge.costs))


def _tasks(prompts: Prompts) -> Tasks:
    if prompts is None:
        return own_tasks()
    if isinstance(prompts, (str, os.PathLike)):
        return read_tasks(prompts)
    found = prompts if isinstance(prompts, Mapping) else {GIVEN: prompts}
    found = {task: list(texts) for task, texts in found.items()}
    if not found or not all(found.values()):
        raise ValueError("There are no prompts to tune with, or a task without any.")
    for prompt in (prompt for texts in found.values() for prompt in texts):
        if not isinstance(prompt, (str, list)) or not prompt:
            raise ValueError(f"A prompt is {prompt!r:.60}: pass a text, or a list of chat messages.")
    return found


def _by_temperature(tasks: Tasks, settings: Settings, tokenizer: PreTrainedTokenizerBase) -> list[list[Job]]:
    """One of each task and batch size, then the next: what is measured when the time is over is of all of them."""
    jobs, found = [job for group in groups(tasks, settings, tokenizer) for job in group], []
    for temperature in settings.temperatures:
        places = [(temperature, task, size) for task in tasks for size in settings.batch_sizes]
        lines = [[job for job in jobs if (job.temperature, job.task, job.batch) == place] for place in places]
        found.append([job for turn in zip_longest(*lines) for job in turn if job is not None])
    return found


def _trimmable(models: Models) -> int:
    """Tokens of the draft, where the target's ids are its own; else 0."""
    if models.draft is None or pair_up(models.target, models.draft, models.tokenizer, models.assistant_tokenizer):
        return 0
    head = models.draft.get_output_embeddings()
    return getattr(head, "out_features", None) or 0
