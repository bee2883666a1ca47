"""A bench as a person reads it in a terminal: per setting, speed-ups by task, other figures, ids and errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from ..display.grid import Grid
from .record import Record
from .summary import Contender, Parting, Setting, Spread, Summary, labels, summarize

if TYPE_CHECKING:
    from rich.console import RenderResult

ABSENT = "–"
ALL = "all tasks"
LISTED = 3  # partings of a contender that are named

_FIGURES: tuple[tuple[str, Callable[[Summary], Any], Callable[[Any], str]], ...] = (
    ("tokens/s", lambda s: s.tokens_per_second, lambda x: f"{x.median:#.3g}" if x.median < 100 else f"{x.median:.0f}"),
    ("decode\nspeed-up", lambda s: s.decode_speedup, lambda x: f"{x.median:.2f}"),
    ("drafts\naccepted", lambda s: s.acceptance_rate, lambda x: f"{x:.0%}"),
    ("tokens per\nforward", lambda s: s.tokens_per_forward, lambda x: f"{x:.2f}"),
    ("first\ntoken", lambda s: s.first_token_seconds, lambda x: _seconds(x.median)),
    ("rest of\na round", lambda s: s.split and s.split.rest_share, lambda x: f"{x:.1%}"),
    ("time /\nideal", lambda s: s.over_ideal, lambda x: f"{x.median:.2f}"),
    ("peak\nmemory", lambda s: s.peak_bytes, lambda x: f"{x / 1e9:.2f} GB"),
)


def table(records: Iterable[Record]) -> RenderableType:
    """Everything, for a console of any width that does not crop (see `Grid`); tables of tasks that are wider than it go
    on below. Empty without records."""
    records = list(records)
    by_task, over_all = summarize(records), summarize(records, by_task=False)
    names = labels(summary.contender for summary in by_task)
    settings = sorted({summary.setting for summary in by_task})
    return Group(*(_block(setting, by_task, over_all, names) for setting in settings))


def _block(
    setting: Setting, by_task: list[Summary], over_all: list[Summary], names: dict[Contender, str]
) -> RenderableType:
    here = [summary for summary in by_task if summary.setting == setting]
    pooled = [summary for summary in over_all if summary.setting == setting]
    return Group(
        Text(str(setting), "bold underline"),
        _Speeds(here, pooled, names),
        *_figures(pooled, names),
        *_ids(pooled, names),
        *_errors(pooled, names),
        Text(),
    )


class _Speeds:
    """Rows: contenders; columns: tasks, and all of them. Speed-ups, or tokens per second where plain was not run."""

    def __init__(self, by_task: list[Summary], pooled: list[Summary], names: dict[Contender, str]):
        self.names = {summary.contender: names[summary.contender] for summary in pooled}
        self.is_speedup = any(summary.speedup for summary in pooled)
        self.columns: dict[str, dict[Contender, Spread | None]] = {}
        for summary in by_task:
            self.columns.setdefault(summary.task, {})[summary.contender] = self._value(summary)
        if len(self.columns) > 1:
            complete = [one for one in pooled if all(column.get(one.contender) for column in self.columns.values())]
            self.columns[ALL] = {summary.contender: self._value(summary) for summary in complete}

    def _value(self, summary: Summary) -> Spread | None:
        return summary.speedup if self.is_speedup else summary.tokens_per_second

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        what = "Speed-up over plain" if self.is_speedup else "Tokens per second (no call of plain to compare with)"
        yield Text.assemble("\n", what, (": median ± half the distance between the quartiles", "dim"))
        for tasks in self._parts(options.max_width):
            grid = Grid(["", *tasks])
            for contender, name in self.names.items():
                grid.add_row(Text(name), *(self._cell(task, contender) for task in tasks))
            yield from (Text(), grid)

    def _parts(self, width: int) -> Iterator[list[str]]:
        """The columns, as many at once as a line holds."""
        first = max(map(len, self.names.values()))
        part: list[str] = []
        used = first
        for task in self.columns:
            cells = [self._cell(task, contender).plain for contender in self.names]
            needed = 2 + max(map(len, (task, *cells)))
            if part and used + needed > width:
                yield part
                part, used = [], first
            part.append(task)
            used += needed
        yield part

    def _cell(self, task: str, contender: Contender) -> Text:
        column = self.columns[task]
        value = column.get(contender)
        if value is None:
            return Text(ABSENT, "dim")
        best = max(other.median for other in column.values() if other)
        style = "bold" if value.median == best else "yellow" if self.is_speedup and value.median < 1 else ""
        digits = 2 if self.is_speedup else 1
        half = f"{(value.high - value.low) / 2:.{digits}f}".removeprefix("0")
        spread = "" if value.low == value.high else f" ±{half}"
        return Text.assemble((f"{value.median:.{digits}f}", style), (spread, "dim"))


def _figures(pooled: list[Summary], names: dict[Contender, str]) -> Iterator[RenderableType]:
    """What else was measured, over all tasks; figures that nobody has are left out."""
    shown = [figure for figure in _FIGURES if any(figure[1](summary) is not None for summary in pooled)]
    grid = Grid([ALL, *(head for head, _, _ in shown)])
    for summary in pooled:
        values = [(value(summary), form) for _, value, form in shown]
        grid.add_row(
            Text(names[summary.contender]),
            *(Text(ABSENT, "dim") if value is None else Text(form(value)) for value, form in values),
        )
    yield from (Text(), grid)


def _ids(pooled: list[Summary], names: dict[Contender, str]) -> Iterator[RenderableType]:
    """Whose ids were compared with plain's: who kept them, and where the others left them."""
    compared = [summary for summary in pooled if summary.compared]
    if not compared:
        return
    lines = _lines()
    same = [names[summary.contender] for summary in compared if summary.same == summary.compared]
    if same:
        lines.add_row("all calls", Text(", ".join(same)))
    for summary in compared:
        if summary.same < summary.compared:
            count = f"{summary.same} of {_calls(summary.compared)}"
            lines.add_row(Text(count, "yellow"), _partings(names[summary.contender], summary.partings))
    yield from (Text("\nIds as plain decoding's (below float32 they may part at near ties: hf-specgen verify)"), lines)


def _partings(name: str, partings: tuple[Parting, ...]) -> Text:
    listed = [
        f"{one.task} {one.prompt} at token {ABSENT if one.at is None else one.at}"
        + ("" if one.gap is None else f" (logit gap {one.gap:.2g})")
        for one in partings[:LISTED]
    ]
    rest = len(partings) - LISTED
    return Text(f"{name}; others part: {'; '.join(listed)}" + (f"; and {rest} more" if rest > 0 else ""))


def _errors(pooled: list[Summary], names: dict[Contender, str]) -> Iterator[RenderableType]:
    failed = [summary for summary in pooled if summary.errors]
    if not failed:
        return
    lines = _lines()
    for summary in failed:
        for reason, calls in summary.errors.items():
            lines.add_row(Text(f"{names[summary.contender]}, {_calls(calls)}", "red"), Text(" ".join(reason.split())))
    yield from (Text("\nErrors"), lines)


def _calls(count: int) -> str:
    return f"{count} call{'' if count == 1 else 's'}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _lines() -> Table:
    """What it is about, and what there is to say: folded, never cut."""
    return Table.grid(Column(overflow="fold"), Column(overflow="fold"), padding=(0, 2, 0, 0))
