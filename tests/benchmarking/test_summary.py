"""Every figure of a bench, worked out by hand."""

import pytest
from record_toys import record

from hf_specgen.benchmarking.summary import Contender, Parting, Setting, Split, Spread, labels, summarize


def only(records, contender, **choice):
    found = [s for s in summarize(records, **choice) if s.contender.name == contender]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("values", "spread"),
    [
        ([4, 1, 3, 2], Spread(2.5, 1.75, 3.25, 4)),
        ([5.0], Spread(5.0, 5.0, 5.0, 1)),
        ([2.0, None, 4.0], Spread(3.0, 2.5, 3.5, 2)),
        ([None], None),
        ([], None),
    ],
)
def test_spread(values, spread):
    assert Spread.of(values) == spread


def test_speedup_is_the_median_of_paired_ratios_not_the_ratio_of_medians():
    """The machine is slower in each repetition, for both: ratios 2, 2 and 3; the medians' ratio would be 2.25."""
    records = []
    for repeat, (plain, ours) in enumerate([(1.0, 0.5), (1.8, 0.9), (2.4, 0.8)]):
        records += [record(repeat=repeat, seconds=plain), record("ours", repeat=repeat, seconds=ours)]
    speedup = only(records, "ours").speedup
    assert speedup == pytest.approx(Spread(2.0, 2.0, 2.5, 3))
    assert only(records, "plain").speedup == Spread(1.0, 1.0, 1.0, 3)


def test_answers_of_other_lengths_are_compared_by_rate():
    """Plain: 10 tokens in 2 s; ours: 30 in 3 s. Twice as fast, though it took longer."""
    records = [record(tokens=10, seconds=2.0), record("ours", tokens=30, seconds=3.0)]
    ours = only(records, "ours")
    assert ours.speedup.median == 2.0 and ours.tokens_per_second.median == 10.0


def test_decode_phase_leaves_each_rows_first_token_out():
    """Batch 2: plain 22 tokens, 20 of them in 2 s; ours 12, 10 of them in 0.5 s: 20/s against 10/s."""
    records = [
        record(batch=2, tokens=22, seconds=3.0, decode_seconds=2.0),
        record("ours", batch=2, tokens=12, seconds=1.0, decode_seconds=0.5),
    ]
    ours = only(records, "ours")
    assert ours.decode_speedup.median == 2.0
    assert ours.decode_seconds_per_token == 0.05


def test_an_answer_of_one_token_has_no_decode_phase():
    records = [record(tokens=1, decode_seconds=0.0), record("ours", tokens=1, decode_seconds=0.1)]
    ours = only(records, "ours")
    assert ours.decode_speedup is None and ours.decode_seconds_per_token is None and ours.speedup.median == 1.0


@pytest.mark.parametrize(
    "other", [{"prompt": 1}, {"repeat": 1}, {"task": "qa"}, {"temperature": 1.0}, {"batch": 8}, {"context": 4096}]
)
def test_no_pair_no_speedup(other):
    assert only([record(), record("ours", **other)], "ours").speedup is None


def test_a_failed_pair_does_not_count():
    records = [record(error="killed"), record("ours"), record(repeat=1), record("ours", repeat=1, seconds=0.25)]
    assert only(records, "ours").speedup == Spread(4.0, 4.0, 4.0, 1)
    plain = only(records, "plain")
    assert plain.calls == 1 and plain.errors == {"killed": 1} and plain.tokens_per_second.median == 11.0


def test_rates_are_of_sums():
    """(9 + 1 + 0) / (10 + 10 + 20) = 0.25 accepted; the mean of the three calls' rates would be 0.33."""
    counts = [(10, 9, 2), (10, 1, 10), (20, 0, 10)]
    records = [
        record("ours", repeat=i, tokens=11, drafted=drafted, accepted=accepted, rounds=rounds)
        for i, (drafted, accepted, rounds) in enumerate(counts)
    ]
    ours = only(records, "ours")
    assert ours.acceptance_rate == 0.25 and ours.tokens_per_forward == 33 / 22


def test_nothing_drafted_has_no_acceptance_rate():
    assert only([record("ours", drafted=0, accepted=0, rounds=11)], "ours").acceptance_rate is None


def test_by_position_averages_the_calls_that_came_there():
    records = [
        record("ours", by_position=[0.8, 0.6, None]),
        record("ours", repeat=1, by_position=[0.4]),
        record("ours", repeat=2, by_position=None),
    ]
    assert only(records, "ours").by_position == pytest.approx((0.6, 0.6, None))


def test_first_token_memory_and_ideal():
    records = [
        record("ours", seconds=2.2, first_token_seconds=0.1, peak_bytes=300, ideal_seconds=2.0),
        record("ours", repeat=1, seconds=2.4, first_token_seconds=0.3, peak_bytes=100, ideal_seconds=2.0),
    ]
    ours = only(records, "ours")
    assert ours.first_token_seconds.median == pytest.approx(0.2)
    assert ours.peak_bytes == 300
    assert ours.over_ideal.median == pytest.approx(1.15)


def test_split_is_per_token_and_of_the_calls_that_measured_it():
    short = {"tokens": 11, "decode_seconds": 1.0, "draft_seconds": 0.2, "verify_seconds": 0.7, "rest_seconds": 0.1}
    long = {"tokens": 31, "decode_seconds": 3.0, "draft_seconds": 1.0, "verify_seconds": 1.7, "rest_seconds": 0.3}
    unsplit = {"tokens": 11, "decode_seconds": 9.0}
    records = [record("ours", repeat=i, **figures) for i, figures in enumerate((short, long, unsplit))]
    assert only(records, "ours").split == pytest.approx(Split(1.2 / 40, 2.4 / 40, 0.4 / 40))
    assert only([record()], "plain").split is None


def test_ids():
    """Three calls compared, one sampled; the parted prompt is listed once for its two repetitions."""
    parted = {"same_ids": False, "diverged_at": 7, "gap": 0.01}
    records = [
        record("ours", same_ids=True),
        record("ours", prompt=1, **parted),
        record("ours", prompt=1, repeat=1, **parted),
        record("ours", prompt=2, temperature=1.0),
    ]
    greedy, sampled = summarize(records)
    assert (greedy.same, greedy.compared) == (1, 3)
    assert greedy.partings == (Parting("code", 1, 7, 0.01),)
    assert (sampled.same, sampled.compared, sampled.partings) == (0, 0, ())


def test_all_tasks_together():
    records = [
        *(record(task=task) for task in ("code", "qa", "math")),
        record("ours", task="code", seconds=0.5),
        record("ours", task="qa", seconds=1.0),
        record("ours", task="math", seconds=0.25),
    ]
    assert [s.task for s in summarize(records)] == ["code", "qa", "math"] * 2
    assert only(records, "ours", by_task=False).speedup == Spread(2.0, 1.5, 3.0, 3)


def test_groups():
    records = [record("ours-k2", k=2, temperature=t, batch=b) for t in (0.0, 1.0) for b in (1, 8)]
    settings = [s.setting for s in summarize(records)]
    assert settings == [Setting(0.0, 1, 0), Setting(0.0, 8, 0), Setting(1.0, 1, 0), Setting(1.0, 8, 0)]
    assert str(Setting(0.7, 8, 4096)) == "temperature 0.7, batch 8, context 4096"
    assert str(settings[0]) == "temperature 0, batch 1"


def test_labels_tell_apart_what_differs():
    one, other = Contender("ours", None, "rejection"), Contender("ours", None, "block")
    stock = Contender("stock-k4", 4, None)
    assert labels([one, other, stock]) == {one: "ours rejection", other: "ours block", stock: "stock-k4"}
    assert labels([one, stock]) == {one: "ours", stock: "stock-k4"}
    assert list(labels([Contender("x", 1, None), Contender("x", 2, None)]).values()) == ["x K=1", "x K=2"]
    assert stock.family == "stock" and one.family == "ours"


def test_nothing():
    assert summarize([]) == []
