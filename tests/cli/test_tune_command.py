"""hf-specgen tune: what it prints and writes, and its exit codes."""

import json
import subprocess
import sys

import pytest
from bench_toys import interrupt_after, save_pair
from toys import prompts
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import hf_specgen
from hf_specgen import SpecConfig
from hf_specgen.benchmarking.ours import Ours
from hf_specgen.cli import app
from hf_specgen.tuning.file import NAME


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("tune"))


def run(pair, *arguments, draft=True):
    models = [pair / "target", *([pair / "draft"] if draft else [])]
    small = "--max-new-tokens", 6, "--repeats", 1, "--limit", 2, "--prompts", pair / "prompts.jsonl"
    asked = ["tune", *map(str, (*models, *small, "--temperatures", "0", *arguments))]
    return CliRunner().invoke(app, asked, env={"COLUMNS": "40"})


def test_it_writes_a_file_that_generate_takes_and_says_how(pair, tmp_path):
    result = run(pair, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0].startswith("temperature 0  decode tokens per second") and "\x1b" not in result.stdout
    assert "…" not in result.stdout, "no figure is cut off where 40 columns are too few"
    assert {"plain", "hybrid", "draft", "lookup"} <= {line.split()[0] for line in lines if line}
    assert any(line.startswith("→ hybrid: the default") for line in lines)
    assert lines[-2] == f"{tmp_path / 'out' / NAME} is written. In Python:"
    target, draft = (AutoModelForCausalLM.from_pretrained(pair / name) for name in ("target", "draft"))
    exec(lines[-1], {"hf_specgen": hf_specgen, "target": target, "draft": draft})  # the line of Python that it says
    with hf_specgen.collect_stats() as stats:
        target.generate(**prompts([5]), max_new_tokens=6)
    assert stats.calls == 1 and stats.strategy == "rejection"


def test_json(pair, tmp_path):
    result = run(pair, "--out", tmp_path, "--json", "--tasks", "two", "--temperatures", "0,0.7")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["file"] == str(tmp_path / NAME)
    assert found["config"] == json.loads((tmp_path / NAME).read_text())
    assert [each["temperature"] for each in found["temperatures"]] == [0.0, 0.7]
    assert {row["name"] for row in found["temperatures"][1]["tried"]} >= {"plain", "hybrid", "draft", "lookup"}
    assert found["temperatures"][0]["winners"][0]["winner"] == "hybrid"  # so few calls decide nothing


def test_without_a_draft(pair, tmp_path):
    result = run(pair, "--out", tmp_path, draft=False)
    assert result.exit_code == 0 and "assistant_model" not in result.stdout.splitlines()[-1]


def test_an_interruption_writes_nothing(pair, tmp_path, monkeypatch):
    (tmp_path / NAME).write_text("before")
    interrupt_after(5, monkeypatch)
    result = run(pair, "--out", tmp_path)
    assert result.exit_code == 130 and result.stdout == ""
    assert result.stderr.startswith("tune: interrupted, nothing was written")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_a_full_disk(pair, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SpecConfig, "save_pretrained", full)
    result = run(pair, "--out", tmp_path)
    assert result.exit_code == 2 and result.stderr == "tune: [Errno 28] No space left on device\n"
    assert "→ hybrid" in result.stdout and "is written" not in result.stdout  # what was found is not lost


def test_models_that_cannot_decode(pair, tmp_path, monkeypatch):
    def broken(self, call):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(Ours, "decode", broken)
    result = run(pair, "--out", tmp_path)
    assert result.exit_code == 2 and result.stderr == "tune: survey: RuntimeError: no kernel\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--temperatures", "warm"], "--temperatures 'warm': 'warm' is no number"),
        (["--tasks", "three"], "'three' is no task here. There are one, two."),
        (["--prompts", "{}/gone.txt"], "gone.txt"),
        (["--prompts", "{}/empty.txt"], "empty.txt holds no prompts"),
        (["--prompts", "{}/target/model.safetensors"], "model.safetensors is not UTF-8"),
        (["--max-new-tokens", "4096"], "do not fit into the target's 512 positions"),
        (["--minutes=-1"], "minutes=-1.0: pass a number above 0"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--batch-sizes", "8-1"], "--batch-sizes '8-1': '8-1' goes down; write 1-8."),
        (["--out", "{}/prompts.jsonl"], "prompts.jsonl is a file: pass a folder"),
        (["--out", "{}/prompts.jsonl/child"], "prompts.jsonl is no folder"),
        (["--device", "cuda:99"], "is not on this machine"),
        (["--dtype", "float7"], "dtype='float7' is none"),
        (["--draft-quantization", "nf5"], "'nf5' is no quantization known here"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(pair, monkeypatch, arguments, said):
    monkeypatch.setattr("hf_specgen.tuning.tuner.load", None)
    (pair / "empty.txt").write_text("\n")
    result = run(pair, *(argument.format(pair) for argument in arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.stderr
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("tune: ") and said in result.stderr


def test_missing_models(pair):
    result = CliRunner().invoke(app, ["tune", str(pair / "gone"), str(pair / "draft")])
    assert result.exit_code == 2 and f"{pair / 'gone'} is not a local folder" in result.stderr


def test_the_module_imports_neither_torch_nor_transformers():
    code = "import sys\nfrom hf_specgen.cli import tune\nassert not {'torch', 'transformers'} & sys.modules.keys()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
