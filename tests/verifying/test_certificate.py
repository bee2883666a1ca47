"""The certificate: what it holds, and that it is written whole or not at all."""

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest
import torch
from html_toys import Reader
from toys import tiny, toy_tokenizer
from verifying_toys import PROMPTS, verified

import hf_specgen
from hf_specgen import SpecUnsupportedError
from hf_specgen.cards.losslessness import losslessness
from hf_specgen.verifying.certificate import verdict_of


@pytest.fixture(scope="module")
def found():
    return verified("random", torch.bfloat16, strategies=("rejection", "block"), samples=64)


def test_it_holds_what_it_rests_on(found, tmp_path):
    path = found.save(tmp_path / "new" / "certificate.json")
    told = json.loads(path.read_text())
    assert told == json.loads(json.dumps(found.to_dict()))
    assert (told["format"], told["verdict"], told["lossless"], told["faults"]) == (2, found.verdict, True, [])
    noise, flips = told["greedy"]["noise"], told["greedy"]["flips"]
    assert all(noise[how]["tolerance"] == 2 * noise[how]["largest"] > 0 for how in ("alone", "batch"))
    assert 0.5 <= noise["alone"]["decided"] <= 1 and noise["alone"]["positions"] > flips["ways"]["alone"]["tokens"]
    assert flips["passed"] and 0 < flips["visible"] < 1 and flips["p_value"] >= flips["level"]
    assert len(told["greedy"]["texts"]) == 5 and told["greedy"]["drafted"] > 0
    assert [law["strategy"] for law in told["sampling"]] == ["rejection", "block"]
    sampled = told["sampling"][0]
    assert sampled["passed"] and sampled["level"] == 1e-4 / 2 and sampled["power"] == 0.9
    assert all(0 < shift < 1 for shift in sampled["visible_shifts"].values()) and sampled["draws"] == [24, 8, 24, 8]
    assert [rule["would_show"] for rule in sampled["wrong_rules"]] and len(sampled["tests"]) > 24
    assert [way["source"] for way in told["settings"]["sampled"]["ways"]] == ["draft", "hybrid", "draft"]
    assert told["target"]["dtype"] == "bfloat16" and len(told["target"]["weights"]) == 16
    assert told["machine"]["versions"]["torch"] and told["date"].endswith("+00:00")
    digest = hashlib.sha256(json.dumps(PROMPTS[:2]).encode()).hexdigest()
    tokens = [len(toy_tokenizer()(text)["input_ids"]) for text in PROMPTS[:2]]
    assert told["prompts"] == {"count": 2, "sha256": digest[:16], "tokens": tokens}
    assert told["settings"]["samples"] == 64 and told["command"] is None
    assert told["settings"]["greedy"]["batch"] == {
        "spec_source": "hybrid",
        "num_assistant_tokens_schedule": "constant",
    }
    assert (told["target"]["attention"], told["target"]["dtype asked for"]) == ("sdpa", "bfloat16")
    assert not any(text in path.read_text() for text in PROMPTS)
    assert [file.name for file in path.parent.iterdir()] == ["certificate.json"]


def test_as_text(found):
    lines = str(found).splitlines()
    assert lines[0] == f"verdict   {found.verdict}"
    assert any(line.startswith("noise     alone: plain decoding's own scores move by up to 0.0") for line in lines)
    assert "lengths   prompts of 7 to 12 tokens and up to 16 new ones; caches that grow" in str(found)
    assert "a rule that moves" in str(found) and "a lossless rule is blamed about once in 20,000 times" in str(found)
    assert lines[-1].startswith("where     bfloat16 on ")


def test_in_a_notebook(found):
    text = Reader(found._repr_html_()).text
    assert text.startswith(found.verdict) and f"prompt 0, alone {found.texts[0].verdict} 16" in text
    assert all(f"{law.strategy} 1 64" in text for law in found.laws) and "passed" in text
    assert "have been seen: " in text
    greedy = dataclasses.replace(found, laws=[])
    assert "not tested (temperature 0)" in Reader(greedy._repr_html_()).text
    wrong = dataclasses.replace(found.texts[0], verdict="fault", why="1.3 < 2")
    faulty = dataclasses.replace(found, texts=[wrong])
    assert Reader(faulty._repr_html_()).text.startswith("FAULT") and "1.3 < 2" in Reader(faulty._repr_html_()).text


@pytest.mark.parametrize(
    "texts, tests, verdict",
    [
        (["same", "same"], [True, True], "LOSSLESS"),
        (["same", "tie"], [True], "LOSSLESS UP TO ROUNDING"),
        (["fault", "tie"], [True], "FAULT"),
        (["same", "same"], [True, False], "FAULT"),
        (["tie"], [False], "FAULT"),
    ],
)
def test_the_verdict_follows_from_texts_and_tests(texts, tests, verdict):
    assert verdict_of(texts, tests) == verdict


def test_a_card_says_how_it_was_sampled_and_what_would_have_been_seen(found):
    text = losslessness(found.to_dict(), None).text
    assert "in these ways: draft; hybrid, top-p 0.9, repetition penalty 1.2; draft, top-k 8. Other lengths" in text
    assert "- rejection: would have been seen: everything accepted (" in text
    unread = dataclasses.replace(found.laws[0], unread="its ids are not the target's", wrong_rules=[])
    text = losslessness(dataclasses.replace(found, laws=[unread]).to_dict(), None).text
    assert "- rejection: the draft's law is not known (its ids are not the target's)" in text


def test_a_full_disk_leaves_the_old_file_and_nothing_half_written(found, tmp_path, monkeypatch):
    (tmp_path / "certificate.json").write_text("before")

    def full(self, text, **_):
        with self.open("w") as file:
            file.write(text[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        found.save(tmp_path / "certificate.json")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("certificate.json", "before")]


@pytest.mark.parametrize(
    "options, said",
    [
        ({"samples": 0}, "samples=0: pass a whole number of at least 1"),
        ({"max_new_tokens": 2}, "max_new_tokens=2"),
        ({"limit": True}, "limit=True"),
        ({"temperature": -1}, "temperature=-1"),
        ({"strategies": ("typical",)}, "choose among rejection, block, coupled"),
        ({"strategies": ()}, "choose among"),
        ({"prompts": []}, "There are no prompts"),
        ({"prompts": [5]}, "A prompt is 5"),
        ({"max_new_tokens": 600}, "do not fit into the target's 512 positions"),
    ],
)
def test_wrong_values_are_told_before_anything_is_decoded(options, said, monkeypatch):
    monkeypatch.setattr("hf_specgen.verifying.verification.load", None)
    with pytest.raises(ValueError, match=said):
        verified(**options)


def test_nothing_drafted_is_nothing_verified():
    target = tiny()
    ends = hf_specgen.verify(target, tiny(seed=9), toy_tokenizer(), PROMPTS[:1], max_new_tokens=8, temperature=0)
    assert ends.drafted
    first = target(toy_tokenizer()(PROMPTS[0], return_tensors="pt")["input_ids"]).logits[0, -1].argmax()
    target.generation_config.eos_token_id = int(first)  # every answer ends at once
    with pytest.raises(SpecUnsupportedError, match="Nothing was drafted"):
        hf_specgen.verify(target, tiny(seed=9), toy_tokenizer(), PROMPTS[:1], max_new_tokens=8, temperature=0)


def test_a_token_that_the_target_excludes_can_be_written_down(found, tmp_path):
    worst = dataclasses.replace(found.texts[0], verdict="fault", gap=float("inf"), worst=float("inf"), why="…")
    path = dataclasses.replace(found, texts=[worst]).save(tmp_path / "certificate.json")
    told = json.loads(path.read_text())
    assert told["verdict"] == "FAULT" and told["greedy"]["texts"][0]["worst"] is None
