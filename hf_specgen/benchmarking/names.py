"""Who can decode in a bench, by name. Nothing heavy is imported before a contender is made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .calls import Models
    from .contenders import Contender


@dataclass(frozen=True)
class Kind:
    """
    Attributes:
        where: module and class.
        draft: whether it needs a draft.
        constant: whether it also comes with a constant number of drafted tokens: "stock-k4".
        strategies: whether there is an acceptance rule to choose.
        compiles: whether its first calls compile something (peers: on a GPU).
        package: the distribution that it belongs to, where that is not ours.
    """

    where: str
    draft: bool = False
    constant: bool = False
    strategies: bool = False
    compiles: bool = False
    package: str | None = None


KNOWN = {
    "plain": Kind("contenders.Plain"),
    "compiled": Kind("contenders.Compiled", compiles=True),
    "stock": Kind("contenders.Stock", draft=True, constant=True),
    "ours": Kind("ours.Ours", draft=True, constant=True, strategies=True),
    "draft": Kind("ours.Draft", draft=True, strategies=True),
    "lookup": Kind("ours.Lookup", strategies=True),
    "flashspec": Kind("peers.FlashSpec", draft=True, compiles=True, package="flashspec"),
    "economize": Kind("peers.Economize", draft=True, compiles=True, package="economize"),
    "economize-draft": Kind("peers.EconomizeDraft", draft=True, compiles=True, package="economize"),
}


@dataclass(frozen=True)
class Entrant:
    """One row of a bench: a contender, and what it is told."""

    name: str
    kind: Kind
    k: int | None = None
    strategy: str | None = None

    def make(self, models: Models) -> Contender:
        module, _, cls = self.kind.where.partition(".")
        return getattr(import_module(f".{module}", __package__), cls)(models, self.k, self.strategy)


def installed_peers() -> list[str]:
    """Contenders of other packages that are here."""
    return [name for name, kind in KNOWN.items() if kind.package and find_spec(kind.package)]


def entrants(names: Iterable[str], ks: Sequence[int], strategies: Sequence[str], with_draft: bool) -> list[Entrant]:
    """The rows that `names` ask for: "stock-k4" one with K = 4, "stock-k" one for each of `ks`; ours once per strategy.

    Raises:
        ValueError: an unknown name, none at all, or one twice; a missing draft or package; ks that nobody takes.
    """
    names = list(names)
    found: list[Entrant] = []
    for name in names:
        family, k = _split(name)
        kind = KNOWN[family]
        if kind.draft and not with_draft:
            raise ValueError(f"{name!r} needs a draft: pass DRAFT behind the target, or leave {name!r} out.")
        if kind.package and not find_spec(kind.package):
            raise ValueError(f"{name!r} needs its package: pip install {kind.package}, or leave {name!r} out.")
        if k == 0 and not ks:
            raise ValueError(f"{name!r} takes its Ks from a list, which is empty: give one, or write {name}4.")
        for one in ks if k == 0 else [k]:
            title = family if one is None else f"{family}-k{one}"
            found += [Entrant(title, kind, one, strategy) for strategy in (strategies if kind.strategies else [None])]
    if not found:
        raise ValueError("Nobody is asked to decode: name at least one of " + ", ".join(KNOWN) + ".")
    if twice := [one.name for i, one in enumerate(found) if one in found[:i]]:
        raise ValueError(f"{twice[0]!r} is named twice.")
    if ks and not any(_split(name)[1] == 0 for name in names):
        raise ValueError(f"The Ks {', '.join(map(str, ks))} are for 'stock-k' and 'ours-k', and neither is named.")
    return found


def _split(name: str) -> tuple[str, int | None]:
    """("stock", 4) for "stock-k4", ("stock", 0) for "stock-k", ("stock", None) for "stock"."""
    match = re.fullmatch(r"(.+)-k(\d*)", name)
    if match and KNOWN.get(match[1], Kind("")).constant and match[2] != "0":
        return match[1], int(match[2] or 0)
    if name not in KNOWN:
        known = [text for each, kind in KNOWN.items() for text in ([each, f"{each}-kN"] if kind.constant else [each])]
        raise ValueError(f"{name!r} is no contender. Known are {', '.join(known)} (N: drafted tokens per round).")
    return name, None
