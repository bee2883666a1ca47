"""The folder of a bench: `manifest.json`, what was measured on what, and `records.jsonl`, one line per call."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from ..files import write_whole
from .record import Cell, Record

MANIFEST, RECORDS = "manifest.json", "records.jsonl"
ARGUMENTS, COMMANDS = "arguments", "commands"
"""The parts of a manifest that may change from run to run: what was asked for last, and the commands that asked."""
LOADED_DTYPE = "loaded dtype"
"""Of each model in it: what "auto" came to."""


class Store:
    """Records, kept on disk as they come (without a folder: in memory only).

    Attributes:
        manifest: of this run, and of the runs before it in this folder.
        records: of these runs, too. Without those that failed: they are measured again.
    """

    def __init__(self, folder: str | os.PathLike[str] | None, manifest: dict[str, Any]):
        """
        Raises:
            ValueError: the folder holds something else, or a bench of other models, prompts, versions or lengths; the
                message says what differs.
        """
        self.folder = None if folder is None else Path(folder)
        self.manifest, self.records = manifest, []
        self._file = None
        if self.folder is None:
            return
        if (self.folder / MANIFEST).is_file():
            self.manifest = merged(read_manifest(self.folder), manifest, self.folder)
            if (self.folder / RECORDS).is_file():
                self.records = [record for record in read_records(self.folder) if record.error is None]
        elif self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            raise ValueError(f"{self.folder} is not empty, and not a bench's: pass a new folder.")

    def open(self) -> None:
        """Write the manifest, and whatever is worth keeping; from here on records are appended."""
        if self.folder is None:
            return
        write_whole(self.folder / MANIFEST, json.dumps(self.manifest, indent=2) + "\n")
        write_whole(self.folder / RECORDS, "".join(map(_line, self.records)))
        self._file = (self.folder / RECORDS).open("a", encoding="utf-8")

    def add(self, record: Record) -> None:
        """Raises OSError, with the file's name, where it cannot be written (a full disk)."""
        self.records.append(record)
        if self._file is not None:
            try:
                self._file.write(_line(record))
                self._file.flush()
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._file.name) from None

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # what could not be written was told then
                self._file.close()
            self._file = None

    def known(self) -> set[tuple[Cell, int]]:
        """What need not be measured: (cell, repetition)."""
        return {(record.cell, record.repeat) for record in self.records}


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """
    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not one.
    """
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"There is no {path}: pass the folder that hf-specgen bench --out has written.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): pass another folder.") from None
    if not isinstance(manifest, dict):
        raise ValueError(f"{path} is not a bench's: pass another folder.")
    return manifest


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """What a bench has measured: of its folder, or of a file of its lines, whatever its name. A last line that was cut
    off (the process was killed) does not count.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line that is no record, by its number.
    """
    path = Path(path)
    path = path / RECORDS if path.is_dir() else path
    if not path.exists():  # a pipe will do
        raise FileNotFoundError(f"There is no {path}: pass what hf-specgen bench --out has written.")
    try:
        *lines, last = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}), and so not a bench's records.") from None
    records = []
    for number, line in enumerate((*lines, last), start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except (ValueError, RecursionError):
            if number > len(lines) and line.startswith("{"):  # cut off
                break
            raise ValueError(f"{path}, line {number}: this is not JSON: {line[:60]!r}.") from None
        try:
            records.append(Record.from_dict(data))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from None
    return records


def merged(old: dict[str, Any], new: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Both, where they do not contradict: a run may add contenders and tasks, not change what was measured.

    Raises:
        ValueError: they do.
    """
    compared = {name: value for name, value in new.items() if name not in (ARGUMENTS, COMMANDS)}
    if different := list(_differences(old, compared, "")):
        raise ValueError(f"{folder} holds another bench: {'; '.join(different)}. Pass a new folder.")
    commands = dict.fromkeys([*old.get(COMMANDS, []), *new.get(COMMANDS, [])])
    return _union(old, compared) | {ARGUMENTS: new.get(ARGUMENTS), COMMANDS: list(commands)}


def _differences(old: dict[str, Any], new: dict[str, Any], inside: str):
    for name in (name for name in new if name in old):
        before, now = old[name], new[name]
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{inside}{name}.")
        elif before != now:
            yield f"{inside}{name} was {_short(before)}, and is {_short(now)}"


def _union(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return old | {name: _union(old.get(name), value) for name, value in new.items()}


def _short(value: Any) -> str:
    return value.get("name", "another") if isinstance(value, dict) else json.dumps(value)


def _line(record: Record) -> str:
    return json.dumps(record.to_dict(), allow_nan=False) + "\n"
