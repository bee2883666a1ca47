"""hf-specgen check-pair: what it prints, and its exit codes."""

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hf_specgen.cli import app


@pytest.fixture
def folders(tmp_path):
    """Four vocabularies of 20 ids: two alike, one that swaps the last two tokens, one with nothing in common."""
    words = [f"[PAD{i}]" for i in range(20)]  # brackets: rich must not take them for markup
    swapped, others = [*words[:18], words[19], words[18]], [f"[V{i}]" for i in range(20)]
    for name, vocabulary in (("target", words), ("same", words), ("swapped", swapped), ("other", others)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps({"vocab_size": 20, "eos_token_id": 2}))
        vocab = {word: id_ for id_, word in enumerate(vocabulary)}
        (tmp_path / name / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "WordLevel", "vocab": vocab, "unk_token": words[0]}})
        )
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(app, ["check-pair", *map(str, arguments)])


def test_usable(folders):
    result = run(folders / "target", folders / "same")
    assert result.exit_code == 0
    assert "verdict  exact\n" in result.stdout and "\x1b" not in result.stdout


def test_differing_ids_are_shown(folders):
    result = run(folders / "target", folders / "swapped")
    assert result.exit_code == 0
    assert "2 of the 20 ids known to both tokenizers mean different strings (18, 19); 90.00 % of all" in result.stdout
    assert "18  '[PAD18]'  '[PAD19]'" in result.stdout


def test_long_strings_are_not_cut(folders):
    file = folders / "other" / "tokenizer.json"
    file.write_text(file.read_text().replace("[V0]", "[" + 90 * "V" + "]"))
    assert f"'[PAD0]'  '[{90 * 'V'}]'" in run(folders / "target", folders / "other").stdout


def test_refused(folders):
    result = run(folders / "target", folders / "other")
    assert result.exit_code == 1
    assert "verdict  refused\n" in result.stdout and "0   '[PAD0]'  '[V0]'" in result.stdout


def test_a_tokenizer_that_is_not_there(folders):
    (folders / "same" / "tokenizer.json").unlink()
    result = run(folders / "target", folders / "same")
    assert result.exit_code == 2
    assert "verdict  unknown\n" in result.stdout and "no tokenizer is known for the draft" in result.stdout


def test_json(folders):
    result = run(folders / "target", folders / "swapped", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert report["verdict"] == "mappable" and report["differing"][1] == {
        "id": 19,
        "target": "[PAD19]",
        "draft": "[PAD18]",
    }


@pytest.mark.parametrize("broken", ["missing", "empty", "garbled"])
def test_not_checked_is_one_line(folders, broken):
    for name in ("empty", "garbled"):
        (folders / name).mkdir()
    (folders / "garbled" / "config.json").write_text("{")
    result = run(folders / "target", folders / broken)
    assert result.exit_code == 2
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert str(folders / broken) in result.stderr and isinstance(result.exception, SystemExit)


def test_as_a_module(folders):
    command = [sys.executable, "-m", "hf_specgen", "check-pair", str(folders / "target"), str(folders / "same")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0 and "verdict  exact" in result.stdout


def test_command_itself_imports_nothing_heavy(folders):
    code = """
import sys
from hf_specgen.cli import main
sys.argv[1:] = ["check-pair", "target", "same"]
try:
    main()
finally:
    assert not {"torch", "transformers"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=folders)


def test_an_error_that_nobody_foresaw_is_no_refusal(folders, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("of two\nlines")

    monkeypatch.setattr("hf_specgen.pairing.check_pair", fail)
    result = run(folders / "target", folders / "same")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == "check-pair: AssertionError: of two lines (HF_SPECGEN_TRACEBACK=1 shows where)\n"
