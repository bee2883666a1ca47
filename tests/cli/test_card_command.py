"""hf-specgen card: files, exit codes, JSON."""

import json
import os
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hf_specgen import demo
from hf_specgen.cli import app

EMBEDDED = Path(__file__).parents[2] / "model_cards" / "embedded-pair"
CERTIFICATE = ("--certificate", EMBEDDED / "certificate.json")


def run(*arguments):
    pair = demo.PAIR / "target", demo.PAIR / "draft"
    return CliRunner().invoke(app, ["card", *map(str, (*pair, *arguments))])


def test_printed_without_out():
    result = run(*CERTIFICATE)
    assert result.exit_code == 0 and result.stdout.startswith("---\n") and result.stdout.endswith("\n")


def test_written_once(tmp_path):
    out = tmp_path / "new"
    result = run(*CERTIFICATE, "--out", out)
    assert result.exit_code == 0 and result.stdout.strip() == str(out / "README.md")
    card = (out / "README.md").read_text()
    again = run(*CERTIFICATE, "--out", out, "--title", "Another")
    assert again.exit_code == 2 and "is there already: pass --overwrite" in again.stderr
    assert (out / "README.md").read_text() == card and again.stderr.count("\n") == 1
    assert run(*CERTIFICATE, "--out", out, "--title", "Another", "--overwrite").exit_code == 0
    assert "# Another" in (out / "README.md").read_text() and [*out.iterdir()] == [out / "README.md"]


def test_a_folder_with_a_dot_in_its_name(tmp_path):
    out = tmp_path / "Qwen2.5-Coder-0.5B-nf4"
    result = run(*CERTIFICATE, "--out", out)
    assert result.exit_code == 0 and result.stdout.strip() == str(out / "README.md")
    assert (out / "README.md").is_file()


def test_a_pipe_and_a_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    card = run(*CERTIFICATE).stdout
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    assert run(*CERTIFICATE, "--out", "~/pipe").exit_code == 0
    reader.join(timeout=5)
    assert read == [card]
    assert run(*CERTIFICATE, "--out", "~/new").exit_code == 0
    assert sorted(os.listdir(tmp_path)) == ["new", "pipe"]


def test_json(tmp_path):
    told = json.loads(run(*CERTIFICATE, "--json", "--out", tmp_path / "card.md").stdout)
    assert told["file"] == str(tmp_path / "card.md") and told["metadata"]["library_name"] == "transformers"
    assert (tmp_path / "card.md").read_text() == told["text"]


def test_a_fault_is_exit_code_1(tmp_path):
    told = json.loads((EMBEDDED / "certificate.json").read_text())
    told["sampling"][0]["passed"] = False
    (tmp_path / "c.json").write_text(json.dumps(told | {"verdict": "FAULT", "lossless": False, "faults": ["no"]}))
    result = run("--certificate", tmp_path / "c.json", "--out", tmp_path / "card.md")
    assert result.exit_code == 1 and "FAULT" in result.stderr and "**FAULT**" in (tmp_path / "card.md").read_text()


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((), "pass --bench"),
        (("--certificate", "none.json"), "There is no file none.json"),
        (("--out", __file__ + "/card.md"), "is no folder"),
    ],
)
def test_refusals_are_one_line(arguments, says, tmp_path):
    result = run("--out", tmp_path / "card.md", *arguments)
    assert result.exit_code == 2 and says in result.stderr and result.stderr.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_missing_model_is_one_line():
    result = CliRunner().invoke(app, ["card", "/no/target", "/no/draft", *map(str, CERTIFICATE)])
    assert result.exit_code == 2 and "/no/target" in result.stderr and result.stderr.count("\n") == 1


def test_a_disk_that_takes_nothing_leaves_nothing(tmp_path, monkeypatch):
    def full(self, *_, **__):
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    result = run(*CERTIFICATE, "--out", tmp_path / "card.md")
    assert result.exit_code == 2 and "No space left" in result.stderr and not [*tmp_path.iterdir()]
