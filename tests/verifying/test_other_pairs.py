"""Sampled tokens of other pairs: a draft with ids, logits or a context of its own, other architectures."""

import json

import pytest
import torch
import transformers
from bench_toys import save_pair
from toys import noisy, prompts, tiny, toy_tokenizer
from verifying_toys import PROMPTS, pair

import hf_specgen


def test_a_draft_with_ids_of_its_own(tmp_path):
    """Two of its tokens have changed places: mapped, and without a set of what it likes."""
    root = save_pair(tmp_path)
    file = root / "draft" / "tokenizer.json"
    data = json.loads(file.read_text())
    vocabulary = data["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    file.write_text(json.dumps(data))
    assert hf_specgen.check_pair(root / "target", root / "draft").verdict == "mappable"
    found = hf_specgen.verify(root / "target", root / "draft", prompts=PROMPTS, max_new_tokens=12, samples=96)
    assert found.lossless and found.drafted, str(found)
    assert {test.set for test in found.laws[0].tests} - {"copied"} == {"best", "rare", "low", "seen"}
    assert found.laws[0].disagreement is None and not found.laws[0].wrong_rules
    assert "the draft's law is not known (its ids are not the target's)" in str(found)


@pytest.mark.parametrize("rows", [60, 70])
def test_a_draft_with_another_number_of_logits(rows):
    target, draft = tiny(), noisy(tiny())
    draft.resize_token_embeddings(rows)
    found = hf_specgen.verify(target, draft, toy_tokenizer(), PROMPTS[:2], max_new_tokens=12, samples=64)
    assert found.lossless and found.laws[0].disagreement is not None, str(found)


def test_a_draft_with_a_shorter_context():
    draft = tiny(transformers.GPT2Config, max_position_embeddings=24)
    with pytest.warns(UserWarning, match="beyond the draft's context"):
        found = hf_specgen.verify(tiny(), draft, toy_tokenizer(), PROMPTS[:2], max_new_tokens=16, samples=32)
    assert found.lossless and found.laws[0].unread.startswith("its context of 24 tokens is shorter"), str(found)
    assert "nor what a wrong rule would move" in str(found)


FAMILIES = {
    "sliding": ("MistralConfig", {"sliding_window": 8}),
    "states": (
        "Lfm2Config",
        {"layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 3, "block_multiple_of": 8},
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_architectures(family):
    name, settings = FAMILIES[family]
    target = tiny(getattr(transformers, name), **settings)
    found = hf_specgen.verify(target, noisy(target), toy_tokenizer(), PROMPTS, max_new_tokens=16, samples=64)
    assert found.lossless and found.laws[0].accepted, str(found)


def test_models_and_generators_are_left_as_they_were():
    target, draft = pair("random")
    before = target.generation_config, draft.generation_config
    torch.manual_seed(1)
    state = torch.get_rng_state()
    hf_specgen.verify(target, draft, toy_tokenizer(), PROMPTS[:1], max_new_tokens=8, samples=32)
    assert (target.generation_config, draft.generation_config) == before
    assert torch.equal(torch.get_rng_state(), state) and "generate" not in vars(target)
    assert target(**prompts([4])).logits.isfinite().all()
