"""Which licence a checkpoint's own files state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

FILES = ("LICENSE*", "LICENCE*", "COPYING*")
BEGINNINGS = {
    "apache-2.0": re.compile(r"\s*Apache License\s+Version 2\.0"),
    "mit": re.compile(r"\s*(The )?MIT License"),
    "cc-by-4.0": re.compile(r"\s*(Creative Commons )?Attribution 4\.0 International"),
}
IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.+-]*")


class Licence(NamedTuple):
    """`identifier`, as the Hub writes it (None: not known), and where it is said."""

    identifier: str | None
    source: str

    def __str__(self) -> str:
        return f"{self.identifier} ({self.source})" if self.identifier else self.source


def licence_of(folder: Path, said: str | None = None) -> Licence:
    """That which the card's maker named, or that of the folder's card, or of its licence file.

    Raises:
        ValueError: what was named is no identifier of a licence.
    """
    if said:
        if not IDENTIFIER.fullmatch(said):
            raise ValueError(f"{said!r} is no licence as the Hub writes it: pass one like apache-2.0, mit, or other.")
        return Licence(said, "as named by who made this card")
    if folder.is_dir():
        if (found := stated(folder, "license")) is not None:
            return Licence(found, "by the card in its folder")
        for file in sorted({file for pattern in FILES for file in folder.glob(pattern)}):
            text = file.read_text(encoding="utf-8", errors="replace")
            known = (name for name, beginning in BEGINNINGS.items() if beginning.match(text))
            return Licence(next(known, None), f"`{file.name}` in its folder")
    return Licence(None, "not stated by its files: ask its makers before you use it")


def stated(folder: Path, name: str) -> str | None:
    """A text in the metadata of the card that a folder holds; None without it, or without a card."""
    import yaml
    from huggingface_hub import ModelCard

    card = folder / "README.md"
    if not card.is_file():
        return None
    try:
        value = ModelCard.load(card, ignore_metadata_errors=True).data.get(name)
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"The metadata of {card} cannot be read ({error}): mend the file.") from None
    return value if isinstance(value, str) else None
