"""Pictures of a bench: which are drawn, and that their bars and lines are the figures."""

import sys
from itertools import pairwise

import pytest
from record_toys import record

from hf_specgen.benchmarking import plots

pytest.importorskip("matplotlib")

SPLIT = {"decode_seconds": 1.0, "draft_seconds": 0.2, "verify_seconds": 0.7, "rest_seconds": 0.1}


def pictures(records):
    return dict(plots.pictures(records))


def axes_of(records, name):
    return pictures(records)[name].axes[0]


def bars(axes):
    return [round(bar.get_height(), 6) for bar in axes.patches]


def lines(axes):
    """Name → points. A line has its name beside its end."""
    ends = {text.xy: text.get_text() for text in axes.texts if hasattr(text, "xy")}
    drawn = [list(zip(*line.get_data(), strict=True)) for line in axes.get_lines()]
    return {ends[points[-1]]: [(x, round(float(y), 6)) for x, y in points] for points in drawn if points[-1] in ends}


def sweep(*ks):
    """Plain, ours at 3×, and ours with K at K×."""
    return [
        record(seconds=1.0),
        record("ours", seconds=1 / 3),
        *(record(f"ours-k{k}", k=k, seconds=1 / k) for k in ks),
    ]


def test_files(tmp_path):
    written = plots.draw([record(), record("ours", seconds=0.5)], tmp_path / "new")
    assert [path.name for path in written] == ["speedup-by-task.png", "speedup-by-task.svg"]
    assert written[0].read_bytes().startswith(b"\x89PNG") and b"<svg" in written[1].read_bytes()
    assert [path.suffix for path in plots.draw([record(), record("ours")], tmp_path, ("svg",))] == [".svg"]


def test_nothing_to_draw(tmp_path):
    assert plots.draw([], tmp_path / "new") == []
    assert plots.draw([record(), record("ours", error="killed")], tmp_path / "new") == []
    assert not (tmp_path / "new").exists()


def test_unknown_format(tmp_path):
    with pytest.raises(ValueError, match="gifx"):
        plots.draw([record(), record("ours")], tmp_path, ("gifx",))


def test_missing_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "hf-specgen\[plots\]"'):
        plots.check_available()
    with pytest.raises(ImportError, match="matplotlib"):
        plots.draw([record(), record("ours")], tmp_path)


def test_global_state_is_left_alone(tmp_path):
    import matplotlib

    before, backend = dict(matplotlib.rcParams), matplotlib.rcParams._get("backend")
    pyplot = "matplotlib.pyplot" in sys.modules
    plots.draw(sweep(1, 2), tmp_path)
    assert dict(matplotlib.rcParams) == before and matplotlib.rcParams._get("backend") is backend
    assert ("matplotlib.pyplot" in sys.modules) == pyplot


def test_by_task():
    """Two contenders, two tasks; a contender's missing task has no bar. Plain is the line at 1."""
    records = [record(task=task) for task in ("code", "qa")]
    records += [record("ours", task="code", seconds=0.5), record("ours", task="qa", seconds=2.0), record("peer")]
    axes = axes_of(records, "speedup-by-task")
    assert bars(axes) == [2.0, 0.5, 1.0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["code", "qa"]
    assert [list(line.get_ydata()) for line in axes.get_lines()] == [[1, 1]]
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend == ["ours", "peer"]
    labels = {text.get_text(): text.get_weight() for text in axes.texts}
    assert labels["2.00"] == labels["0.50"] == "bold" and labels["1.00"] != "bold"


def test_spread_is_drawn():
    records = [r for i, s in enumerate((0.5, 0.25)) for r in (record(repeat=i), record("ours", repeat=i, seconds=s))]
    axes = axes_of(records, "speedup-by-task")
    (x, low), (_, high) = axes.collections[0].get_segments()[0]
    assert (low, high) == (2.5, 3.5) and x == 0


def test_of_several_k_the_best_stands_for_all():
    axes = axes_of(sweep(1, 2, 4), "speedup-by-task")
    assert bars(axes) == [3.0, 4.0]
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["ours", "ours-k4"]


def test_by_k():
    found = lines(axes_of(sweep(4, 1, 2), "speedup-by-k"))
    assert found["ours, constant K"] == [(1, 1), (2, 2), (4, 4)]
    assert found["ours, its own K"] == [(1, 3), (4, 3)]
    assert found["plain"] == [(1, 1), (4, 1)]
    assert "speedup-by-k" not in pictures(sweep(4)), "one K is no line"


def test_by_temperature():
    records = []
    for temperature, seconds in ((0.0, 0.5), (1.0, 2.0), (0.7, 0.8)):
        records += [record(temperature=temperature), record("ours", temperature=temperature, seconds=seconds)]
    found = pictures(records)
    assert set(found) == {
        *(f"speedup-by-task-t{t}" for t in ("0", "0.7", "1")),
        "speedup-by-temperature",
    }
    assert lines(found["speedup-by-temperature"].axes[0])["ours"] == [(0.0, 2.0), (0.7, 1.25), (1.0, 0.5)]


def test_by_batch_and_context():
    records = [record(name, batch=b, context=c) for b in (1, 8) for c in (0, 4096) for name in ("plain", "ours")]
    names = set(pictures(records))
    assert {"speedup-by-batch-c0", "speedup-by-batch-c4096", "speedup-by-context-b1", "speedup-by-context-b8"} < names
    assert "speedup-by-task-b8-c4096" in names and "speedup-by-temperature" not in names


def test_acceptance_by_position():
    records = [record("ours", by_position=[0.8, 0.5, None]), record("lookup", by_position=[0.3])]
    found = lines(axes_of(records, "acceptance-by-position"))
    assert found == {"ours": [(1, 0.8), (2, 0.5)], "lookup": [(1, 0.3)]}


def test_time_split():
    """Ours: 10 tokens after the first in 1 s, all of it split. Plain: 2 s, which nobody split."""
    axes = axes_of([record(decode_seconds=2.0), record("ours", **SPLIT)], "time-split")
    widths = [round(bar.get_width(), 6) for bar in axes.patches]
    assert widths == [0.2, 0.02, 0.07, 0.01, 0.0]
    assert [text.get_text() for text in axes.texts[1:]] == ["200 ms", "100 ms"]
    assert "time-split" not in pictures([record(decode_seconds=2.0)])


@pytest.mark.parametrize("heights", [[0.5, 0.5, 0.5], [0.0, 0.01, 1.0], [0.97, 0.98, 0.99, 1.0], [0.1, 0.9]])
def test_names_beside_lines_do_not_overlap(heights):
    placed = plots._apart(heights, 0.06)
    assert all(b - a >= 0.06 - 1e-9 for a, b in pairwise(placed))
    assert placed[-1] <= 1
    assert plots._apart([0.1, 0.9], 0.06) == [0.1, 0.9]
