"""Families of published models (families.json), and the place of a model among them.

Drafts of a family share most ids with its targets. Which do so entirely says `tokenizer`; only check_pair knows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..checkpoints.config import read_json, text_facts
from ..checkpoints.hub import folder_of, name_of, split_name
from .codec import UnreadableTokenizerError
from .tokenizers import FolderSource, Vocabulary


@dataclass(frozen=True)
class Member:
    """One size of one line of models."""

    ids: Mapping[str, str]
    """Hub ids by variant: instruct, base."""
    billions: float
    """Parameters."""
    active_billions: float
    """Those that one token reads: fewer in a mixture of experts."""
    rows: int | None
    """Rows of logits, padding included; None: not known."""
    tokenizer: str
    line: str | None
    """Coder, Math …; None for the general models."""

    def id(self, variant: str | None) -> str:
        """That variant's id, or the other's if there is none."""
        return self.ids.get(variant or "instruct") or next(iter(self.ids.values()))


@dataclass(frozen=True)
class Family:
    name: str
    architectures: tuple[str, ...]
    """As in config.json."""
    tokenizers: Mapping[str, Mapping[str, Any]]
    """By name: `class` as in tokenizer_config.json, `tokens`, and `marks`, some ids with their strings."""
    members: tuple[Member, ...]
    """By size."""
    notes: tuple[str, ...]
    no_pair: str | None
    """Why no member is four times another."""


@dataclass(frozen=True)
class Place:
    """Where a model belongs."""

    family: Family
    tokenizer: str | None
    """None: not known which of the family's."""
    member: Member | None
    """None: it is none of the published sizes, or not known which."""
    variant: str | None
    how: str
    """What told it."""


@lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    content = json.loads(Path(__file__).with_name("families.json").read_text(encoding="utf-8"))
    return tuple(
        Family(
            name=family["name"],
            architectures=tuple(family["architectures"]),
            tokenizers=family["tokenizers"],
            members=tuple(map(_member, family["members"])),
            notes=tuple(family.get("notes", ())),
            no_pair=family.get("no_pair"),
        )
        for family in content
    )


def place_of(target: str | os.PathLike[str]) -> Place | None:
    """By its Hub id, else by what its folder says: the names it was made from, then its architecture, rows and tokens.

    None when no family fits. A Hub id of the table is not fetched.

    Raises:
        FileNotFoundError, ValueError: the target is neither such an id nor a readable model.
    """
    if not os.path.isdir(target):
        repository, _ = split_name(target)
        if place := _by_id(repository):
            return place
    folder = folder_of(target)
    config = config_of(folder)
    rows = text_facts(config).get("vocab_size")
    for hint in _hints(folder, config):
        place = _by_id(hint) or _by_short_name(hint, rows)
        architectures = config.get("architectures")
        if place and (not architectures or set(architectures) & set(place.family.architectures)):
            return place
    return _by_config(config, rows, folder)


def config_of(folder: Path) -> dict[str, Any]:
    """The content of config.json; that of adapter_config.json where there is no other.

    Raises:
        FileNotFoundError, ValueError: there is none that can be read.
    """
    for name in ("config.json", "adapter_config.json"):
        if (folder / name).exists():
            return read_json(folder / name)
    raise FileNotFoundError(f"{folder} holds no config.json, so it is not a model's folder")


def _member(entry: dict[str, Any]) -> Member:
    return Member(
        ids={variant: entry[variant] for variant in ("instruct", "base") if variant in entry},
        billions=entry["billions"],
        active_billions=entry.get("active_billions", entry["billions"]),
        rows=entry.get("rows"),
        tokenizer=entry["tokenizer"],
        line=entry.get("line"),
    )


def _published() -> Iterator[tuple[Family, Member, str, str]]:
    for family in families():
        for member in family.members:
            for variant, id_ in member.ids.items():
                yield family, member, variant, id_


def _by_id(name: str) -> Place | None:
    for family, member, variant, id_ in _published():
        if id_.lower() == name.lower():
            return Place(family, member.tokenizer, member, variant, f"its name is {id_}")
    return None


def _by_short_name(hint: str, rows: int | None) -> Place | None:
    """ "Qwen2.5 Coder 0.5B Instruct AWQ" begins with a published name; the longest such name, with as many rows."""
    asked = _short(hint) + "-"
    found = [entry for entry in _published() if asked.startswith(_short(entry[3]) + "-") and entry[1].rows == rows]
    if not found:
        return None
    family, member, variant, id_ = max(found, key=lambda entry: len(_short(entry[3])))
    return Place(family, member.tokenizer, member, variant, f"named or made after {id_}: {hint!r}")


def _by_config(config: Mapping[str, Any], rows: int | None, folder: Path) -> Place | None:
    architectures = set(config.get("architectures") or ())
    alike = [
        family
        for family in families()
        if architectures & set(family.architectures) and any(rows == member.rows for member in family.members)
    ]
    if not alike:
        return None
    how = f"{', '.join(sorted(architectures))} with {rows} rows of logits"
    try:
        source = FolderSource.of(folder)
        vocabulary = source.read().vocabulary if source else None
    except UnreadableTokenizerError:
        vocabulary = None
    if vocabulary is None:
        return Place(alike[0], None, None, None, how) if len(alike) == 1 else None
    for family in alike:
        if fitting := [name for name, facts in family.tokenizers.items() if _fits(facts, vocabulary)]:
            tokenizer = max(fitting, key=lambda name: len(family.tokenizers[name].get("marks", ())))
            return Place(family, tokenizer, None, None, f"{how} and {len(vocabulary)} tokens")
    return None


def _fits(facts: Mapping[str, Any], vocabulary: Vocabulary) -> bool:
    """Without marks to tell it by, its number of tokens; without that, architecture and rows have to do."""
    if marks := facts.get("marks"):
        return all(vocabulary.get(int(id_)) == token for id_, token in marks.items())
    return facts.get("tokens") in (None, len(vocabulary))


def _hints(folder: Path, config: Mapping[str, Any]) -> Iterator[str]:
    """Names of the model itself, then of those that it was made from."""
    if name := name_of(folder):
        yield split_name(name)[0]
    for key in ("_name_or_path", "name_or_path", "_model_name_or_path", "base_model_name_or_path"):
        if isinstance(config.get(key), str):
            yield config[key]
    if (folder / "README.md").exists():
        from huggingface_hub import metadata_load

        base = (metadata_load(folder / "README.md") or {}).get("base_model") or ()
        yield from (base,) if isinstance(base, str) else base
    yield folder.resolve().name


def _short(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.rstrip("/").rsplit("/", 1)[-1].strip()).lower()
