"""hf-specgen cost: its formulas by hand, what it prints, what it refuses."""

import json
import os
import subprocess
import sys
import threading

import pytest
import typer
from record_toys import record
from typer.testing import CliRunner

from hf_specgen.benchmarking.pricing import Terms, costs, throughputs
from hf_specgen.benchmarking.summary import Setting
from hf_specgen.cli import cost

app = typer.Typer()
app.command()(cost.command)

PRICE = ("--price-per-hour", "3.6")
BY_HAND = ("--tokens-per-second", "100", "--plain-tokens-per-second", "50")


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def write(folder, records):
    folder.mkdir()
    (folder / "records.jsonl").write_text("".join(json.dumps(r.to_dict()) + "\n" for r in records))
    return folder


@pytest.fixture
def results(tmp_path):
    """Plain 10/s on code and 20/s on qa, ours 20/s and 40/s at batch 1; at batch 8 80/s each."""
    records = []
    for task, seconds in (("code", 1.0), ("qa", 0.5)):
        records += [
            record(task=task, tokens=10, seconds=seconds),
            record("ours", task=task, tokens=30, seconds=1.5 * seconds),
            record(task=task, batch=8, tokens=80),
            record("ours", task=task, batch=8, tokens=80),
        ]
    return write(tmp_path / "bench", records)


def test_price_of_a_million():
    """3.6 an hour is 0.001 a second: at 50 tokens a second a million takes 20,000 s, which is 20."""
    plain, ours = costs({"plain": 50, "ours": 100}, Terms(3.6))
    assert (plain.million, ours.million) == pytest.approx((20.0, 10.0))
    assert (plain.million_saving, ours.million_saving) == pytest.approx((0.0, 0.5))
    assert (ours.gpus, ours.hour, ours.hour_saving) == (None, None, None)


def test_gpus_and_utilization():
    """Two GPUs per replica, busy half of the time: four times the price. 120/s at 25/s each: 5 replicas, 10 GPUs."""
    plain, ours = costs({"plain": 50, "ours": 100}, Terms(3.6, gpus_per_replica=2, utilization=0.5, load=120))
    assert (plain.million, ours.million) == pytest.approx((80.0, 40.0))
    assert (plain.gpus, ours.gpus) == (10, 6)
    assert (plain.hour, ours.hour) == pytest.approx((36.0, 21.6))
    assert ours.hour_saving == pytest.approx(0.4)
    assert (plain.tokens_per_second_per_gpu, ours.tokens_per_second_per_gpu) == (25, 50)


@pytest.mark.parametrize(("load", "speed", "gpus"), [(100, 50, 2), (100.1, 50, 3), (3 * 1.1, 1.1, 3), (1e-12, 50, 1)])
def test_gpus_are_rounded_up_but_not_for_rounding_errors(load, speed, gpus):
    assert costs({"plain": speed}, Terms(1, load=load))[0].gpus == gpus


def test_seven_replicas_that_are_just_enough():
    """0.49 / (0.7 × 0.1) is 7.000000000000001 to a computer."""
    assert costs({"plain": 0.7}, Terms(1, utilization=0.1, load=0.49))[0].gpus == 7


def test_slower_than_plain_is_a_negative_saving():
    assert costs({"plain": 50, "ours": 40}, Terms(1))[1].million_saving == pytest.approx(-0.25)


def test_throughput_is_of_sums_per_setting(results):
    """Plain: 20 tokens in 1.5 s; ours 60 in 2.25 s. Not the means of the rates, 15 and 30."""
    from hf_specgen.benchmarking.store import read_records

    records = read_records(results)
    one, eight = throughputs(records)
    assert one.setting == Setting(0.0, 1, 0) and one.tasks == ("code", "qa") and one.calls == 2
    assert one.tokens_per_second == pytest.approx({"plain": 20 / 1.5, "ours": 60 / 2.25})
    assert eight.setting.batch == 8 and eight.tokens_per_second == {"plain": 80, "ours": 80}
    (qa,) = throughputs(records, ["qa"], 1)
    assert qa.tokens_per_second == {"plain": 20, "ours": 40} and qa.calls == 1


def test_only_calls_that_all_have_made_are_compared():
    """Ours failed on prompt 1, where plain was slow; a peer failed on the whole of qa and is left out."""
    records = [
        *(record(name, task="qa") for name in ("plain", "ours")),
        record(prompt=0),
        record(prompt=1, seconds=100.0),
        record("ours", prompt=0, seconds=0.5),
        record("ours", prompt=1, error="killed"),
        record("peer", prompt=0),
        record("peer", task="qa", error="killed"),
    ]
    (found,) = throughputs(records)
    assert found.calls == 2 and found.tokens_per_second == pytest.approx({"plain": 11, "ours": 22 / 1.5})
    assert found.left_out == {"peer": "no call in common with the others: qa"}


def test_by_hand():
    result = run(*PRICE, *BY_HAND, "--tokens-per-day", 8_640_000)
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[0] == "$3.60 per GPU and hour, 1 GPU per replica, busy 100% of the time, 100 tokens/s wanted"
    assert "it holds for the batch and the prompts it was measured with" in result.stdout
    assert lines[-2].split() == ["plain", "50.00", "20.00", "–", "2", "7.20", "–"]
    assert lines[-1].split() == ["speculative", "100.00", "10.00", "50.0%", "1", "3.60", "50.0%"]


def test_results(results):
    result = run(*PRICE, "--results", results, "--batch-size", 1, "--gpus-per-replica", 2, "--currency", "€")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[2] == "temperature 0, batch 1"
    assert lines[3] == "Measured at this setting, over 2 calls each (code, qa); it holds for no other."
    assert "€ per" in lines[4] and "GPUs" not in lines[5], "no load, no number of GPUs"
    assert lines[6].split() == ["plain", "6.67", "13.33", "150.00", "–"]
    assert lines[7].split() == ["ours", "13.33", "26.67", "75.00", "50.0%"]


def test_no_figure_is_cut_off_in_a_pipe(results):
    asked = *PRICE, "--results", results, "--load", 160_000_000_000, "--gpus-per-replica", 2
    wide, narrow, piped = (
        CliRunner().invoke(app, [*map(str, asked)], env={"COLUMNS": columns}).stdout for columns in ("200", "40", None)
    )
    assert "4,000,000,000" in wide and narrow == piped == wide


def test_each_batch_has_a_table(results):
    result = run(*PRICE, "--results", results / "records.jsonl", "--tasks", "code")
    assert [line for line in result.stdout.splitlines() if line.startswith("temperature")] == [
        "temperature 0, batch 1",
        "temperature 0, batch 8",
    ]


def test_json(results):
    result = run(*PRICE, "--results", results, "--tasks", "qa", "--batch-size", 1, "--load", 30, "--json")
    content = json.loads(result.stdout)
    assert content["currency"] == "$" and content["load"] == 30 and content["price_per_hour"] == 3.6
    (table,) = content["tables"]
    assert (table["temperature"], table["batch"], table["context"]) == (0.0, 1, 0)
    assert table["tasks"] == ["qa"] and table["calls"] == 1 and table["left_out"] == {}
    plain, ours = table["configurations"]
    assert (plain["name"], plain["gpus"], ours["name"], ours["gpus"]) == ("plain", 2, "ours", 1)
    assert ours["million"] == pytest.approx(25.0) and ours["million_saving"] == pytest.approx(0.5)
    by_hand = json.loads(run(*PRICE, *BY_HAND, "--json").stdout)["tables"][0]
    assert "batch" not in by_hand and by_hand["calls"] is None and by_hand["configurations"][0]["gpus"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (BY_HAND, "--price-per-hour is missing"),
        (PRICE, "Pass --results, or both"),
        ((*PRICE, *BY_HAND[:2]), "Pass --results, or both"),
        ((*PRICE, *BY_HAND[2:]), "Pass --results, or both"),
        (("--price-per-hour", "-1", *BY_HAND), "price per hour is -1"),
        (("--price-per-hour", "inf", *BY_HAND), "price per hour is inf"),
        ((*PRICE, *BY_HAND, "--utilization", "85"), "utilization is 85: pass a share up to 1"),
        ((*PRICE, *BY_HAND, "--utilization", "0"), "utilization is 0"),
        ((*PRICE, *BY_HAND, "--load", "nan"), "load is nan"),
        ((*PRICE, *BY_HAND, "--tokens-per-day", "-5"), "load is -5"),
        ((*PRICE, *BY_HAND, "--load", "1", "--tokens-per-day", "1"), "pass one of them"),
        ((*PRICE, *BY_HAND, "--gpus-per-replica", "0"), "GPUs per replica is 0"),
        ((*PRICE, *BY_HAND, "--tasks", "code"), "--results, which is missing"),
        ((*PRICE, "--tokens-per-second", "100", "--plain-tokens-per-second", "-5"), "throughput of plain is -5"),
        ((*PRICE, "--results", "nowhere"), "There is no nowhere: pass what hf-specgen bench --out has written"),
        ((*PRICE, *BY_HAND, "--load", "1e300"), "load is 1e+300"),
        ((*PRICE, *BY_HAND[2:], "--tokens-per-second", "0"), "throughput of speculative is 0"),
        ((*PRICE, "--results", "{bench}", *BY_HAND), "pass either it or them"),
        ((*PRICE, "--results", "{bench}", "--tasks", "poetry"), "task poetry; there are code, qa"),
        ((*PRICE, "--results", "{bench}", "--batch-size", "3"), "batch 3; there are 1, 8"),
    ],
)
def test_bad_input_is_one_line(results, arguments, message):
    result = run(*(argument.format(bench=results) for argument in arguments))
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr.startswith("cost: ") and message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "no records"),
        ([record("ours")], "No call of plain decoding was measured at temperature 0, batch 1"),
        ([record(error="killed"), record("ours")], "No call of plain"),
    ],
)
def test_results_without_what_is_needed(tmp_path, records, message):
    result = run(*PRICE, "--results", write(tmp_path / "poor", records))
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"model": "x"}\n', "line 1: This is not a record of this version's bench: {'model': 'x'}."),
        (b"model,speed\n", "line 1: this is not JSON: 'model,speed'."),
        (b"model,speed", "line 1: this is not JSON: 'model,speed'."),
        (b"[" * 100_000 + b"\n", "line 1: this is not JSON: '[[[["),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"\n\n", "There are no records"),
    ],
)
def test_foreign_results(tmp_path, content, message):
    (tmp_path / "foreign.txt").write_bytes(content)
    result = run(*PRICE, "--results", tmp_path / "foreign.txt")
    assert result.exit_code == 2 and message in result.stderr and result.stderr.count("\n") == 1


def test_results_of_any_name_and_out_of_a_pipe(results, tmp_path):
    """Without the line end that an editor may have taken from the last line, too."""
    content = (results / "records.jsonl").read_text()
    wanted = run(*PRICE, "--results", results).stdout
    (tmp_path / "renamed.txt").write_text("\n" + content.rstrip("\n"))
    assert run(*PRICE, "--results", tmp_path / "renamed.txt").stdout == wanted
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(content,))
    writer.start()
    assert run(*PRICE, "--results", tmp_path / "pipe").stdout == wanted
    writer.join()


def test_a_full_disk_is_one_line(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cost, "_print", full)
    result = run(*PRICE, *BY_HAND)
    assert result.exit_code == 2 and result.stderr == "cost: [Errno 28] No space left on device\n"


def test_needs_neither_torch_nor_matplotlib(results):
    code = (
        "import pathlib, sys\nfrom hf_specgen.cli import cost\n"
        f"cost.command(results=pathlib.Path({str(results)!r}), price_per_hour=1.0)\n"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
