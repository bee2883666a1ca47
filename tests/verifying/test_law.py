"""Sampled tokens: wrong rules are seen, legal ones are not blamed, whatever the draft."""

import json

import pytest
import torch
import transformers
from bench_toys import save_pair
from toys import noisy, prompts, text, tiny, toy_tokenizer
from verifying_toys import PROMPTS, WRONG_LAWS, one_hot, pair, verified

import hf_specgen
from hf_specgen.benchmarking.calls import Models, settings_of
from hf_specgen.verifiers import block
from hf_specgen.verifiers.rejection import RejectionVerifier
from hf_specgen.verifying import contexts, law
from hf_specgen.verifying.certificate import FAULTY
from hf_specgen.verifying.reading import decode
from hf_specgen.verifying.texts import call_of


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    """Toys take as long for many rows as for few."""
    monkeypatch.setattr(law, "ROWS", 96)
    monkeypatch.setattr(law, "READ", 96)


ROWS = [text(5), text(8, 1)]
ALL = ("rejection", "block", "coupled")


@pytest.fixture
def models():
    models = Models(*pair("random"), toy_tokenizer())
    with torch.no_grad(), settings_of(models.target), settings_of(models.draft):
        yield models


def places(models, temperature=1.0):
    answers = [decode(models, call_of(models, [row], 16)).taken for row in ROWS]
    pairs = enumerate(zip(ROWS, answers, strict=True))
    return answers, [contexts.choose(models, i, row, answer, temperature, 3) for i, (row, answer) in pairs]


# -- wrong rules and legal ones ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", WRONG_LAWS)
def test_a_wrong_rule_is_a_fault(wrong, monkeypatch):
    place, name, rule = WRONG_LAWS[wrong]
    monkeypatch.setattr(place, name, rule)
    options = {"samples": 384, "max_new_tokens": 10}
    if "bonus" in wrong:  # which takes a draft that is accepted, and comes at the last position only
        options |= {"draft": "noisy", "samples": 768, "max_new_tokens": 16}
    found = verified(**{"draft": "random"} | options)
    assert found.verdict == FAULTY and found.laws[0].p_value < law.LEVEL
    assert found.faults[0].startswith("rejection: ")
    assert all(check.verdict == "same" for check in found.texts)  # greedy text knows no acceptance rule


def test_a_wrong_rule_is_a_fault_in_bfloat16(monkeypatch):
    place, name, rule = WRONG_LAWS["p in place of the residual"]
    monkeypatch.setattr(place, name, rule)
    monkeypatch.setattr(block, name, rule)
    found = verified("contrary", torch.bfloat16, samples=384, max_new_tokens=8, strategies=("rejection", "block"))
    assert [law_.passed for law_ in found.laws] == [False, False], str(found)


@pytest.mark.parametrize(
    "draft, dtype", [("close", torch.float32), ("contrary", torch.float32), ("random", torch.bfloat16)], ids=str
)
def test_no_draft_is_blamed(draft, dtype):
    found = verified(draft, dtype, strategies=ALL, samples=96, max_new_tokens=10)
    assert [law_.strategy for law_ in found.laws] == [*ALL]
    assert found.lossless, str(found)
    assert all(law_.drafted and law_.rejections and law_.bonuses for law_ in found.laws)


def test_another_legal_rule_is_not_blamed(monkeypatch):
    monkeypatch.setattr(RejectionVerifier, "accept", one_hot)
    found = verified("random", samples=192, max_new_tokens=10)
    assert found.lossless and found.laws[0].accepted < 0.1 * found.laws[0].drafted


def test_p_values_are_uniform_over_seeds(models):
    _, chosen = places(models)
    settings = {"temperature": 1.0, "samples": 32, "k": 3, "noise": 1e-6}
    laws = [law.check_law(models, chosen, ALL[seed % 3], **settings, seed=seed) for seed in range(12)]
    p = torch.tensor([test.p_value for law_ in laws for test in law_.tests])
    assert len(p) == 12 * 24
    for level in (0.05, 0.25, 0.5):  # tests of the same draws go together: a wide margin
        assert (p < level).double().mean().item() == pytest.approx(level, abs=4 * (level / len(p)) ** 0.5)
    assert all(law_.passed for law_ in laws)


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_contexts_are_where_a_wrong_residual_would_move_most(models):
    answers, chosen = places(models)
    for row, answer, context in zip(ROWS, answers, chosen, strict=True):
        apart, liked = [], []
        for at in range(len(answer)):
            ids = torch.tensor([[*row, *answer[:at]]])
            p, q = (model(ids).logits[0, -1].softmax(-1) for model in (models.target, models.draft))
            apart.append(((p - q).abs().sum() / 2).item())
            liked.append(p[q > p].sum().item())
        moved = [d * mass for d, mass in zip(apart, liked, strict=True)]
        worth = [sum(moved[after + 1 : after + 4]) for after in range(len(answer) - 3)]
        assert context.after == worth.index(max(worth)) and context.ids == (*row, *answer[: context.after])
        assert context.disagreement == pytest.approx(sum(apart[context.after + 1 :][:3]) / 3, abs=1e-5)


def test_an_answer_of_one_token_has_a_context(models):
    assert contexts.choose(models, 0, ROWS[0], [5], 1.0, 3).after == 0


def test_continuations_are_read_as_one_text(models):
    texts = [(5, 9, 11), (5, 9), (8,)]
    found = law.continuations(models.target, ROWS[0], texts)
    assert found.shape == (3, 3, 64)
    for row, new in zip(found, texts, strict=True):
        wanted = models.target(torch.tensor([[*ROWS[0], *new]])).logits[0, len(ROWS[0]) - 1 : -1]
        torch.testing.assert_close(row[: len(new)], wanted, rtol=1e-4, atol=1e-5)


def test_a_row_that_ends_is_tested_up_to_its_eos(models, monkeypatch):
    _, chosen = places(models)
    ids = torch.tensor([chosen[0].ids])
    likely = int(models.target(ids).logits[0, -1].argmax())
    monkeypatch.setattr(models.target.generation_config, "eos_token_id", likely)
    found = law.check_law(models, chosen, "rejection", temperature=1.0, samples=96, k=3, noise=1e-6)
    counts = [test.draws for test in found.tests if test.set == "draft" and test.position is not None]
    assert counts[0] == 96 > counts[1] >= counts[-1] > 0
    assert found.passed


def test_equal_seeds_draw_equal_texts_and_others_do_not(models):
    _, chosen = places(models)
    drawn = [law.draw(models, chosen, "rejection", 1.0, 40, 3, seed)[0] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert [len(texts) for texts in drawn[0]] == [20, 20]


def test_more_samples_see_smaller_errors_and_a_draft_too_close_to_tell_is_said():
    few, many = (verified("close", samples=samples, max_new_tokens=10) for samples in (64, 256))
    assert many.laws[0].visible_shift == pytest.approx(few.laws[0].visible_shift / 2, rel=0.15)
    assert few.laws[0].disagreement < few.laws[0].visible_shift
    assert "too close for a wrong rule to show" in str(few)
    assert "too close" not in str(verified("contrary", samples=192, max_new_tokens=8))


def test_rounding_counts_in_what_can_be_seen(models):
    _, chosen = places(models)
    settings = {"temperature": 1.0, "samples": 64, "k": 3}
    exact, rounded = (law.check_law(models, chosen, "rejection", **settings, noise=x) for x in (0.0, 0.05))
    assert 0.001 < rounded.visible_shift - exact.visible_shift < 0.1


# -- other pairs -------------------------------------------------------------------------------------------------------


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
    assert {test.set for test in found.laws[0].tests} == {"best", "rare", "low"}
    assert found.laws[0].disagreement is None


@pytest.mark.parametrize("rows", [60, 70])
def test_a_draft_with_another_number_of_logits(rows):
    target, draft = tiny(), noisy(tiny())
    draft.resize_token_embeddings(rows)
    found = hf_specgen.verify(target, draft, toy_tokenizer(), PROMPTS[:2], max_new_tokens=12, samples=64)
    assert found.lossless and found.laws[0].disagreement is not None, str(found)


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
