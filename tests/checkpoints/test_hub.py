"""Names of models: folders, and repositories of a small hub that runs in the test itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT, FakeHub
from safetensors.torch import save_file

from hf_specgen.checkpoints.checkpoint import CheckpointError, Tensor
from hf_specgen.checkpoints.hub import folder_of, headers_of, name_of, split_name

SMALL = {
    "config.json": json.dumps({"model_type": "llama", "vocab_size": 64}),
    "generation_config.json": json.dumps({"eos_token_id": 2}),
    "tokenizer.json": json.dumps({"model": {"vocab": {"a": 0}}}),
    "tokenizer_config.json": "{}",
    "chat_template.jinja": "{{ messages }}",
    "spiece.model": "pieces",
}
ID = "org/model"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and a running hub with org/model: one safetensors file of 1 MB, a pickle, an original/ folder."""

    source = tmp_path / "source"
    (source / "original").mkdir(parents=True)
    for name, content in SMALL.items():
        (source / name).write_text(content)
    (source / "original" / "tokenizer.model").write_text("again")
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    save_file({"lm_head.weight": torch.zeros(512, 512), "norm": torch.ones(3).half()}, source / "model.safetensors")
    hub = FakeHub()
    hub.add(ID, source)
    hub.cache = tmp_path / "cache"
    with hub.installed(monkeypatch, hub.cache):
        yield hub


def test_a_folder_is_itself(tmp_path, monkeypatch):
    assert folder_of(tmp_path) == tmp_path and folder_of(str(tmp_path)) == tmp_path
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert folder_of("org/model") == Path("org/model")  # what is on disk wins


def test_a_repository_becomes_a_folder_without_weights(hub):
    folder = folder_of(ID)
    assert {file.name: file.read_text() for file in folder.iterdir()} == SMALL
    assert hub.sent(".safetensors") == hub.sent(".bin") == []
    assert hub.cache in folder.parents
    assert name_of(folder) == f"{ID}@{COMMIT}" and name_of(hub.folders[ID]) is None


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_a_revision_can_be_named(hub, revision):
    assert folder_of(f"{ID}@{revision}").name == COMMIT


def test_headers_are_read_without_the_weights(hub):
    assert headers_of(ID) == {"lm_head.weight": Tensor("F32", (512, 512)), "norm": Tensor("F16", (3,))}
    answers = [answer for answer in hub.sent(".safetensors") if answer[0] == "GET"]
    assert answers and all(range_ for _, range_, _ in answers)
    assert sum(size for *_, size in answers) < 128 * 1024  # huggingface_hub asks for the first 100 kB


def test_headers_of_a_model_in_parts(hub):
    source = hub.folders[ID]
    (source / "model.safetensors").unlink()
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name, file in parts.items():
        save_file({name: torch.zeros(2, 3, dtype=torch.bfloat16)}, source / file)
    (source / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": parts}))
    assert headers_of(ID) == dict.fromkeys("ab", Tensor("BF16", (2, 3)))
    assert (folder_of(ID) / "model.safetensors.index.json").exists()


def test_headers_that_cannot_be_had(hub):
    weights = hub.folders[ID] / "model.safetensors"
    weights.write_bytes(b"\x05\0\0\0\0\0\0\0{....")
    with pytest.raises(CheckpointError, match=r"org/model holds a broken safetensors file: .*model\.safetensors"):
        headers_of(ID)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"org/model holds no model\.safetensors"):
        headers_of(ID)


def test_the_cache_answers_when_the_hub_is_gone(hub, monkeypatch):
    folder = folder_of(ID)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert folder_of(ID) == folder
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked = len(hub.requests)
    assert folder_of(ID) == folder and folder_of(f"{ID}@{COMMIT}") == folder
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE is set"):
        headers_of(ID)
    assert len(hub.requests) == asked


def test_offline_without_a_copy(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="does not hold it whole while HF_HUB_OFFLINE is set: unset it"):
        folder_of(ID)
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(FileNotFoundError, match=r"org/model is not a local folder, and http://127.0.0.1:9 cannot be"):
        folder_of(ID)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("org/unknown", "no such repository: check the spelling; if it is private, log in with `hf auth login`"),
        (f"{ID}@v9", "no such revision"),
        ("org/gated", "is gated: accept its terms on its page, then log in with `hf auth login`"),
        ("org/secret", r"refused access \(HTTP 403\): log in with `hf auth login`"),
        ("org/broken", r"cannot be reached \(HTTP 500\)"),
        ("org/no-model", r"org/no-model holds no config\.json"),
    ],
)
def test_what_the_hub_does_not_give_is_one_sentence(hub, tmp_path, name, sentence):
    for id_ in ("org/gated", "org/secret", "org/broken"):
        hub.add(id_, hub.folders[ID])
    hub.errors["org/gated"] = (403, "GatedRepo")
    hub.hidden |= {"org/secret": 403, "org/broken": 500}
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("data")
    hub.add("org/no-model", tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=sentence) as raised:
        folder_of(name)
    assert str(raised.value).startswith(name) and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./org/model", "../model", "a/b/c", "~/model", Path("org/model"), "org/model@", ""]
)
def test_what_can_only_be_a_path_is_not_asked_for(hub, name):
    with pytest.raises(FileNotFoundError, match=r"is not a local folder$"):
        folder_of(name)
    assert hub.requests == []


def test_names_are_split_at_the_revision():
    assert split_name("org/model") == ("org/model", None)
    assert split_name("org/model@refs/pr/1") == ("org/model", "refs/pr/1")
    assert split_name("gpt2@main") == ("gpt2", "main")


def test_importing_it_imports_nothing_heavy():
    code = """
import sys
import hf_specgen.checkpoints.hub
assert not {"torch", "transformers", "huggingface_hub"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)
