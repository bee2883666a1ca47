"""What a person reads of a bench."""

import io

from record_toys import record
from rich.console import Console

from hf_specgen.benchmarking.report import table


def shown(records, width=100, colour=False):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=colour, color_system="standard" if colour else None)
    console.print(table(records), crop=False)
    return out.getvalue()


def row(text, name, after=""):
    """Cells of the first line that begins with `name`, behind the line that begins with `after`."""
    lines = text[text.index(after) :].splitlines()
    return next(line.split() for line in lines if line.startswith(f"{name} "))


def two_tasks():
    """Ours: 2× and 4× on code, 0.5× on qa; a peer: 1× on code, fails on qa."""
    records = []
    for repeat, seconds in enumerate((0.5, 0.25)):
        records += [record(repeat=repeat), record("ours", repeat=repeat, seconds=seconds)]
    records += [record("peer"), record("peer", task="qa", error="RuntimeError:\n  no room")]
    return [*records, record(task="qa"), record("ours", task="qa", seconds=2.0)]


def test_speedups_by_task():
    text = shown(two_tasks())
    assert text.splitlines()[0] == "temperature 0, batch 1"
    assert "Speed-up over plain" in text
    assert [line for line in text.splitlines() if line.split() == ["code", "qa", "all", "tasks"]]
    assert row(text, "plain") == ["plain", "1.00", "1.00", "1.00"]
    # quartiles of (2, 4) are 2.5 and 3.5; of (2, 4, 0.5): 1.25 and 3
    assert row(text, "ours") == ["ours", "3.00", "±.50", "0.50", "2.00", "±.88"]
    assert row(text, "peer") == ["peer", "1.00", "–", "–"], "all tasks: only of those who did them all"


def test_best_is_bold_and_slower_than_plain_coloured():
    text = shown(two_tasks(), colour=True)
    assert "\x1b[1m3.00\x1b[0m" in text
    assert "\x1b[33m0.50\x1b[0m" in text
    assert "\x1b[1m1.00\x1b[0m" in text, "plain is the best on qa"
    assert "\x1b" not in shown(two_tasks())


def test_figures():
    records = [
        record(seconds=1.0, decode_seconds=0.8, first_token_seconds=0.2, peak_bytes=3_000_000_000),
        record(
            "ours", seconds=0.55, decode_seconds=0.4, first_token_seconds=1.5, peak_bytes=4_120_000_000,
            rounds=5, drafted=8, accepted=6, ideal_seconds=0.5,
            draft_seconds=0.09, verify_seconds=0.3, rest_seconds=0.01,
        ),
    ]  # fmt: skip
    text = shown(records)
    assert row(text, "plain", "all tasks") == ["plain", "11.0", "1.00", "–", "–", "200", "ms", "–", "–", "3.00", "GB"]
    assert row(text, "ours", "all tasks") == [
        *("ours", "20.0", "2.00", "75%", "2.20", "1.50", "s", "2.5%", "1.10", "4.12", "GB"),
    ]  # fmt: skip


def test_figures_that_nobody_has_are_left_out():
    text = shown([record(), record("ours")])
    assert "tokens/s" in text
    for head in ("memory", "ideal", "rest", "accepted", "forward", "first", "decode"):
        assert head not in text


def test_without_plain_there_are_rates():
    text = shown([record("ours", seconds=0.5), record("stock")])
    assert "Speed-up" not in text and "Tokens per second (no call of plain to compare with)" in text
    assert row(text, "ours") == ["ours", "22.0"] and row(text, "stock") == ["stock", "11.0"]


def test_ids_and_errors():
    parted = [record("stock", prompt=i, same_ids=False, diverged_at=i, gap=0.125 if i else None) for i in range(5)]
    records = [*two_tasks(), record("ours", prompt=9, same_ids=True), *parted, record("stock", prompt=5, same_ids=True)]
    lines = shown(records, width=140).splitlines()
    ids = next(i for i, line in enumerate(lines) if line.startswith("Ids as plain decoding's"))
    assert lines[ids + 1].split() == ["all", "calls", "ours"]
    wanted = "1 of 6 calls stock; others part: code 0 at token 0; code 1 at token 1 (logit gap 0.12); "
    assert " ".join(lines[ids + 2].split()).startswith(wanted)
    assert lines[ids + 2].rstrip().endswith("and 2 more")
    assert lines[lines.index("Errors") + 1].split() == ["peer,", "1", "call", "RuntimeError:", "no", "room"]


def test_sampled_has_no_ids_and_no_errors():
    text = shown([record(temperature=1.0), record("ours", temperature=1.0)])
    assert "Ids" not in text and "Errors" not in text


def test_wide_tables_go_on_below():
    tasks = [f"quite-a-long-task-{i}" for i in range(8)]
    records = [record(name, task=task) for task in tasks for name in ("plain", "ours")]
    text = shown(records, width=60)
    assert max(map(len, text.splitlines())) <= 60 and "…" not in text
    assert all(task in text for task in tasks)
    assert text.count("\nours ") == 5, "four parts of two columns and one, and the figures"


def test_nothing_is_cut_on_a_console_that_is_too_narrow():
    figures = {"decode_seconds": 0.8, "first_token_seconds": 0.2, "peak_bytes": 3_000_000_000, "ideal_seconds": 0.5}
    drafting = {"rounds": 5, "drafted": 8, "accepted": 6}
    name, path = "a-contender-with-quite-a-long-name", "/a/long/path/" + 40 * "x"
    records = [
        record(**figures),
        record(name, **figures | drafting, same_ids=False, diverged_at=3, gap=0.5),
        record(name, task="qa", error=path),
    ]
    text = shown(records, width=40)
    assert "…" not in text
    wanted = [name, "11.0", "1.00", "75%", "2.20", "200", "ms", "2.00", "3.00", "GB"]
    assert row(text, name, "tokens/s") == wanted
    assert text.count("x") == 40, "folded"


def test_a_block_per_setting():
    records = [record(name, temperature=t, batch=8) for t in (1.0, 0.0) for name in ("plain", "ours")]
    heads = [line for line in shown(records).splitlines() if line.startswith("temperature")]
    assert heads == ["temperature 0, batch 8", "temperature 1, batch 8"]


def test_names_with_brackets_are_no_markup():
    text = shown([record("x[red]", task="[bold]qa", error="[blink] failed"), record(task="[bold]qa")])
    assert "x[red]" in text and "[bold]qa" in text and "[blink] failed" in text


def test_nothing():
    assert shown([]).strip() == ""
