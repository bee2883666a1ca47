"""hf-specgen plan: what it prints, and its exit codes."""

import json

import pytest
from transformers import AutoModelForCausalLM, LlamaConfig
from typer.testing import CliRunner

from hf_specgen.cli import app


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A target of 661 KB in bfloat16 and 1,026 bytes of cache per token; a draft of 214 KB."""
    root = tmp_path_factory.mktemp("models")
    for name, layers in (("target", 8), ("draft", 2)):
        config = LlamaConfig(
            vocab_size=256,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(root / name)
    return root


def run(folders, *arguments):
    small = "--length", "100", "--reserve", "10KB"
    return CliRunner().invoke(app, ["plan", str(folders / "target"), str(folders / "draft"), *small, *arguments])


def test_fits(folders):
    result = run(folders, "--gpus", "2x700KB")
    assert result.exit_code == 0, result.stderr
    assert "\nfits, for 1 row of 100 tokens\ndraft on 1, target:\n" in result.stdout and "\x1b" not in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines()[:4])  # the table


def test_no_figure_is_cut(folders):
    """Nor folded: "610.1 KB" stays in one piece."""
    arguments = [str(folders / "target"), str(folders / "draft"), "--length", "100", "--gpus", "1x9GB"]
    narrow, wide = (CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": n}) for n in ("40", "200"))
    assert narrow.exit_code == 0 and narrow.stdout == wide.stdout


def test_json_is_the_plan(folders):
    result = run(folders, "--gpus", "1x2MB,1x1MB", "--batch-size", "2", "--draft-device", "1", "--json")
    assert result.exit_code == 0
    plan = json.loads(result.stdout)
    assert (plan["fits"], plan["draft_device"], plan["device_map"]) == (True, 1, {"": 0})
    assert (plan["batch_size"], plan["length"]) == (2, 100)
    first, second = plan["devices"]
    assert first["target_kv"] == 2 * 100 * 8 * 128 and second["draft_kv"] == 2 * 100 * 2 * 128
    assert first["reserve"] == 10_000 and first["limit"] == 2_000_000


def test_quantizations_and_dtype_count(folders):
    def weights(*arguments):
        device = json.loads(run(folders, "--gpus", "1x9MB", "--json", *arguments).stdout)["devices"][0]
        return device["target_weights"], device["draft_weights"]

    target, draft = weights()
    assert weights("--target-quantization", "int8")[0] < 0.6 * target
    quantized = weights("--draft-quantization", "nf4")
    assert quantized[0] == target and quantized[1] < 0.5 * draft
    assert weights("--dtype", "float32")[0] == pytest.approx(2 * target, rel=1e-3)


def test_does_not_fit(folders):
    result = run(folders, "--gpus", "1x900KB")
    assert result.exit_code == 1 and result.stdout == ""
    assert "are missing on device 0: the target fits without the draft" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    told = json.loads(run(folders, "--gpus", "1x900KB", "--json").stdout)
    assert told == {"fits": False, "why": result.stderr.removeprefix("plan: ").rstrip("\n")}


def test_fits_only_with_offloading(folders):
    result = run(folders, "--gpus", "1x700KB", "--cpu", "1GB")
    assert result.exit_code == 1
    assert "fits only with offloading, which is slow" in result.stdout and "on cpu" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpus", "4x80gb"], "'80gb' is no size"),
        (["--gpus", "1x9MB", "--draft-quantization", "nf5"], "'nf5' is no quantization"),
        (["--gpus", "1x9MB", "--draft-device", "3"], "draft_device='3' is not among the devices [0]"),
        (["--gpus", "1x9MB", "--dtype", "int3"], "dtype 'int3' is none"),
    ],
)
def test_could_not_tell_is_one_line(folders, arguments, said):
    result = run(folders, *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert said in result.stderr and len(result.stderr.splitlines()) == 1


def test_half_a_download_is_one_line(folders, tmp_path):
    for file in (folders / "draft").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes()[:5000])
    result = CliRunner().invoke(app, ["plan", str(folders / "target"), str(tmp_path), "--gpus", "1x9MB"])
    assert result.exit_code == 2 and "only partly there: 5000 of" in result.stderr


def test_without_accelerate(folders, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = run(folders, "--gpus", "1x9MB")
    assert result.exit_code == 2 and 'pip install "hf-specgen[accelerate]"' in result.stderr
