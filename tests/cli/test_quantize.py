"""hf-specgen quantize: what it prints, and its exit codes. What it writes is in test_writing.py."""

import io
import json

import pytest
import typer
from rich.console import Console
from toys import tiny, toy_tokenizer
from typer.testing import CliRunner

from hf_specgen.cli import quantize, terminal
from hf_specgen.quantization import writing

app = typer.Typer()
app.command("quantize")(quantize.command)


def run(*arguments):
    return CliRunner().invoke(app, list(map(str, arguments)))


@pytest.fixture
def draft(tmp_path):
    tiny(hidden_size=128, intermediate_size=128, scale=3.0).save_pretrained(tmp_path / "draft")
    toy_tokenizer().save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


def test_written(draft, tmp_path):
    pytest.importorskip("bitsandbytes")
    result = run(draft, "--to", "nf4", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    size, command = result.stdout.strip().splitlines()
    assert size.startswith(f"{tmp_path / 'out'}: ") and "MB, before" in size and "same best token" in size
    assert command == "hf-specgen quantize draft --to nf4 --out out"


def test_a_bar_on_a_terminal(draft, tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    screen = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr(terminal, "console", lambda **_: screen)
    assert run(draft, "--to", "int8", "--out", tmp_path / "out").exit_code == 0
    shown = screen.file.getvalue()
    assert all(step in shown for step in ("loading", "quantizing", "comparing", "2/3"))


def test_calibration_text(draft, tmp_path):
    pytest.importorskip("gptqmodel")
    (tmp_path / "text").write_text("the cab is a cab. " * 100)
    options = ("--calibration", tmp_path / "text", "--group-size", 64)
    result = run(draft, "--to", "awq", "--out", tmp_path / "out", *options)
    assert result.exit_code == 0 and result.stdout.strip().endswith(
        "--to awq --group-size 64 --calibration text --out out"
    )


def test_not_good_enough(draft, tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(writing, "LEAST_LIKENESS", 1.1)
    result = run(draft, "--to", "nf4", "--out", tmp_path / "out")
    assert result.exit_code == 1 and "likeness" in result.stderr and not (tmp_path / "out").exists()
    told = json.loads(run(draft, "--to", "nf4", "--out", tmp_path / "out", "--json").stdout)
    assert (told["written"], told["method"]) == (False, "nf4") and "likeness" in told["why"]


@pytest.mark.parametrize(
    "arguments, told",
    [
        (("--to", "int3"), "'int3' cannot be written"),
        (("--to", "awq", "--calibration", "absent.txt"), "absent.txt"),
        (("--to", "nf4", "--group-size", 64), "group size"),
        (("--to", "nf4", "--out", "{}/config.json/out"), "config.json is no folder"),
    ],
)
def test_not_started(arguments, told, draft, tmp_path):
    result = run(draft, "--out", tmp_path / "out", *(str(argument).format(draft) for argument in arguments))
    assert result.exit_code == 2 and told in result.stderr and len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_a_missing_package(draft, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_specgen.quantization.base.installed", lambda package: False)
    result = run(draft, "--to", "awq", "--out", tmp_path / "out")
    assert result.exit_code == 2 and 'pip install "gptqmodel' in result.stderr
