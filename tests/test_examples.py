"""The examples run as they stand, on the embedded pair.

Those by feature run in this process, which has loaded torch already, as does everybody's second script; they are still
whole scripts, with arguments and output of their own.
"""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from hf_specgen import demo

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
FEATURES = sorted((EXAMPLES / "by_feature").glob("*.py"))
ARGUMENTS = {"evaluation.py": ["--tasks", "code", "copying", "sampling", "--batch-sizes", "2"]}
NEEDS = {"evaluation.py": "lm_eval", "quantized_draft.py": "bitsandbytes"}
PRINTS = {"evaluation.py": "the same law"}
OTHERS = ("other ids", "plain decoding: False", "texts part")
"""What no example says of its ids in float32."""


def check_needs(script: Path) -> None:
    if (needed := NEEDS.get(script.name)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_the_example_runs(script):
    check_needs(script)
    command = [sys.executable, str(script), *ARGUMENTS.get(script.name, [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # other workers run beside it
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert PRINTS.get(script.name, "tokens per forward") in done.stdout


@pytest.mark.parametrize("script", FEATURES, ids=lambda path: path.name)
def test_the_feature_works(script, monkeypatch, capsys, tmp_path):
    check_needs(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    runpy.run_path(str(script), run_name="__main__")
    shown = capsys.readouterr().out
    assert "tokens per forward" in shown
    if script.name != "quantized_draft.py":  # which is bfloat16
        assert not any(words in shown for words in OTHERS)


@pytest.mark.parametrize("name", ["batches.py", "load_pair.py"])
def test_a_pair_of_ones_own(name, monkeypatch, capsys):
    """Folders as arguments: the embedded pair's, in the precision of its files."""
    script = EXAMPLES / "by_feature" / name
    monkeypatch.setattr(sys, "argv", [str(script), *map(str, demo.FOLDERS)])
    runpy.run_path(str(script), run_name="__main__")
    assert "tokens per forward" in capsys.readouterr().out


def test_each_feature_says_how_it_is_run():
    for script in FEATURES:
        assert f"python examples/by_feature/{script.name} [TARGET" in script.read_text()
