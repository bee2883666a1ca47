"""The tasks of a bench and their prompts: the package's own, or those of a file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..measuring.prompts import Messages, read_prompts

Tasks = dict[str, list[str | Messages]]
"""Name → prompts, each a text or a list of chat messages."""

FOLDER = Path(__file__).parent / "prompts"
TASKS = ("code", "qa", "math", "writing", "translation", "summarization", "json", "sql", "code-editing")

SPEC_BENCH = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"), "multi-turn"
    ),
    "math_reasoning": "math",
}
"""Spec-Bench's categories → its sub-tasks, as its evaluation groups them; the others are sub-tasks themselves."""


def own_tasks() -> Tasks:
    """The prompts that come with the package."""
    return {task: read_prompts(FOLDER / f"{task}.jsonl") for task in TASKS}


def read_tasks(path: str | os.PathLike[str]) -> Tasks:
    """The prompts of a file, in the formats of `read_prompts`, by task.

    An object's task is its `task` or `category`; one with `turns` is Spec-Bench's, whose eight chat categories are one
    sub-task. What says no task belongs to one that is named after the file.

    Raises:
        ValueError, OSError: as `read_prompts`; a task that is no text.
    """
    path = Path(path)
    tasks: Tasks = {}
    for prompt, entry in zip(read_prompts(path), _entries(path), strict=True):
        task = path.stem
        if isinstance(entry, dict):
            task = entry.get("task", entry.get("category", task))
            if not isinstance(task, str) or not task:
                raise ValueError(f"{path}: a prompt's task is {task!r}; it must be a name.")
            if "turns" in entry:
                task = SPEC_BENCH.get(task, task)
        tasks.setdefault(task, []).append(prompt)
    return tasks


def chosen(tasks: Tasks, names: Iterable[str] | None) -> Tasks:
    """Those of these names, in their order; all of them for None.

    Raises:
        ValueError: a name that is none of them, or twice.
    """
    if names is None:
        return tasks
    names = list(names)
    for i, name in enumerate(names):
        if name not in tasks:
            raise ValueError(f"{name!r} is no task here. There are {', '.join(tasks)}.")
        if name in names[:i]:
            raise ValueError(f"The task {name!r} is named twice.")
    return {name: tasks[name] for name in names}


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of the indices 0 … count - 1, spread evenly."""
    return list(range(count)) if limit >= count else [i * count // limit for i in range(limit)]


def filler() -> str:
    """Running text to fill a context with: the passages that the summarization prompts are about."""
    return "\n\n".join(prompt for prompt in read_prompts(FOLDER / "summarization.jsonl") if isinstance(prompt, str))


def _entries(path: Path) -> list[Any]:
    """What the file says of each prompt."""
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return json.loads(content)
    lines = [line for line in content.splitlines() if line.strip()]
    return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines
