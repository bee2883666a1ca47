"""The sides of a bench or a verification: what they are told apart by, and what loading leaves as it was."""

import shutil

import pytest
import torch
from fake_hub import COMMIT
from toys import tiny, toy_tokenizer
from transformers import AutoModelForCausalLM

import hf_specgen
from hf_specgen.benchmarking import run_bench
from hf_specgen.benchmarking.loading import CHECKPOINT, Side, load
from hf_specgen.benchmarking.store import LOADED_DTYPE, read_manifest


def loaded(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def edited(source, folder):
    """A copy whose config.json is not, byte by byte, what transformers would write."""
    shutil.copytree(source, folder)
    (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
    return folder


def test_a_model_has_the_config_of_the_folder_that_it_was_loaded_from(pair, tmp_path):
    folder = edited(pair / "target", tmp_path / "target")
    named, model = Side("target", folder, "auto"), Side("target", loaded(folder), "auto")
    assert named.fingerprint()["config"] == model.fingerprint()["config"]
    assert named.fingerprint()["name"] == model.fingerprint()["name"] == "target", "no path of this machine"
    assert len(named.fingerprint()[CHECKPOINT]) == 16
    assert CHECKPOINT not in model.fingerprint(), "its weights may have changed since"
    made = Side("target", tiny(), "auto").fingerprint()
    assert made["name"] == "" and made["config"] != named.fingerprint()["config"]


def test_a_model_from_the_hub_has_its_repositorys_config(pair, tmp_path, monkeypatch):
    """As it lies in huggingface_hub's cache, at the commit that was loaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--org--small" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    folder = edited(pair / "target", tmp_path / "target")
    (snapshot / "config.json").write_bytes((folder / "config.json").read_bytes())
    model = loaded(folder)
    model.config.name_or_path, model.config._commit_hash = "org/small", COMMIT
    found = Side("target", model, "auto").fingerprint()
    assert found["config"] == Side("target", folder, "auto").fingerprint()["config"]
    assert found["name"] == "org/small"
    model.config._commit_hash = COMMIT[::-1]
    assert Side("target", model, "auto").fingerprint()["config"] != found["config"]


def test_a_bench_says_what_auto_came_to(pair, tmp_path):
    settings = {"against": ("plain",), "tasks": ("one",), "per_task": 1, "repeats": 1, "max_new_tokens": 2}
    for _ in range(2):  # the second goes on from what the first has left
        run_bench(pair / "target", pair / "draft", prompts=pair / "prompts.jsonl", out=tmp_path / "out", **settings)
        settings |= {"repeats": 2}
    manifest = read_manifest(tmp_path / "out")
    assert [manifest[role][LOADED_DTYPE] for role in ("target", "draft")] == ["float32", "float32"]
    assert manifest["target"]["dtype"] == "auto" and CHECKPOINT in manifest["draft"]


@pytest.mark.parametrize("enabled", [False, True], ids=["plain", "enabled"])
def test_a_target_that_was_given_stays_as_it_was(pair, enabled):
    """`load_pair`, which loads the draft, enables its target."""
    target = loaded(pair / "target")
    if enabled:
        hf_specgen.enable(target)
    before = vars(target).get("generate")
    sides = Side("target", target, "auto"), Side("draft", pair / "draft", "auto")
    models = load(*sides, toy_tokenizer(), None)
    assert models.target is target and vars(target).get("generate") is before


def test_verify_and_bench_take_a_loaded_target_and_a_named_draft(pair):
    target = loaded(pair / "target")
    found = hf_specgen.verify(
        target, pair / "draft", prompts=["the cab sing"], max_new_tokens=6, temperature=0, limit=1
    )
    assert found.lossless and "generate" not in vars(target)
    assert (found.target["name"], found.draft["name"]) == ("target", "draft")
    settings = {"against": ("plain", "ours"), "tasks": ("one",), "per_task": 1, "repeats": 1, "max_new_tokens": 4}
    records = run_bench(target, pair / "draft", prompts=pair / "prompts.jsonl", **settings)
    assert len(records) == 2 and "generate" not in vars(target)
