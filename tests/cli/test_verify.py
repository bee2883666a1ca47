"""hf-specgen verify: what it prints and writes, and its exit codes."""

import json
import sys

import pytest
from bench_toys import save_pair
from typer.testing import CliRunner

from hf_specgen import Verdict
from hf_specgen.cli import app, verify
from hf_specgen.verifiers.greedy import GreedyVerifier
from hf_specgen.verifying.certificate import Certificate


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return save_pair(tmp_path_factory.mktemp("verify"))


def run(pair, *arguments):
    small = "--max-new-tokens", 8, "--limit", 2, "--samples", 32, "--prompts", pair / "prompts.jsonl"
    return CliRunner().invoke(app, ["verify", *map(str, (pair / "target", pair / "draft", *small, *arguments))])


def second_best(self, proposal, scores, noise):
    return Verdict(proposal.counts * 0, scores[:, 0].topk(2).indices[:, 1])


def test_lossless(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["anything", "verify", "a", "b c"])
    result = run(pair, "--out", tmp_path / "certificate.json")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("verdict   LOSSLESS\n") and "\x1b" not in result.stdout and result.stderr == ""
    told = json.loads((tmp_path / "certificate.json").read_text())
    assert told["lossless"] and told["command"] == "hf-specgen verify a 'b c'"
    assert [file.name for file in tmp_path.iterdir()] == ["certificate.json"]


def test_json_and_other_options(pair):
    result = run(
        pair,
        "--json",
        "--dtype",
        "bfloat16",
        "--strategies",
        "block,coupled",
        "-k",
        2,
        "--temperature",
        0.7,
        "--seed",
        3,
    )
    told = json.loads(result.stdout)
    assert result.exit_code == 0 and told["target"]["dtype"] == "bfloat16"
    assert [law["strategy"] for law in told["sampling"]] == ["block", "coupled"]
    assert told["settings"]["num_assistant_tokens"] == 2 and told["settings"]["seed"] == 3
    assert told["sampling"][0]["temperature"] == 0.7


def test_greedy_only(pair):
    result = run(pair, "--temperature", 0)
    assert result.exit_code == 0 and "sampling  not tested (temperature 0)" in result.stdout


def test_a_fault_is_exit_code_1_and_certified(pair, tmp_path, monkeypatch):
    monkeypatch.setattr(GreedyVerifier, "accept", second_best)
    result = run(pair, "--temperature", 0, "--out", tmp_path / "c.json")
    assert result.exit_code == 1 and result.stdout.startswith("verdict   FAULT\n- prompt 0, alone: token 0 is ")
    assert json.loads((tmp_path / "c.json").read_text())["verdict"] == "FAULT"


def test_an_interruption_writes_nothing(pair, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(GreedyVerifier, "accept", interrupted)
    result = run(pair, "--out", tmp_path / "c.json")
    assert result.exit_code == 130 and result.stdout == "" and not [*tmp_path.iterdir()]
    assert result.stderr == "verify: interrupted, nothing was written\n"


def test_what_breaks_in_the_middle_is_no_fault(pair, tmp_path, monkeypatch):
    def broken(*_):
        raise RuntimeError("no\nkernel")

    monkeypatch.setattr(GreedyVerifier, "accept", broken)
    result = run(pair, "--out", tmp_path / "c.json")
    assert result.exit_code == 2 and result.stdout == "" and not [*tmp_path.iterdir()]
    assert result.stderr == "verify: RuntimeError: no kernel (HF_SPECGEN_TRACEBACK=1 shows where)\n"


def test_a_full_disk(pair, tmp_path, monkeypatch):
    def full(self, path):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(Certificate, "save", full)
    result = run(pair, "--temperature", 0, "--out", tmp_path / "c.json")
    assert result.exit_code == 2 and result.stdout.startswith("verdict   LOSSLESS")  # what was found is not lost
    assert "No space left" in result.stderr and len(result.stderr.splitlines()) == 1


def test_what_cannot_be_printed_is_written(pair, tmp_path, monkeypatch):
    """Whatever read stdout has gone, or it cannot hold the text."""
    for number, error in enumerate((BrokenPipeError(32, "Broken pipe"), UnicodeError("no character"))):

        def unprintable(*_, error=error):
            raise error

        monkeypatch.setattr(verify, "_print", unprintable)
        result = run(pair, "--temperature", 0, "--out", tmp_path / f"{number}.json")
        assert result.exit_code == (141, 2)[number]
        assert json.loads((tmp_path / f"{number}.json").read_text())["verdict"] == "LOSSLESS"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--temperature", "-1"], "Invalid value for '--temperature'"),
        (["--samples", "0"], "samples=0"),
        (["--limit", "0"], "Invalid value for '--limit'"),
        (["--max-new-tokens", "1"], "max_new_tokens=1"),
        (["--max-new-tokens", "4096"], "do not fit into the target's 512 positions"),
        (["--strategies", "typical"], "choose among rejection, block, coupled"),
        (["--strategies", "block,block"], "each once"),
        (["--prompts", "{}/gone.txt"], "gone.txt"),
        (["--prompts", "{}/empty.txt"], "empty.txt holds no prompts"),
        (["--prompts", "{}/target/model.safetensors"], "model.safetensors is not UTF-8"),
        (["--device", "cuda:99"], "is not on this machine"),
        (["--dtype", "float7"], "dtype='float7' is none"),
        (["--draft-quantization", "nf5"], "'nf5' is no quantization known here"),
        (["--out", "{}"], "is a folder; name a file in it"),
        (["--out", "{}/prompts.jsonl/c.json"], "prompts.jsonl is no folder"),
    ],
)
def test_bad_input_is_one_line_before_anything_is_loaded(pair, monkeypatch, arguments, said):
    monkeypatch.setattr("hf_specgen.verifying.verification.load", None)
    (pair / "empty.txt").write_text("\n")
    result = run(pair, *(argument.format(pair) for argument in arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.stderr
    assert result.stdout == "" and len(result.stderr.splitlines()) == 1
    assert result.stderr.startswith("verify: ") and said in result.stderr


def test_missing_models(pair):
    for models in ((pair / "gone", pair / "draft"), (pair / "target", pair / "gone")):
        result = CliRunner().invoke(app, ["verify", *map(str, models)])
        assert result.exit_code == 2 and f"{pair / 'gone'} is not a local folder" in result.stderr


def test_it_is_a_command():
    result = CliRunner().invoke(app, ["verify", "--help"])
    assert result.exit_code == 0 and "--samples" in result.stdout
