"""hf-specgen recommend: what it prints, and its exit codes."""

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from hf_specgen.cli import recommend

app = typer.Typer()
app.command()(recommend.command)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def folders(tmp_path):
    """models/: a target and a draft with the same 20 words, and a head."""
    for name, config in (("target", {}), ("draft", {}), ("head", {"draft_vocab_size": 8})):
        folder = tmp_path / "models" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"vocab_size": 20, "eos_token_id": 2} | config))
        vocab = {f"[{i}]": i for i in range(20)}
        (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    return tmp_path / "models"


def run(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_published():
    result = run("Qwen/Qwen2.5-Coder-7B-Instruct")
    assert result.exit_code == 0 and "\x1b" not in result.stdout
    lines = result.stdout.splitlines()
    assert lines[:2] == [
        "target  Qwen/Qwen2.5-Coder-7B-Instruct",
        "family  Qwen2.5 (its name is Qwen/Qwen2.5-Coder-7B-Instruct)",
    ]
    row = next(line for line in lines if line.startswith("Qwen/Qwen2.5-Coder-0.5B-Instruct "))
    assert row.split()[1:4] == ["0.494B", "6.5%", "same"]


def test_published_json():
    result = run("google/gemma-3-27b-it", "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == 0 and content["family"] == "Gemma 3"
    assert content["drafts"][0]["draft"] == "google/gemma-3-270m-it" and content["drafts"][0]["same_tokenizer"]


def test_nothing_published_says_why():
    result = run("openai/gpt-oss-120b")
    assert result.exit_code == 1
    assert "too close" in result.stdout and "No draft that is small enough is known." in result.stdout
    told = json.loads(run("openai/gpt-oss-120b", "--json").stdout)
    assert (told["family"], told["drafts"]) == ("GPT-OSS", []) and "too close" in told["why"]


def test_among(folders):
    result = run(folders / "target", "--among", folders)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith(str(folders / "draft")))
    assert lines[first].split()[1] == "exact" and lines[first + 1].startswith("    ")
    assert lines[first + 2].startswith(str(folders / "head")) and "EAGLE-3" in lines[first + 3]


def test_among_nothing_usable(folders):
    result = run(folders / "target", "--among", folders / "head", "--json")
    content = json.loads(result.stdout)
    assert result.exit_code == 1
    assert content["family"] is None and [draft["usable"] for draft in content["drafts"]] == [False]


def test_a_family_that_nobody_knows_as_json(folders):
    result = run(folders / "target", "--json")
    told = json.loads(result.stdout)
    assert result.exit_code == 2 and result.stderr == f"recommend: {told['why']}\n"
    assert (told["target"], told["family"], told["drafts"]) == (str(folders / "target"), None, [])


@pytest.mark.parametrize("arguments", [["{}/gone"], ["{}/target"], ["{}/target", "--among", "{}/gone"], ["org/gone"]])
def test_not_told_is_one_line(folders, arguments):
    result = run(*(argument.format(folders) for argument in arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit)
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("recommend: ")


def test_command_imports_neither_torch_nor_transformers(folders):
    code = """
import sys, typer
from hf_specgen.cli import recommend
app = typer.Typer()
app.command()(recommend.command)
try:
    app(["Qwen/Qwen2.5-7B"])
finally:
    assert not {"torch", "transformers"} & sys.modules.keys()
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folders)
    assert result.returncode == 0 and "Qwen/Qwen2.5-0.5B" in result.stdout, result.stderr
