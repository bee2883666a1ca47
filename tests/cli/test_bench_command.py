"""hf-specgen bench: what it prints, what it keeps, and its exit codes."""

import json
import subprocess
import sys

import pytest
import typer
from bench_toys import interrupt_after, save_pair
from typer.testing import CliRunner

from hf_specgen.benchmarking.ours import Ours
from hf_specgen.benchmarking.store import Store
from hf_specgen.cli import bench

app = typer.Typer()
app.command()(bench.command)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("bench"))


def run(pair, *arguments, draft=True):
    models = [pair / "target", *([pair / "draft"] if draft else [])]
    small = "--max-new-tokens", 4, "--repeats", 1, "--prompts-per-task", 1, "--prompts", pair / "prompts.jsonl"
    return CliRunner().invoke(app, [*map(str, (*models, *small, *arguments))], env={"COLUMNS": "40"})


def test_table_and_folder(pair, tmp_path):
    asked = "--against", "plain,ours-k2,stock-k", "-k", "1-2", "--out", tmp_path / "out"
    result = run(pair, *asked)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("temperature 0, batch 1\n") and "\x1b" not in result.stdout
    assert "…" not in result.stdout, "no figure is cut off where 40 columns are too few"
    rows = [line.split()[0] for line in result.stdout.splitlines() if line]
    assert [name for name in ("plain", "ours-k2", "stock-k1", "stock-k2") if name not in rows] == []
    assert len((tmp_path / "out" / "records.jsonl").read_text().splitlines()) == 8
    before = (tmp_path / "out" / "records.jsonl").read_text()
    again = run(pair, *asked)
    assert again.exit_code == 0 and again.stdout == result.stdout
    assert (tmp_path / "out" / "records.jsonl").read_text() == before


def test_json(pair):
    result = run(pair, "--against", "plain,lookup", "--tasks", "two", "--temperatures", "0,0.7", "--json", draft=False)
    content = json.loads(result.stdout)
    assert result.exit_code == 0
    assert [(r["cell"]["contender"], r["cell"]["temperature"]) for r in content["records"]] == [
        ("plain", 0.0),
        ("lookup", 0.0),
        ("plain", 0.7),
        ("lookup", 0.7),
    ]
    assert content["manifest"]["target"]["name"] == "target" and content["manifest"]["draft"] is None


def test_a_failing_contender_is_told_once(pair, monkeypatch):
    def broken(self, call):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(Ours, "decode", broken)
    result = run(pair, "--against", "plain,ours")
    assert result.exit_code == 1 and "no kernel" in result.stdout
    assert result.stderr.splitlines() == ["bench: ours: RuntimeError: no kernel"]


def test_an_interrupted_bench_prints_what_it_has(pair, tmp_path, monkeypatch):
    interrupt_after(2, monkeypatch)
    result = run(pair, "--against", "plain,ours", "--out", tmp_path)
    assert result.exit_code == 130 and result.stdout.startswith("temperature 0, batch 1\n")
    assert result.stderr == f"bench: interrupted, 1 calls were not made; the same command goes on from {tmp_path}\n"
    monkeypatch.undo()
    assert run(pair, "--against", "plain,ours", "--out", tmp_path).exit_code == 0
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 4


class Full:
    """A file with room for one more line."""

    def __init__(self, file):
        self.file, self.name, self.lines = file, file.name, 0

    def write(self, line):
        self.lines += 1
        self.file.write(line if self.lines == 1 else line[:50])

    def flush(self):
        self.file.flush()
        if self.lines > 1:
            raise OSError(28, "No space left on device")

    def close(self):
        self.file.close()


def test_a_full_disk_leaves_what_was_measured(pair, tmp_path, monkeypatch):
    opened = Store.open

    def open_(self):
        opened(self)
        self._file = Full(self._file)

    monkeypatch.setattr(Store, "open", open_)
    result = run(pair, "--against", "plain,ours", "--out", tmp_path)
    assert result.exit_code == 2 and result.stdout.startswith("temperature 0, batch 1\n")
    assert result.stderr.startswith("bench: [Errno 28] No space left on device: ") and "2 calls" in result.stderr
    monkeypatch.undo()
    assert run(pair, "--against", "plain,ours", "--out", tmp_path).exit_code == 0
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 4


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--against", "plain,mine"], "'mine' is no contender"),
        (["--against", ","], "against is empty"),
        (["--tasks", "three"], "'three' is no task here. There are one, two."),
        (["--temperatures", "warm"], "--temperatures 'warm': 'warm' is no number"),
        (["--temperatures=-1"], "temperatures=-1.0: pass numbers from 0"),
        (["--against", "ours-k", "-k", "4-2"], "-k '4-2': '4-2' goes down; write 2-4."),
        (["--against", "ours-k", "-k", "1-1001"], "'1-1001' are more than 1000 numbers"),
        (["--prompts", "{}/deep.jsonl"], "deep.jsonl, line 1: not JSON"),
        (["--batch-sizes", "1.5"], "--batch-sizes '1.5': '1.5' is no number"),
        (["--contexts", "4096"], "do not fit into the target's 512 positions"),
        (["--prompts", "{}/gone.jsonl"], "gone.jsonl"),
        (["--prompts", "{}/target/model.safetensors"], "model.safetensors is not UTF-8"),
        (["--prompts", "{}/empty.txt"], "empty.txt holds no prompts"),
        (["--out", "{}"], "is not empty, and not a bench's"),
        (["--out", "{}/prompts.jsonl/child"], "prompts.jsonl is no folder"),
        (["--plots", "{}/prompts.jsonl"], "prompts.jsonl is a file: pass a folder"),
        (["--device", "cuda:99"], "is not on this machine"),
        (["--dtype", "float7"], "dtype='float7' is none"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(pair, monkeypatch, arguments, said):
    monkeypatch.setattr("hf_specgen.benchmarking.bench.load", None)
    (pair / "empty.txt").write_text("\n")
    (pair / "deep.jsonl").write_text("[" * 100_000)
    result = run(pair, *(argument.format(pair) for argument in arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.stderr
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("bench: ") and said in result.stderr


def test_missing_models(pair):
    result = run(pair, "--against", "plain,ours", draft=False)
    assert result.exit_code == 2 and "'ours' needs a draft" in result.stderr
    result = CliRunner().invoke(app, [str(pair / "gone"), str(pair / "draft")])
    assert result.exit_code == 2 and f"{pair / 'gone'} is not a local folder" in result.stderr


def test_plots_need_their_package_before_anything_else(pair, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = run(pair, "--plots", tmp_path / "plots", "--against", "mine")
    assert result.exit_code == 2 and 'pip install "hf-specgen[plots]"' in result.stderr
    assert not (tmp_path / "plots").exists()


def test_plots(pair, tmp_path):
    pytest.importorskip("matplotlib")
    result = run(pair, "--against", "plain,ours-k2", "--plots", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert str(tmp_path / "speedup-by-task.png") in result.stderr.split() and any(tmp_path.glob("*.svg"))


def test_what_cannot_be_printed_is_drawn(pair, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")

    def gone(*_):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(bench, "_show", gone)
    assert run(pair, "--against", "plain,ours-k2", "--plots", tmp_path).exit_code == 141
    assert (tmp_path / "speedup-by-task.png").is_file()


def test_the_module_imports_neither_torch_nor_transformers():
    code = "import sys\nfrom hf_specgen.cli import bench\nassert not {'torch', 'transformers'} & sys.modules.keys()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
