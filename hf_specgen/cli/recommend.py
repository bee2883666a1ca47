"""hf-specgen recommend: which draft for this target?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from hf_specgen.pairing.families import Place
    from hf_specgen.pairing.recommend import Recommendation


def command(
    target: Annotated[str, typer.Argument(help="Folder or Hub id of the target model.", show_default=False)],
    among: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a possible draft, or of several; may be repeated.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of drafts as JSON.")] = False,
) -> None:
    """List drafts for a target, best first: of its published family, or among local folders, which are checked.

    Exit code: 0 found, 1 there is none, 2 could not tell.
    """
    from hf_specgen.pairing.families import place_of
    from hf_specgen.pairing.recommend import recommend

    try:
        drafts = recommend(target, among or None)
        place = None if among else place_of(target)
    except (OSError, ValueError, LookupError) as error:  # a missing folder, an unknown family: one line, no traceback
        typer.echo(f"recommend: {error}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        family = place.family.name if place else None
        plain = {"target": target, "family": family, "drafts": [draft.to_dict() for draft in drafts]}
        typer.echo(json.dumps(plain, indent=2))
    else:
        _print(target, place, drafts)
    raise typer.Exit(0 if any(draft.usable for draft in drafts) else 1)


def _print(target: str, place: Place | None, drafts: list[Recommendation]) -> None:
    from rich.console import Console
    from rich.text import Text

    lines = [f"target  {target}"]
    if place:
        lines += [f"family  {place.family.name} ({place.how})", *(f"- {note}" for note in place.family.notes)]
        if place.family.no_pair:
            lines.append(f"- {place.family.no_pair}")
    console = Console(highlight=False, soft_wrap=True)  # soft: a line piped into a file stays one line
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
