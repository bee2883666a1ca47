"""hf-specgen env: what a bug report needs, also where packages are broken."""

import importlib
import json
import platform

import pytest
import torch
import transformers
from typer.testing import CliRunner

from hf_specgen import environment
from hf_specgen.cli import app


def run(*arguments):
    return CliRunner().invoke(app, ["env", *arguments])


def test_json():
    result = run("--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0
    assert found["python"] == platform.python_version() and found["cpu"]["cores"] >= 1
    assert found["packages"]["torch"] == {"version": torch.__version__, "error": None}
    assert found["packages"]["transformers"] == {"version": transformers.__version__, "error": None}
    assert found["torch"]["threads"] == torch.get_num_threads() and found["torch"]["cuda"] == torch.version.cuda
    assert len(found["torch"]["gpus"]) == torch.cuda.device_count()
    assert {"accelerate", "peft", "bitsandbytes", "gptqmodel", "torchao", "gguf"} <= found["packages"].keys()


def test_text_has_a_line_for_each():
    lines = dict(line.split(maxsplit=1) for line in run().stdout.splitlines())
    assert lines["torch"] == torch.__version__ and lines["threads"] == str(torch.get_num_threads())
    assert {"platform", "cpu", "accelerator", "attention", "peft"} <= lines.keys()


@pytest.fixture
def broken(monkeypatch):
    """broken("torch"): importing it fails, though it is installed."""

    def break_(module):
        def fail(name):
            if name == module:
                print("half a page of warnings")
                raise RuntimeError("undefined symbol:\n_ZN3c10")
            return importlib.__import__(name)

        monkeypatch.setattr(environment.importlib, "import_module", fail)

    return break_


def test_a_broken_back_end_is_told_in_its_line(broken):
    broken("peft")
    result = run()
    assert result.exit_code == 0 and "half a page" not in result.output
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("peft"))
    assert line.endswith("CANNOT BE IMPORTED: RuntimeError: undefined symbol: _ZN3c10")


def test_a_broken_torch_is_told_and_the_rest_too(broken):
    broken("torch")
    result = run("--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1 and found["torch"] is None
    assert found["packages"]["torch"]["error"].startswith("RuntimeError") and found["packages"]["rich"]["error"] is None


def test_a_missing_package_has_no_version(monkeypatch):
    monkeypatch.setattr(
        environment, "version", lambda name: (_ for _ in ()).throw(environment.PackageNotFoundError(name))
    )
    result = run("--json")
    assert result.exit_code == 1 and json.loads(result.stdout)["packages"]["torch"] == {"version": None, "error": None}
