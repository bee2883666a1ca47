"""What holds for every command: how it ends when something goes wrong, plain text without a terminal. One table of
commands; a command that is missing from it fails a test."""

import importlib
import json
import os
import subprocess
import sys

import pytest
from bench_toys import save_pair
from typer.testing import CliRunner

from hf_specgen.cli import CONTENTS, app, exit_codes
from hf_specgen.cli.errors import TRACEBACK

PRICE = ("cost", "--price-per-hour", "1")
PROMPTS = ("--prompts", "{}/prompts.jsonl")
RUNS = {
    "demo": (["demo"], "hf_specgen.demo.run.compare"),
    "recommend": (["recommend", "{}/target", "--among", "{}"], "hf_specgen.pairing.recommend.recommend"),
    "check-pair": (["check-pair", "{}/target", "{}/draft"], "hf_specgen.pairing.check_pair"),
    "plan": (["plan", "{}/target", "{}/draft", "--gpus", "1x9MB"], "hf_specgen.planning.plan.plan_pair"),
    "quantize": (
        ["quantize", "{}/draft", "--to", "int8", "--out", "{}/made"],
        "hf_specgen.quantization.writing.write_quantized",
    ),
    "generate": (["generate", "{}/target", "{}/draft", "--prompt", "a"], "hf_specgen.cli.writer.Writer.answer"),
    "chat": (["chat", "{}/target", "{}/draft"], "hf_specgen.cli.writer.Writer.load"),
    "bench": (["bench", "{}/target", "{}/draft", *PROMPTS], "hf_specgen.benchmarking.bench.Bench.run"),
    "tune": (["tune", "{}/target", "{}/draft", "--out", "{}/made", *PROMPTS], "hf_specgen.tuning.tuner.Tuner.run"),
    "cost": (
        [*PRICE, "--tokens-per-second", "2", "--plain-tokens-per-second", "1"],
        "hf_specgen.benchmarking.pricing.costs",
    ),
    "verify": (
        ["verify", "{}/target", "{}/draft", "--out", "{}/made", *PROMPTS],
        "hf_specgen.verifying.verification.Verification.run",
    ),
    "card": (["card", "{}/target", "{}/draft", "--bench", "{}", "--out", "{}/made"], "hf_specgen.cards.card.make"),
    "env": (["env"], "hf_specgen.environment.environment"),
}
"""By command: arguments that are right, and the function that does its work."""

WRONG_FOLDERS = [
    ["recommend", "{}/gone", "--among", "{}"],
    ["check-pair", "{}/gone", "{}/draft"],
    ["check-pair", "{}/target", "{}/gone"],
    ["plan", "{}/gone", "{}/draft"],
    ["quantize", "{}/gone", "--to", "int8", "--out", "{}/made"],
    ["generate", "{}/gone", "--prompt", "a"],
    ["generate", "{}/target", "{}/gone", "--prompt", "a"],
    ["chat", "{}/gone"],
    ["bench", "{}/gone", "{}/draft"],
    ["tune", "{}/gone", "{}/draft", "--out", "{}/made"],
    [*PRICE, "--results", "{}/gone"],
    ["verify", "{}/target", "{}/gone", "--out", "{}/made"],
    ["card", "{}/gone", "{}/draft", "--bench", "{}", "--out", "{}/made"],
    ["card", "{}/target", "{}/draft", "--bench", "{}/gone", "--out", "{}/made"],
    ["card", "{}/target", "{}/draft", "--certificate", "{}/gone", "--out", "{}/made"],
]
WANT_PROMPTS = [
    ["check-pair", "{}/target", "{}/draft", "--measure"],
    ["generate", "{}/target", "--file"],
    ["bench", "{}/target", "{}/draft", "--prompts"],
    ["tune", "{}/target", "{}/draft", "--out", "{}/made", "--prompts"],
    ["verify", "{}/target", "{}/draft", "--out", "{}/made", "--prompts"],
]
BAD_PROMPTS = {"gone.txt": "gone.txt", "empty.txt": "", "binary.txt": "is not UTF-8 text", "folder.txt": "directory"}
WANT_A_PAIR = [
    ["generate", "{}/target", "{}/head", "--prompt", "a"],
    ["chat", "{}/target", "{}/head"],
    ["bench", "{}/target", "{}/head", *PROMPTS],
    ["tune", "{}/target", "{}/head", "--out", "{}/made", *PROMPTS],
    ["verify", "{}/target", "{}/head", "--out", "{}/made", *PROMPTS],
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A pair, a draft head (which is no draft here), and prompts that cannot be read."""
    root = save_pair(tmp_path_factory.mktemp("commands"))
    (root / "head").mkdir()
    for file in (root / "draft").iterdir():
        (root / "head" / file.name).write_bytes(file.read_bytes())
    config = json.loads((root / "draft" / "config.json").read_text())
    (root / "head" / "config.json").write_text(json.dumps(config | {"draft_vocab_size": 8}))
    (root / "empty.txt").write_text(" \n")
    (root / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (root / "folder.txt").mkdir()
    return root


def run(root, arguments, **kwargs):
    return CliRunner().invoke(app, [argument.format(root) for argument in arguments], **kwargs)


def assert_one_line(result, command, code):
    assert result.exit_code == code, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit) and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith(f"{command}: "), result.stderr


def failing(error):
    def work(*_, **__):
        raise error

    return work


def test_the_table_holds_every_command():
    listed = [name for panel in CONTENTS.values() for name in panel]
    assert sorted(listed) == sorted(RUNS) == sorted(exit_codes.ANSWERS)


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device"), 2, "No space left on device"),
        (MemoryError("no memory for 9 GB"), 2, "no memory for 9 GB"),
        (AssertionError("of two\nlines"), 2, f"AssertionError: of two lines ({TRACEBACK}=1 shows where)"),
    ],
    ids=["ctrl-c", "full disk", "no memory", "unforeseen"],
)
def test_an_early_end_is_one_line_and_leaves_nothing(root, monkeypatch, command, error, code, said):
    arguments, work = RUNS[command]
    monkeypatch.setattr(work, failing(error))
    result = run(root, arguments, input="a\n")
    assert_one_line(result, command, code)
    assert said in result.stderr and not (root / "made").exists()


@pytest.mark.parametrize("command", RUNS)
def test_a_reader_that_has_gone_is_no_error_to_tell(root, monkeypatch, command):
    arguments, work = RUNS[command]
    monkeypatch.setattr(work, failing(BrokenPipeError(32, "Broken pipe")))
    result = run(root, arguments, input="a\n")
    assert result.exit_code == 141 and result.output == ""


@pytest.mark.parametrize("command", RUNS)
def test_a_traceback_is_printed_when_it_is_asked_for(root, monkeypatch, command):
    arguments, work = RUNS[command]
    monkeypatch.setenv(TRACEBACK, "1")
    monkeypatch.setattr(work, failing(AssertionError("of a kind")))
    result = run(root, arguments, input="a\n")
    assert "Traceback (most recent call last)" in result.stderr and "in work" in result.stderr
    assert result.exit_code == 2 and result.stderr.splitlines()[-1].startswith(f"{command}: AssertionError")


@pytest.mark.parametrize("arguments", WRONG_FOLDERS, ids=" ".join)
def test_a_missing_folder(root, arguments):
    result = run(root, arguments, input="a\n")
    assert_one_line(result, arguments[0], 2)
    assert f"{root}/gone" in result.stderr and not (root / "made").exists()


@pytest.mark.parametrize("file", BAD_PROMPTS)
@pytest.mark.parametrize("arguments", WANT_PROMPTS, ids=" ".join)
def test_prompts_that_cannot_be_read(root, arguments, file):
    result = run(root, [*arguments, f"{{}}/{file}"])
    assert_one_line(result, arguments[0], 2)
    assert BAD_PROMPTS[file] in result.stderr and not (root / "made").exists()


@pytest.mark.parametrize("arguments", WANT_A_PAIR, ids=" ".join)
def test_a_refused_pair(root, arguments):
    result = run(root, arguments, input="a\n")
    assert_one_line(result, arguments[0], 2)
    assert "head" in result.stderr and not (root / "made").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "hf-specgen: No such command 'nonsense'."),
        (["--nonsense"], "hf-specgen: No such option"),
        (["generat"], "hf-specgen: No such command 'generat'."),  # newer typers go on: Did you mean 'generate'?
        (["bench"], "bench: Missing argument 'TARGET'. Try: hf-specgen bench --help"),
        (["verify", "a", "b", "--limit", "many"], "verify: Invalid value for '--limit'"),
        (["chat", "a", "--max-new-tokens", "0"], "chat: Invalid value for '--max-new-tokens'"),
        (["plan", "a", "b", "c"], "plan: Got unexpected extra argument"),
    ],
)
def test_wrong_usage_is_one_line(arguments, said):
    result = run("", arguments)
    assert result.exit_code == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert said in result.stderr


def test_no_arguments_are_a_question():
    result = run("", [])
    assert result.exit_code == 0 and all(panel in result.stdout for panel in CONTENTS)


def test_completion_is_on():
    asked = {"_HF_SPECGEN_COMPLETE": "complete_bash", "COMP_WORDS": "hf-specgen che", "COMP_CWORD": "1"}
    result = subprocess.run(cheap(), env=os.environ | asked, capture_output=True, text=True)
    assert result.stdout.split() == ["check-pair"], result.stderr


def cheap(*arguments):
    """Imports neither torch nor transformers."""
    return [sys.executable, "-m", "hf_specgen", *arguments]


@pytest.mark.parametrize("arguments", [RUNS["cost"][0], ["--help"], ["--version"]], ids=["cost", "help", "version"])
def test_standard_output_on_a_full_disk(arguments):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        result = subprocess.run(cheap(*arguments), stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2 and len(result.stderr.splitlines()) == 1
    assert "No space left on device" in result.stderr


def test_standard_output_whose_reader_has_gone():
    read, write = os.pipe()
    os.close(read)
    try:
        result = subprocess.run(cheap(*RUNS["cost"][0]), stdout=write, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.parametrize("command", ["cost", "env", "check-pair", "recommend"])
def test_json_and_text_without_a_terminal_are_plain(root, command):
    for as_json in ([], ["--json"]):
        result = run(root, [*RUNS[command][0], *as_json])
        assert result.exit_code in (0, 1) and result.stdout and "\x1b" not in result.output
    assert isinstance(json.loads(result.stdout), dict)
    with pytest.raises(ValueError):
        json.loads(run(root, RUNS[command][0]).stdout)


SHORT = ("--max-new-tokens", "4")
LOADING = {
    "check-pair": ([*SHORT, "--limit", "1", "--measure", "{}/prompts.jsonl"], "hf_specgen.pairing.loading.load_pair"),
    "generate": (SHORT, "hf_specgen.cli.writer.load"),
    "bench": ([*SHORT, "--against", "ours-k2", "--repeats", "1"], "hf_specgen.benchmarking.bench.load"),
    "verify": ([*SHORT, "--limit", "1", "--temperature", "0"], "hf_specgen.verifying.verification.load"),
}


@pytest.mark.parametrize("command", LOADING)
def test_what_packages_print_while_they_are_loaded_is_no_json(root, monkeypatch, command):
    """gptqmodel's banner, say."""
    more, work = LOADING[command]
    module, name = work.rsplit(".", 1)
    load = getattr(importlib.import_module(module), name)

    def loud(*arguments, **options):
        print("a banner")
        return load(*arguments, **options)

    monkeypatch.setattr(work, loud)
    arguments = [argument for argument in RUNS[command][0] if argument not in ("--out", "{}/made")]
    result = run(root, [*arguments, *more, "--json"])
    assert result.exit_code == 0 and json.loads(result.stdout), result.output
    assert "a banner" in result.stderr
