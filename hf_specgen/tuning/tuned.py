"""What tuning has found: for which pair, and the settings for each temperature, task and number of rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..errors import SpecUnsupportedError
from .fingerprint import NAME, differences, fingerprint

if TYPE_CHECKING:
    from ..config import SpecConfig

AGAIN = "hf-specgen tune TARGET DRAFT"


@dataclass(frozen=True)
class Entry:
    """The settings that were found best in one place.

    Attributes:
        temperature: 0 is greedy.
        task: None for the prompts of all tasks.
        batch: rows of a call; None for all batch sizes that were looked at. With a number, `task` is None.
        speedup: paired median over plain decoding, after the prefills.
        why: in words.
    """

    temperature: float
    settings: SpecConfig
    task: str | None = None
    batch: int | None = None
    speedup: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Tuned:
    """
    Attributes:
        target, draft: see `fingerprint`; no draft: None.
        entries: those of all prompts and batch sizes, and those of tasks and of batch sizes that differ from them; at
            least one, by temperature.
        tasks: all that were looked at apart.
        batch_sizes: all that were looked at.
        measured: on what: versions, device, threads, prompts, for information.
    """

    target: dict[str, Any]
    draft: dict[str, Any] | None
    entries: tuple[Entry, ...]
    tasks: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = (1,)
    measured: dict[str, Any] = field(default_factory=dict)

    def at(self, temperature: float, rows: int) -> SpecConfig:
        """Of the nearest temperature and, where that may decide, the nearest number of rows (of two, the lower one).

        A sampled row's ids can depend on how much is drafted, and must not on its neighbours: there, all numbers of
        rows have the same settings.
        """
        nearest = min(self._general, key=lambda entry: _distance(entry.temperature, temperature))
        batch = None if temperature else min(self.batch_sizes, key=lambda size: _distance(size, rows))
        own = (e for e in self.entries if e.task is None and e.temperature == nearest.temperature)
        return next((e.settings for e in own if e.batch == batch), nearest.settings)

    def of_task(self, task: str) -> Tuned:
        """With what was found for this task, where that differs from what is best for all. What was found for a batch
        size holds for every task.

        Raises:
            SpecUnsupportedError: it was not looked at apart.
        """
        if task not in self.tasks:
            known = f"It knows {', '.join(self.tasks)}" if self.tasks else "It tells no tasks apart"
            raise SpecUnsupportedError(f"task={task!r}: {known}. Leave task= out, or: {AGAIN} --per-task.")
        own = {entry.temperature: replace(entry, task=None) for entry in self.entries if entry.task == task}
        general = (own.get(entry.temperature, entry) for entry in self._general)
        batches = (entry for entry in self.entries if entry.batch is not None)
        return replace(self, entries=(*general, *batches))

    @property
    def _general(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.task is None and entry.batch is None]

    def check(self, target: Any, draft: Any) -> None:
        """Raises SpecUnsupportedError for other models than those that were tuned. One that was tuned without a draft,
        or is used without, does not ask for it."""
        for role, tuned, here in (("target", self.target, target), ("draft", self.draft, draft)):
            if tuned is None or here is None:
                continue
            found = fingerprint(here)
            if what := differences(tuned, found):
                raise SpecUnsupportedError(
                    f"This spec_config was tuned for another {role} ({tuned.get(NAME) or 'unnamed'}; here "
                    f"{found[NAME] or 'unnamed'}): {what}. Tune this pair: {AGAIN}, or leave spec_config out."
                )


def _distance(one: float, wanted: float) -> tuple[float, float]:
    """To be sorted by: of two that are as near, the lower one comes first."""
    return abs(one - wanted), one
