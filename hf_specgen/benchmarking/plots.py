"""A bench as pictures: those that its records have figures for, each in a file of its own.

matplotlib's global state (back end, rcParams, open figures) is left alone. The colours are Paul Tol's "muted" and
"bright" schemes, which colour-blind readers can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..display.origins import TIMES
from .record import Record
from .summary import PLAIN, Contender, Setting, Split, Summary, labels, summarize

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#332288", "#CC6677", "#117733", "#DDCC77", "#88CCEE", "#AA4499", "#44AA99", "#882255", "#999933")
FURTHER = "#AAAAAA"  # when the colours are used up
INK, PALE = "#333333", "#E6E6E6"
PARTS = {part: TIMES[part] for part in Split._fields} | {"not split": "#BBBBBB"}


def check_available() -> None:
    """Raises ImportError with the pip line where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ImportError('Plots need matplotlib: pip install "hf-specgen[plots]"') from None


def draw(records: Iterable[Record], folder: str | Path, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Writes `pictures`, each with its name. Returns the files.

    Raises ImportError without matplotlib, ValueError for a format that it does not write.
    """
    folder, written = Path(folder), []
    for name, figure in pictures(records):
        folder.mkdir(parents=True, exist_ok=True)
        for form in formats:
            written.append(folder / f"{name}.{form}")
            figure.savefig(written[-1], format=form, dpi=160)
    return written


def pictures(records: Iterable[Record]) -> Iterator[tuple[str, Figure]]:
    """Gives speedup-by-task, -k, -temperature, -batch and -context, acceptance-by-position and time-split, as far as
    there are figures for them, and per setting (then named in the title) where there are several: (name, figure).

    Of a contender that was run with several constant K, the fastest on the whole stands for it, but in speedup-by-k and
    time-split.

    Raises ImportError without matplotlib.
    """
    check_available()
    records = list(records)
    pooled = summarize(records, by_task=False)
    look = _Look(pooled)
    faster = [s for s in pooled if s.speedup and s.contender.name != PLAIN]
    by_task = [s for s in summarize(records) if s.speedup and s.contender in look.leading]
    settings = sorted({s.setting for s in pooled})
    for setting in settings:
        end = _name_of(setting, settings)
        here = [s for s in pooled if s.setting == setting]
        rated = [s for s in faster if s.setting == setting]
        if tasks := [s for s in by_task if s.setting == setting]:
            yield f"speedup-by-task{end}", _by_task(tasks, setting, look)
        if len({s.contender.k for s in rated} - {None}) > 1:
            yield f"speedup-by-k{end}", _by_k(rated, setting, look)
        if drafting := [s for s in here if s.by_position and s.contender in look.leading]:
            yield f"acceptance-by-position{end}", _by_position(drafting, setting, look)
        if any(s.split for s in here):
            yield f"time-split{end}", _time_split([s for s in here if s.decode_seconds_per_token], setting, look)
    for field in Setting._fields:
        places = sorted({setting._replace(**{field: 0}) for setting in settings})
        for place in places:
            here = [s for s in faster if s.setting._replace(**{field: 0}) == place and s.contender in look.leading]
            if len({getattr(s.setting, field) for s in here}) > 1:
                yield f"speedup-by-{field}{_name_of(place, places)}", _by_setting(here, field, look)


def _name_of(setting: Setting, among: list[Setting]) -> str:
    """What tells it from the others: "-t0.7-b8"."""
    differing = [len({other[i] for other in among}) > 1 for i in range(len(setting))]
    return "".join(f"-{part}{x:g}" for part, x, differs in zip("tbc", setting, differing, strict=True) if differs)


class _Look:
    """Names and colours of the contenders, the same in all pictures. Those that differ in K alone share a colour."""

    def __init__(self, pooled: list[Summary]):
        self.names = labels(s.contender for s in pooled)
        kinds: dict[tuple, dict[Contender, float]] = {}
        for summary in pooled:
            if summary.contender.name != PLAIN:
                scores = kinds.setdefault(self._kind(summary.contender), {})
                gain = summary.speedup.median if summary.speedup else 0.0
                scores[summary.contender] = scores.get(summary.contender, 0.0) + gain
        self._colours = dict(zip(kinds, COLOURS, strict=False))
        self.leading = [max(scores, key=scores.get) for scores in kinds.values()]

    @staticmethod
    def _kind(contender: Contender) -> tuple:
        return contender.family, contender.k is None, contender.strategy

    def colour(self, contender: Contender) -> str:
        return self._colours.get(self._kind(contender), FURTHER)


def _by_task(summaries: list[Summary], setting: Setting, look: _Look) -> Figure:
    tasks = list(dict.fromkeys(s.task for s in summaries))
    drawn = [one for one in look.leading if any(s.contender == one for s in summaries)]
    slots = len(tasks) * (len(drawn) + 1)
    inches = min(13.0, max(6.0, 0.4 * slots))
    axes = _axes(inches, 3.8, "Speed-up over plain, by task", f"median, line between the quartiles; {setting}")
    best = {task: max(s.speedup.median for s in summaries if s.task == task) for task in tasks}
    width = 1 / (len(drawn) + 1)
    for summary in summaries:
        median, low, high, _ = summary.speedup
        x = tasks.index(summary.task) + (drawn.index(summary.contender) - (len(drawn) - 1) / 2) * width
        axes.bar(x, median, width * 0.94, color=look.colour(summary.contender))
        axes.vlines(x, low, high, color=INK, linewidth=1)
        leads = median == best[summary.task]
        if leads or inches / slots > 0.35:  # where bars are too narrow for it, the best one's figure alone
            at = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center"}
            font = {"fontsize": 7.5, "weight": "bold" if leads else None, "color": INK, "zorder": 4}
            axes.annotate(f"{median:.2f}", (x, high), bbox={"fc": "white", "ec": "none", "pad": 0.4}, **font, **at)
    axes.axhline(1, color=INK, linewidth=0.9)
    axes.annotate(PLAIN, (1, 1), (4, 0), ("axes fraction", "data"), "offset points", va="center", fontsize=9, color=INK)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5 - width / 2, len(tasks) - 0.5 + width / 2)
    axes.set_ylim(0, 1.08 * max(1, *(s.speedup.high for s in summaries)))
    _legend(axes, {look.names[one]: look.colour(one) for one in drawn})
    return axes.figure


def _by_setting(summaries: list[Summary], field: str, look: _Look) -> Figure:
    """Lines over the temperature, batch or context; the other two are the same in all summaries."""
    lines = []
    for contender in dict.fromkeys(s.contender for s in summaries):
        mine = sorted((s for s in summaries if s.contender == contender), key=lambda s: s.setting)
        points = {getattr(s.setting, field): s.speedup.median for s in mine}
        lines.append(_Line(look.names[contender], look.colour(contender), points))
    others = [part for part in str(summaries[0].setting).split(", ") if not part.startswith(field)]
    return _speedup_lines(lines, field, ", ".join(others))


def _by_k(summaries: list[Summary], setting: Setting, look: _Look) -> Figure:
    """A line over the constant K of each family and rule, and a level for those of the family that choose K."""
    constant = sorted((s for s in summaries if s.contender.k is not None), key=lambda s: s.contender.k)
    ends = (constant[0].contender.k, constant[-1].contender.k)
    kinds: dict[tuple, list[Summary]] = {}
    for summary in constant:
        kinds.setdefault((summary.contender.family, summary.contender.strategy), []).append(summary)
    lines = []
    for (family, strategy), mine in kinds.items():
        name = f"{family} {strategy}" if sum(other == family for other, _ in kinds) > 1 else family
        points = {s.contender.k: s.speedup.median for s in mine}
        lines.append(_Line(f"{name}, constant K", look.colour(mine[0].contender), points))
    for free in (s for s in summaries if s.contender.k is None):
        if any(free.contender.name == family for family, _ in kinds):
            name = f"{look.names[free.contender]}, its own K"
            level = dict.fromkeys(ends, free.speedup.median)
            lines.append(_Line(name, look.colour(free.contender), level, "dashed"))
    return _speedup_lines(lines, "draft length K", str(setting))


def _by_position(summaries: list[Summary], setting: Setting, look: _Look) -> Figure:
    lines = []
    for summary in summaries:
        points = {i: rate for i, rate in enumerate(summary.by_position, start=1) if rate is not None}
        lines.append(_Line(look.names[summary.contender], look.colour(summary.contender), points))
    note = f"share of those whose predecessors were accepted; all tasks, {setting}"
    axes = _axes(6.4, 3.8, "Accepted drafted tokens, by position", note)
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _draw_lines(axes, lines, "position in the draft")
    return axes.figure


def _time_split(summaries: list[Summary], setting: Setting, look: _Look) -> Figure:
    height = 1.1 + 0.3 * len(summaries)
    axes = _axes(7.0, height, "Where a token's time goes", f"decode phase; all tasks, {setting}")
    longest = max(s.decode_seconds_per_token for s in summaries)
    for row, summary in enumerate(summaries):
        total, left = summary.decode_seconds_per_token, 0.0
        parts = summary.split._asdict() if summary.split else {}
        for part, seconds in (parts | {"not split": max(0.0, total - sum(parts.values()))}).items():
            axes.barh(row, seconds, 0.7, left, color=PARTS[part], label=part)
            left += seconds
        axes.text(left + longest * 0.01, row, f"{total * 1000:.3g} ms", va="center", fontsize=9, color=INK)
    axes.set_yticks(range(len(summaries)), [look.names[s.contender] for s in summaries])
    axes.set_ylim(len(summaries) - 0.5, -0.5)
    axes.set_xlim(0, longest * 1.12)
    axes.set_xticks([])
    axes.spines.bottom.set_visible(False)
    axes.grid(visible=False)
    _legend(axes, PARTS)
    return axes.figure


class _Line(NamedTuple):
    name: str
    colour: str
    points: dict[float, float]
    style: str = "solid"


def _speedup_lines(lines: list[_Line], x: str, where: str) -> Figure:
    axes = _axes(6.4, 3.8, f"Speed-up over plain, by {x}", f"median of all tasks; {where}")
    xs = [x for line in lines for x in line.points]
    lines = [_Line(PLAIN, INK, {min(xs): 1.0, max(xs): 1.0}, "solid"), *lines]
    ys = [y for line in lines for y in line.points.values()]
    margin = 0.08 * (max(ys) - min(ys) or 1)
    axes.set_ylim(min(ys) - margin, max(ys) + margin)
    _draw_lines(axes, lines, x)
    return axes.figure


def _draw_lines(axes: Axes, lines: list[_Line], x: str) -> None:
    """Each with its name at its right end. The y-limits are set before."""
    bottom, top = axes.get_ylim()
    lines = sorted(lines, key=lambda line: list(line.points.values())[-1])
    ends = [list(line.points.items())[-1] for line in lines]
    heights = _apart([(y - bottom) / (top - bottom) for _, y in ends])
    for line, end, height in zip(lines, ends, heights, strict=True):
        flat = line.name == PLAIN or line.style == "dashed"
        style = {"color": line.colour, "linestyle": line.style, "linewidth": 0.9 if line.name == PLAIN else 1.7}
        axes.plot(list(line.points), list(line.points.values()), marker=None if flat else "o", markersize=4.5, **style)
        leader = {"arrowstyle": "-", "color": line.colour, "linewidth": 0.9, "linestyle": "dotted", "shrinkA": 1}
        at = {"xytext": (1.03, height), "textcoords": "axes fraction", "va": "center"}
        axes.annotate(line.name, end, arrowprops=leader, fontsize=9, color=INK, **at)
    axes.set_xticks(sorted({x for line in lines for x in line.points}))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(x, color=INK, fontsize=9)


def _apart(heights: list[float], gap: float = 0.06) -> list[float]:
    """Rising heights in 0…1, moved as little as keeps each `gap` above the one before and all under 1."""
    placed: list[float] = []
    for height in heights:
        placed.append(max([height, *(before + gap for before in placed[-1:])]))
    for i in reversed(range(len(placed))):
        placed[i] = min([placed[i], 1.0, *(after - gap for after in placed[i + 1 : i + 2])])
    return placed


def _legend(axes: Axes, colours: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=colour, label=name) for name, colour in colours.items()]
    spacing = {"handlelength": 0.9, "handleheight": 0.9, "handletextpad": 0.4, "columnspacing": 1.4}
    place = {"loc": "outside lower left", "ncols": len(patches), "frameon": False}
    axes.figure.legend(handles=patches, fontsize=9, labelcolor=INK, **place, **spacing)


def _axes(width: float, height: float, title: str, note: str) -> Axes:
    """Bare axes of a new figure, inches wide and high."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines.bottom.set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_title(f"{title}\n", loc="left", fontsize=11, color=INK, weight="bold")
    note = axes.annotate(note, (0, 1), (0, 8), "axes fraction", "offset points", fontsize=8.5, color=INK)
    note.set_in_layout(False)  # a long one would squeeze the axes
    axes.grid(axis="y", color=PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    return axes
