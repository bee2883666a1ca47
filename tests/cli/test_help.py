"""What the help says: a contents page, exit codes, one text for options of one name, and nothing that is not so."""

import inspect
import re

import pytest
import typer
from typer.testing import CliRunner

from hf_specgen import quantization
from hf_specgen.benchmarking.tasks import own_tasks
from hf_specgen.cli import CONTENTS, app, exit_codes
from hf_specgen.cli.errors import TRACEBACK
from hf_specgen.quantization.writing import METHODS
from hf_specgen.verifiers import STRATEGIES


def test_the_help_is_a_contents_page_of_one_line_each():
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"})
    lines = [line.strip("│ ") for line in result.stdout.splitlines()]
    for panel in CONTENTS.values():
        for name, module in panel.items():
            first = inspect.getdoc(module.command).splitlines()[0]
            assert f"{name:<10}  {first}" in lines, name
    assert all(str(code) in result.stdout for code in exit_codes.CODES) and TRACEBACK in result.stdout


@pytest.mark.parametrize("command", exit_codes.ANSWERS)
def test_each_help_names_its_exit_codes_and_json(command):
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and exit_codes.of_command(command) in " ".join(result.stdout.split())
    assert "Print JSON instead of text." in result.stdout


def test_options_of_one_name_have_one_help_and_one_metavar():
    """But for those whose meaning a command narrows, which are told apart by name."""
    told = {}
    for name, command in typer.main.get_command(app).commands.items():
        for param in command.params:
            for option in param.opts:
                told.setdefault(option, {}).setdefault((param.help, param.metavar), []).append(name)
    differing = {option for option, meanings in told.items() if len(meanings) > 1}
    lists = {"--num-assistant-tokens", "-k", "--top-p", "--top-k"}  # bench takes lists, and has defaults of its own
    own = {"--out", "--batch-size", "--tasks", "draft"}  # folder or file; of rows, or among results; a folder only
    assert differing <= lists | own


def test_no_help_contradicts_its_default():
    """What happens without an option is said in place of a default, and only where there is none."""
    for name, command in typer.main.get_command(app).commands.items():
        for param in command.params:
            without = isinstance(param.show_default, str) or "without it" in (param.help or "").lower()
            assert not without or param.default is None, (name, param.name)


@pytest.mark.parametrize(
    ("command", "option", "known"),
    [
        ("generate", "--draft-quantization", quantization.NAMES),
        ("quantize", "--to", METHODS),
        ("verify", "--strategies", STRATEGIES),
        ("generate", "--strategy", STRATEGIES),
        ("bench", "--tasks", own_tasks()),
    ],
)
def test_a_help_that_lists_names_lists_all_of_them(command, option, known):
    params = typer.main.get_command(app).commands[command].params
    (text,) = (param.help for param in params if option in param.opts)
    assert {*known} <= {*re.findall(r"[\w-]+", text)}
