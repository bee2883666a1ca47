"""Standard streams as they come: closed, of another encoding, full, into pipes that nobody reads any more."""

import os
import subprocess
import sys

import pytest

COST = ["cost", "--price-per-hour", "1", "--tokens-per-second", "2", "--plain-tokens-per-second", "1"]
WARNS = """
import sys
from hf_specgen import cli
from hf_specgen.benchmarking import pricing
pricing.costs = lambda *_, **__: print("warned", file=sys.stderr)
cli.main()
"""
"""`hf-specgen`, with a `cost` that says something on stderr."""


def run(arguments, code=("-m", "hf_specgen"), **options):
    """With a command that imports neither torch nor transformers."""
    return subprocess.run([sys.executable, *code, *arguments], text=True, **options)


def closed(number):
    """Starts a program without this stream."""
    return {"preexec_fn": lambda: os.close(number)}


@pytest.fixture
def unread():
    """The end of a pipe that can be written to, and that nobody reads."""
    read, write = os.pipe()
    os.close(read)
    yield write
    os.close(write)


@pytest.mark.parametrize("arguments", [COST, ["--help"]], ids=["cost", "help"])
def test_what_an_encoding_lacks_ends_no_command(arguments):
    env = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = run(arguments, capture_output=True, env=env)
    assert (result.returncode, result.stderr) == (0, "") and "?" in result.stdout


def test_an_encoding_that_was_chosen_with_what_to_do_stays():
    env = os.environ | {"PYTHONIOENCODING": "ascii:xmlcharrefreplace"}
    result = run(["--help"], capture_output=True, env=env)
    assert result.returncode == 0 and "&#8230;" in result.stdout


def test_closed_streams():
    result = run(COST, stderr=subprocess.PIPE, **closed(1))
    assert (result.returncode, result.stderr) == (0, "")
    result = run(["generate", "a"], capture_output=True, **closed(0))
    assert (result.returncode, result.stderr) == (2, "generate: The prompt is empty.\n")
    assert run(["nonsense"], **closed(2)).returncode == 2


@pytest.mark.parametrize("arguments", [["--help"], ["cost", "--help"], ["--version"]], ids=" ".join)
def test_help_that_nobody_reads(unread, arguments):
    result = run(arguments, stdout=unread, stderr=subprocess.PIPE)
    assert (result.returncode, result.stderr) == (141, "")


def test_both_streams_into_a_pipe_that_nobody_reads(unread):
    assert run(COST, code=("-c", WARNS), stdout=unread, stderr=unread).returncode == 141
    assert run(["nonsense"], stdout=unread, stderr=unread).returncode == 2


def test_standard_error_on_a_full_disk():
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        assert run(["nonsense"], stderr=full).returncode == 2
