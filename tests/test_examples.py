"""The examples run as they stand, on the embedded pair."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
ARGUMENTS = {"evaluation.py": ["--tasks", "code", "copying", "sampling", "--batch-sizes", "2"]}
NEEDS = {"evaluation.py": "lm_eval"}
PRINTS = {"evaluation.py": "the same law"}


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(script):
    if (needed := NEEDS.get(script.name)) and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    command = [sys.executable, str(script), *ARGUMENTS.get(script.name, [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # other workers run beside it
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert PRINTS.get(script.name, "tokens per forward") in done.stdout


def test_there_are_examples():
    assert EXAMPLES
