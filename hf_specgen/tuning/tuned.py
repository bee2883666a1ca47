"""What tuning has found: for which pair, and the settings for each temperature and task."""

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
        speedup: paired median over plain decoding, after the prefills.
        why: in words.
    """

    temperature: float
    settings: SpecConfig
    task: str | None = None
    speedup: float | None = None
    why: str = ""


@dataclass(frozen=True)
class Tuned:
    """
    Attributes:
        target, draft: see `fingerprint`; no draft: None.
        entries: those of all prompts, and those of tasks that differ from them; at least one, by temperature.
        tasks: all that were looked at apart.
        measured: on what: versions, device, threads, prompts, for information.
    """

    target: dict[str, Any]
    draft: dict[str, Any] | None
    entries: tuple[Entry, ...]
    tasks: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)

    def at(self, temperature: float) -> SpecConfig:
        """Of the nearest temperature (of two, the lower one)."""
        general = [entry for entry in self.entries if entry.task is None]
        return min(general, key=lambda entry: (abs(entry.temperature - temperature), entry.temperature)).settings

    def of_task(self, task: str) -> Tuned:
        """With what was found for this task, where that differs from what is best for all.

        Raises:
            SpecUnsupportedError: it was not looked at apart.
        """
        if task not in self.tasks:
            known = f"It knows {', '.join(self.tasks)}" if self.tasks else "It tells no tasks apart"
            raise SpecUnsupportedError(f"task={task!r}: {known}. Leave task= out, or: {AGAIN} --per-task.")
        own = {entry.temperature: replace(entry, task=None) for entry in self.entries if entry.task == task}
        general = (entry for entry in self.entries if entry.task is None)
        return replace(self, entries=tuple(own.get(entry.temperature, entry) for entry in general))

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
