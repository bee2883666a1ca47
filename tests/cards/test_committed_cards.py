"""The committed model cards: of their records, valid, and written by the commands that they name."""

import json
import re
import shlex
from pathlib import Path

import pytest
import typer
from huggingface_hub import ModelCard
from typer.testing import CliRunner

from hf_specgen import __version__, demo
from hf_specgen.cli import app

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "model_cards"
EMBEDDED = CARDS / "embedded-pair"
COMMITTED = sorted(CARDS.glob("*/README.md"))


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def commands() -> dict[str, list[str]]:
    """By folder, those that model_cards/README.md says its cards were made with."""
    (block,) = re.findall(r"```bash\n(.*?)```", (CARDS / "README.md").read_text(), re.S)
    lines = [shlex.split(line)[1:] for line in block.replace("\\\n", " ").splitlines() if line]
    return {Path(words[words.index("--out") + 1]).name: words for words in lines}


def test_the_embedded_pairs_card_is_what_the_command_writes(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = [str(tmp_path) if word == "model_cards/embedded-pair" else word for word in commands()["embedded-pair"]]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "README.md").read_text() == (EMBEDDED / "README.md").read_text()


def test_every_committed_card_has_its_command():
    folders = {path.parent.name for path in COMMITTED}
    assert folders | {"custom_generate"} == {*commands()} and "embedded-pair" in folders


@pytest.mark.parametrize("path", COMMITTED, ids=lambda path: path.parent.name)
def test_a_committed_card_is_valid_and_tells_its_records(path):
    card = ModelCard.load(path)
    again = ModelCard(f"---\n{card.data.to_yaml()}\n---\n{card.text}")
    assert again.data.to_dict() == card.data.to_dict() and card.data.license == "apache-2.0"
    told = json.loads((path.parent / "certificate.json").read_text())
    assert f"**{told['verdict']}**" in card.text and told["command"] in card.text
    assert not re.search(r"(^|[\s`(\"])/(root|home|tmp|work)/", card.text), "no path of one machine"
    made_with = [told["command"]]
    if (path.parent / "bench").is_dir():
        made_with += json.loads((path.parent / "bench" / "manifest.json").read_text())["commands"]
    else:
        assert "Not measured" in card.text
    for command in made_with:
        _, name, *arguments = shlex.split(command)
        typer.main.get_command(app).get_command(None, name).make_context(name, arguments)
        assert command in card.text
    assert len(made_with) == card.text.count("```bash") and __version__ in card.text


def test_the_embedded_cards_snippet_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    (code,) = re.findall(r"```python\n(.*?)```", (EMBEDDED / "README.md").read_text(), re.S)
    assert str(demo.PAIR / "target").endswith("hf_specgen/demo/pair/target") and "hf_specgen/demo/pair/target" in code
    exec(compile(code.replace("max_new_tokens=100", "max_new_tokens=10"), "the card", "exec"), {})
    assert "tokens per forward" in capsys.readouterr().out
