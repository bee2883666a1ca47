"""hf-specgen recommend: which draft for this target?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, terminal
from .errors import give_up, one_line
from .exit_codes import DONE, FAILED, NO

if TYPE_CHECKING:
    from rich.text import Text

    from hf_specgen.pairing.families import Place
    from hf_specgen.pairing.recommend import Recommendation

NAME = "recommend"


@one_line(NAME)
def command(
    target: options.Target,
    among: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FOLDER", help="A possible draft, or a folder of several; may be repeated.", show_default=False
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List drafts for a target, best first.

    Those of its published family; or with --among those in local folders, each of which is checked.
    """
    from hf_specgen.pairing.families import place_of
    from hf_specgen.pairing.recommend import recommend

    try:
        drafts = recommend(target, among or None)
        place = None if among else place_of(target)
    except LookupError as error:  # a family that we do not know
        if as_json:
            terminal.print_json({"target": target, "family": None, "drafts": [], "why": str(error)})
        give_up(NAME, str(error), FAILED)
    if as_json:
        family = place.family.name if place else None
        why = place.family.no_pair if place else None
        listed = [draft.to_dict() for draft in drafts]
        terminal.print_json({"target": target, "family": family, "drafts": listed, "why": why})
    else:
        _print(target, place, drafts)
    raise typer.Exit(DONE if any(draft.usable for draft in drafts) else NO)


def _print(target: str, place: Place | None, drafts: list[Recommendation]) -> None:
    from rich.text import Text

    lines = [f"target  {target}"]
    if place:
        lines += [f"family  {place.family.name} ({place.how})", *(f"- {note}" for note in place.family.notes)]
        if place.family.no_pair:
            lines.append(f"- {place.family.no_pair}")
    console = terminal.console()
    console.print(Text("\n".join(lines)))
    if drafts:
        console.print(_listing(drafts))
    else:
        console.print("\nNo draft that is small enough is known.")


def _listing(drafts: list[Recommendation]) -> Text:
    """A line per draft; a checked one has its reason, which can be long, on a line of its own."""
    from rich.text import Text

    published = all(draft.parameters is not None for draft in drafts)
    rows = [("draft", "size" if published else "verdict", "of target", "bold")]
    for draft in drafts:
        fact = f"{draft.parameters / 1e9:.3g}B" if published else draft.verdict or "not checked"
        share = "" if draft.ratio is None else f"{draft.ratio:.1%}"
        rows.append((draft.draft, fact, share, "" if draft.usable else "dim"))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    text = Text()
    for (name, fact, share, style), draft in zip(rows, [None, *drafts], strict=True):
        line = f"\n{name:<{first}}   {fact:<{second}}   {share:>9}"
        if draft:
            line += ("   " if published else "\n    ") + draft.reason
        text.append(line, style)
    return text
