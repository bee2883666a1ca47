"""What statistics, pair reports and measurements show in a notebook."""

import dataclasses

from html_toys import Reader

import hf_specgen
from hf_specgen import SpecStats, demo
from hf_specgen.stats import RowStats


def stats_of(**options) -> SpecStats:
    rows = [
        RowStats(emitted=5, trace=[(0, 0), (2, 2), (2, 0)], sources=[None, "draft", "lookup"]),
        RowStats(emitted=2, trace=[(0, 0), (2, 0)], sources=[None, "<b>"]),
    ]
    return SpecStats(rows=rows, strategy="rejection", lossless=True, calls=1, verify_seconds=3.0, **options)


def test_statistics():
    stats = stats_of(draft_seconds=1.0, off_reason="a < b")
    text = Reader(stats._repr_html_()).text
    for name, value in stats.figures():
        assert name.strip() in text
        assert name in ("by position", "seconds") or value in text
    assert "1 33%" in text and "2 100%" in text, "acceptance by position"
    assert "verify 3.00 s" in text and "0 5 4 2 1.67" in text, "the time, and the first row"


def test_no_call_and_a_lossy_one():
    assert Reader(SpecStats()._repr_html_()).text == "no speculative call"
    lossy = dataclasses.replace(stats_of(), lossless=False)
    assert "LOSSY" in Reader(lossy._repr_html_()).text and lossy._repr_html_() != stats_of()._repr_html_()


def test_more_rows_than_are_listed():
    many = dataclasses.replace(stats_of(), rows=stats_of().rows * 20)
    assert "and 24 more rows" in Reader(many._repr_html_()).text


def test_a_report_with_its_measurement():
    target, draft, tokenizer = demo.load()
    report = hf_specgen.check_pair(demo.PAIR / "target", demo.PAIR / "draft")
    measured = hf_specgen.measure_pair(
        target, draft, demo.PROMPTS[:1], tokenizer=tokenizer, max_new_tokens=16, max_assistant_tokens=2
    )
    text = Reader(dataclasses.replace(report, measurement=measured)._repr_html_()).text
    assert text.startswith("exact") and "tokens 2,048 2,048" in text and "4.7 M parameters" in text
    assert str(demo.PAIR) not in text, "a path of somebody's machine"
    assert measured.verdict in text and measured.verdict in Reader(measured._repr_html_()).text
    assert f"{measured.lengths[1].forecast.tokens_per_round:.2f}" in text


def test_a_refused_pair_lists_what_differs():
    report = hf_specgen.check_pair(demo.PAIR / "target", demo.PAIR / "draft")
    refused = dataclasses.replace(
        report, verdict="refused", reasons=("No <token> fits.",), differing=((7, "<a>", "b&c"),)
    )
    text = Reader(refused._repr_html_()).text
    assert "refused No <token> fits." in text and "7 '<a>' 'b&c'" in text
