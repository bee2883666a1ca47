"""spec_config.json: written whole or not at all, and read with every name and value checked.

{"format": 1, "settings": [{…}]} for settings alone; of tuned ones each has its "temperature", "task", "batch",
"speedup" and "why", and beside them stand "target", "draft", "tasks", "batch_sizes" and "measured" (see `Tuned`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ..config import ARGUMENTS, SpecConfig
from ..errors import SpecUnsupportedError
from ..files import write_whole
from ..lengths import Knowledge, Length
from .tuned import AGAIN, Entry, Tuned

NAME, FORMAT = "spec_config.json", 1
OF_A_CALL = ("generator", "spec_session")
SAVED = tuple(name for name in ARGUMENTS if name not in OF_A_CALL)
FOUND = ("off_reason", "knowledge")
PLACE = tuple(f.name for f in fields(Entry) if f.name != "settings")
ABOUT = tuple(f.name for f in fields(Tuned) if f.name != "entries")


def write(config: SpecConfig, folder: str | os.PathLike[str]) -> Path:
    """See `SpecConfig.save_pretrained`."""
    file = Path(os.path.expanduser(folder)) / NAME
    write_whole(file, _lines(to_dict(config)) + "\n")
    return file


def read(path: str | os.PathLike[str], task: str | None = None) -> SpecConfig:
    """See `SpecConfig.from_pretrained`."""
    path = Path(os.path.expanduser(path))
    file = path / NAME if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"spec_config: there is no {file}. Make one: {AGAIN} --out FOLDER.")
    try:
        config = from_dict(json.loads(file.read_text(encoding="utf-8")))
        return config if task is None else _of_task(config, task)
    except (ValueError, RecursionError) as error:  # of json, of ours, of what is not UTF-8
        raise SpecUnsupportedError(f"{file}: {error}") from None


def to_dict(config: SpecConfig) -> dict[str, Any]:
    """What the file holds."""
    if (tuned := config.tuned) is None:
        return {"format": FORMAT, "settings": [_settings(config)]}
    entries = [{name: getattr(entry, name) for name in PLACE} | _settings(entry.settings) for entry in tuned.entries]
    return {"format": FORMAT} | {name: getattr(tuned, name) for name in ABOUT} | {"settings": entries}


def from_dict(content: Any) -> SpecConfig:
    """Raises ValueError for anything but what `to_dict` has given."""
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"this is no spec_config. Make one: {AGAIN}.")
    if content["format"] != FORMAT:
        told = f"it is of format {content['format']!r:.40}, and this version of hf-specgen reads {FORMAT}"
        raise ValueError(f"{told}. Again: {AGAIN}.")
    _only("it", content, ("format", "settings", *ABOUT))
    listed = _kind(content, "settings", list)
    if not listed or not all(isinstance(entry, dict) for entry in listed):
        raise ValueError(f"its 'settings' are {listed!r:.60}. Again: {AGAIN}.")
    entries = tuple(_entry(f"settings[{i}]", entry) for i, entry in enumerate(listed))
    if len(content) == 2 and len(entries) == 1:
        return entries[0].settings
    tuned = Tuned(
        target=_kind(content, "target", dict),
        draft=None if content.get("draft") is None else _kind(content, "draft", dict),
        entries=entries,
        tasks=tuple(_kind(content, "tasks", list)),
        batch_sizes=tuple(_kind(content, "batch_sizes", list)),
        measured=_kind(content, "measured", dict),
    )
    if not tuned.batch_sizes or not all(type(size) is int and size > 0 for size in tuned.batch_sizes):
        raise ValueError(f"its 'batch_sizes' is {list(tuned.batch_sizes)!r:.60}. Again: {AGAIN}.")
    for i, entry in enumerate(entries):
        known = entry.task in (None, *tuned.tasks) and entry.batch in (None, *tuned.batch_sizes)
        if not isinstance(entry.temperature, (int, float)) or not known:
            place = ", ".join(f"{name}={getattr(entry, name)!r:.40}" for name in ("temperature", "task", "batch"))
            raise ValueError(f"settings[{i}] is for {place}. Again: {AGAIN}.")
    if not any(entry.task is None and entry.batch is None for entry in entries):
        raise ValueError(f"it holds settings of tasks or batch sizes alone. Again: {AGAIN}.")
    return replace(entries[0].settings, tuned=tuned)


def _of_task(config: SpecConfig, task: str) -> SpecConfig:
    if config.tuned is None:
        raise ValueError(f"task={task!r}: it was not tuned. Leave task= out, or: {AGAIN} --per-task.")
    tuned = config.tuned.of_task(task)
    return replace(tuned.entries[0].settings, tuned=tuned)


def _settings(config: SpecConfig) -> dict[str, Any]:
    for name in OF_A_CALL:
        if getattr(config, name) is not None:
            raise SpecUnsupportedError(f"{name}= belongs to a call, and cannot be saved: leave it out.")
    found = {name: value for name in (*SAVED, *FOUND) if (value := getattr(config, name)) is not None}
    schedule = config.num_assistant_tokens_schedule
    if isinstance(schedule, Length):
        raise SpecUnsupportedError(
            f"A {type(schedule).__name__} cannot be saved as num_assistant_tokens_schedule: name a schedule instead."
        )
    if isinstance(schedule, Mapping):
        found["num_assistant_tokens_schedule"] = dict(schedule)
    if isinstance(config.draft_vocab_size, (list, tuple)):
        found["draft_vocab_size"] = _packed(config.draft_vocab_size)
    if config.knowledge is not None:
        found["knowledge"] = config.knowledge.to_dict()
    return found


def _entry(where: str, entry: dict[str, Any]) -> Entry:
    _only(where, entry, (*PLACE, *SAVED, *FOUND))
    if "spec_strategy" not in entry:
        raise ValueError(f"{where} names no spec_strategy. Again: {AGAIN}.")
    settings = {name: value for name, value in entry.items() if name in (*SAVED, *FOUND)}
    if isinstance(settings.get("draft_vocab_size"), dict):
        settings["draft_vocab_size"] = _unpacked(where, settings["draft_vocab_size"])
    if settings.get("knowledge") is not None:
        settings["knowledge"] = _knowledge(where, settings["knowledge"])
    place = {name: entry.get(name) for name in PLACE}
    try:
        return Entry(settings=SpecConfig(**settings), **place)
    except SpecUnsupportedError as error:
        raise ValueError(f"{where}: {error}") from None


def _knowledge(where: str, data: Any) -> Knowledge:
    try:
        return Knowledge.from_dict(data)
    except ValueError as error:
        raise ValueError(f"{where}: its knowledge is broken ({error}). Again: {AGAIN}.") from None


def _packed(ids: Iterable[int]) -> dict[str, Any]:
    """The first ids, up to a gap, by their number: they are most."""
    ids = sorted(set(ids))
    first = next((n for n, id_ in enumerate(ids) if n != id_), len(ids))
    return {"first": first, "others": ids[first:]}


def _unpacked(where: str, packed: dict[str, Any]) -> list[int]:
    first, others = packed.get("first"), packed.get("others")
    if set(packed) != {"first", "others"} or type(first) is not int or not isinstance(others, list):
        raise ValueError(f'{where}: draft_vocab_size is {packed!r:.60}, not a number or {{"first": …, "others": […]}}.')
    return [*range(first), *others]


def _lines(content: dict[str, Any], indent: str = " ") -> str:
    """JSON with a line per name: what is long (knowledge, ids) stays on one."""
    lines = []
    for name, value in content.items():
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        if name == "settings":
            text = "[" + ", ".join(_lines(entry, indent + " ") for entry in value) + "]"
        lines.append(f'{indent}"{name}": {text}')
    return "{\n" + ",\n".join(lines) + "\n" + indent[:-1] + "}"


def _only(where: str, content: dict[str, Any], known: tuple[str, ...]) -> None:
    for name in content:
        if name not in known:
            raise ValueError(f"{where} holds {name!r:.40}, which is none of {', '.join(known)}. Again: {AGAIN}.")


def _kind(content: dict[str, Any], name: str, kind: type) -> Any:
    if not isinstance(content.get(name), kind):
        raise ValueError(f"its {name!r} is {content.get(name)!r:.60}. Again: {AGAIN}.")
    return content[name]
