"""Which draft for a target: the table of published families, a model's place in it, and folders that are checked."""

import json
import re

import pytest
import torch
import transformers
from pairing_toys import WORDS, make_model, make_tokenizer
from safetensors.torch import save_file
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from hf_specgen.pairing import PairReport
from hf_specgen.pairing.families import families, place_of
from hf_specgen.pairing.recommend import recommend

FAMILIES = [pytest.param(family, id=family.name) for family in families()]
IDS = [id_ for family in families() for member in family.members for id_ in member.ids.values()]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


def write_model(path, tokens, **config):
    """A folder of a config and a tokenizer: `tokens` are ids with their strings."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(config))
    vocab = {token: id_ for id_, token in tokens.items()}
    (path / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}}))
    return path


LLAMA = {"architectures": ["LlamaForCausalLM"], "vocab_size": 128256}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "vocab_size": 151936}


def test_ids_are_well_formed_and_listed_once():
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", id_) for id_ in IDS)
    assert len({id_.lower() for id_ in IDS}) == len(IDS) > 200
    assert len({family.name for family in families()}) == len(families())


@pytest.mark.parametrize("family", FAMILIES)
def test_family_is_consistent(family):
    members = family.members
    assert [member.billions for member in members] == sorted(member.billions for member in members)
    assert all(0 < member.active_billions <= member.billions for member in members)
    assert all(member.ids and member.tokenizer in family.tokenizers for member in members)
    assert {member.tokenizer for member in members} == family.tokenizers.keys()
    for member in members:
        tokenizer = family.tokenizers[member.tokenizer]
        if member.rows is not None:
            assert tokenizer.get("tokens", 0) <= member.rows
    for tokenizer in family.tokenizers.values():
        assert tokenizer.keys() <= {"class", "tokens", "marks"}
        assert all(int(id_) < max(member.rows or 0 for member in members) for id_ in tokenizer.get("marks", ()))


@pytest.mark.parametrize("family", FAMILIES)
def test_family_has_a_pair_or_says_why_not(family):
    active = [member.active_billions for member in family.members]
    assert (max(active) / min(active) >= 4) == (family.no_pair is None)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_of_classes_exist(family):
    known = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.values()}
    assert set(family.architectures) <= known
    named = {facts["class"] for facts in family.tokenizers.values() if "class" in facts}
    assert all(hasattr(transformers, name) for name in named)


@pytest.mark.parametrize("id_", IDS)
def test_every_published_id_finds_its_place_without_the_hub(id_):
    place = place_of(id_.lower() + "@main")
    assert place.member.ids[place.variant] == id_
    assert all(draft.ratio <= 0.5 and draft.usable and draft.draft != id_ for draft in recommend(id_))


def drafts_of(target):
    return [draft.draft.split("/")[-1] for draft in recommend(target)]


def test_drafts_of_an_id_come_smallest_first_and_as_the_targets_variant():
    assert drafts_of("Qwen/Qwen2.5-7B-Instruct")[:2] == ["Qwen2.5-0.5B-Instruct", "Qwen2.5-1.5B-Instruct"]
    assert drafts_of("Qwen/Qwen2.5-7B")[:2] == ["Qwen2.5-0.5B", "Qwen2.5-1.5B"]
    first = recommend("Qwen/Qwen2.5-7B-Instruct")[0]
    assert first.same_tokenizer and first.parameters == 494e6 and first.ratio == pytest.approx(0.494 / 7.62)
    assert first.reason == "same tokenizer; 151936 rows against 152064" and first.verdict is None


def test_drafts_of_the_line_come_first():
    assert drafts_of("Qwen/Qwen2.5-Coder-7B") == ["Qwen2.5-Coder-0.5B", "Qwen2.5-Coder-1.5B", "Qwen2.5-Coder-3B"]
    math = recommend("Qwen/Qwen2.5-Math-7B")
    assert [draft.draft for draft in math[:2]] == ["Qwen/Qwen2.5-Math-1.5B", "Qwen/Qwen2.5-0.5B"]
    assert "of another line (general)" in math[1].reason


def test_another_tokenizer_is_told_and_listed_only_if_smaller():
    distill = recommend("deepseek-ai/DeepSeek-R1-Distill-Llama-70B")
    assert [draft.same_tokenizer for draft in distill] == [True, False, False]
    assert distill[1].draft == "meta-llama/Llama-3.2-1B-Instruct" and "some tokens differ" in distill[1].reason
    assert drafts_of("meta-llama/Llama-3.3-70B-Instruct")[0] == "Llama-3.2-1B-Instruct"
    assert len(recommend("meta-llama/Llama-3.3-70B-Instruct")) == 3  # Llama 3's 8B has other special tokens


def test_experts_count_by_what_is_active_and_by_what_lies_in_memory():
    assert recommend("openai/gpt-oss-120b") == []
    large = {draft.draft: draft for draft in recommend("Qwen/Qwen3-235B-A22B")}
    assert large["Qwen/Qwen3-30B-A3B"].ratio == pytest.approx(3.3 / 22)
    assert "30.5B in memory" in large["Qwen/Qwen3-30B-A3B"].reason
    assert "Qwen/Qwen3-30B-A3B" not in [draft.draft for draft in recommend("Qwen/Qwen3-32B")]


@pytest.mark.parametrize(
    ("tokens", "tokenizer"),
    [
        ({128000: "<|begin_of_text|>", 128004: "<|finetune_right_pad_id|>", 128008: "<|eom_id|>"}, None),
        (
            {128000: "<|begin_of_text|>", 128004: "<|reserved_special_token_2|>", 128009: "<|eot_id|>"},
            "llama-3",
        ),
        ({128000: "<｜begin▁of▁sentence｜>", 128001: "<｜end▁of▁sentence｜>"}, "deepseek-r1-llama"),
    ],
)
def test_a_folder_without_a_name_is_told_by_its_tokens(tmp_path, tokens, tokenizer):
    place = place_of(write_model(tmp_path / "mine", tokens, **LLAMA))
    assert (place and place.tokenizer) == tokenizer
    if place:
        assert place.family.name == "Llama 3" and place.member is None and "128256 rows" in place.how


def test_the_tokenizer_with_most_marks_wins(tmp_path):
    tokens = {151643: "<|endoftext|>", 151644: "<|im_start|>"}
    assert place_of(write_model(tmp_path / "a", tokens, **QWEN)).tokenizer == "qwen2"
    assert place_of(write_model(tmp_path / "b", tokens | {151657: "<tool_call>"}, **QWEN)).tokenizer == "qwen2.5"


def test_size_of_an_unnamed_target_comes_from_its_header(tmp_path):
    folder = write_model(tmp_path / "mine", {151643: "<|endoftext|>", 151644: "<|im_start|>"}, **QWEN)
    assert recommend(folder)[0].ratio is None  # no weights: not known
    save_file({"w": torch.ones(1)}, folder / "model.safetensors")
    assert recommend(folder) == []  # one parameter: no draft is small enough


@pytest.mark.parametrize(
    ("name", "config", "id_"),
    [
        ("Qwen2.5-7B-Instruct-AWQ", {"vocab_size": 152064}, "Qwen/Qwen2.5-7B-Instruct"),
        ("x", {"_name_or_path": "Qwen/Qwen2.5-7B"}, "Qwen/Qwen2.5-7B"),
        (
            "x",
            {"vocab_size": 151936, "_name_or_path": "Qwen2.5 Coder 0.5B Instruct AWQ"},
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
        ),
        ("models--Qwen--Qwen2.5-3B/snapshots/" + "0" * 40, {}, "Qwen/Qwen2.5-3B"),
    ],
)
def test_a_folder_is_told_by_the_names_in_it(tmp_path, name, config, id_):
    place = place_of(write_model(tmp_path / name, {}, architectures=["Qwen2ForCausalLM"], **config))
    assert place.member.ids[place.variant] == id_ and place.how


def test_a_fine_tune_is_told_by_its_card_and_an_adapter_by_its_base(tmp_path):
    tuned = write_model(tmp_path / "mine", {}, **QWEN)
    (tuned / "README.md").write_text("---\nbase_model:\n- Qwen/Qwen2.5-1.5B\n---\n# Mine\n")
    assert place_of(tuned).member.billions == 1.54
    (tmp_path / "lora").mkdir()
    adapter = {"base_model_name_or_path": "meta-llama/Llama-3.1-8B"}
    (tmp_path / "lora" / "adapter_config.json").write_text(json.dumps(adapter))
    assert place_of(tmp_path / "lora").family.name == "Llama 3"


def test_a_name_that_the_config_contradicts_is_not_believed(tmp_path):
    phi = {"architectures": ["Phi3ForCausalLM"], "vocab_size": 200064}
    assert place_of(write_model(tmp_path / "phi-4-mini-instruct", {}, **phi)) is None
    assert place_of(write_model(tmp_path / "x", {}, **LLAMA, _name_or_path="Qwen/Qwen2.5-7B")).family.name == "Llama 3"


def test_what_cannot_be_told_raises(tmp_path):
    toy = write_model(tmp_path / "toy", {0: "a"}, architectures=["LlamaForCausalLM"], vocab_size=7)
    with pytest.raises(LookupError, match=r"toy belongs to no family .*--among"):
        recommend(toy)
    with pytest.raises(FileNotFoundError, match="nobody/nothing is not a local folder, and the local cache"):
        recommend("nobody/nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        recommend(tmp_path / "empty")


def test_folders_are_checked_and_ordered(tmp_path, folder):
    target = folder("target", tokenizer=make_tokenizer())
    folder("same", tokenizer=make_tokenizer())
    folder("padded", make_model(72), tokenizer=make_tokenizer())
    write_model(tmp_path / "head", {}, draft_vocab_size=8)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{")
    (tmp_path / "notes").mkdir()
    drafts = recommend(target, [tmp_path, tmp_path / "same"])  # the parent holds the target and, again, "same"
    assert {draft.draft for draft in drafts} == {str(tmp_path / n) for n in ("same", "padded", "head", "broken")}
    found = {draft.draft.rsplit("/", 1)[-1]: draft for draft in drafts}
    assert (found["same"].verdict, found["padded"].verdict) == ("exact", "exact-with-padding")
    assert found["head"].verdict == "refused" and "EAGLE-3" in found["head"].reason
    assert found["broken"].verdict is None and "not valid JSON" in found["broken"].reason
    assert [draft.draft.rsplit("/", 1)[-1] for draft in drafts][-2:] == ["head", "broken"]


def test_order_is_usable_then_verdict_then_cost(tmp_path, monkeypatch):
    """(verdict, parameter ratio, cost ratio) of each folder's report."""
    facts = {
        "exact-dear": ("exact", 0.1, 0.3),
        "exact-cheap": ("exact", 0.3, 0.2),
        "exact-larger": ("exact", 2.0, 1.5),
        "exact-unknown": ("exact", None, None),
        "mapped": ("mappable", 0.01, None),
        "padded": ("exact-with-padding", 0.4, None),
        "text": ("cross-vocabulary", 0.01, 0.01),
        "useless": ("refused", 0.01, 0.01),
    }
    for name in ("target", *facts):
        write_model(tmp_path / name, {})

    def check(target, draft):
        verdict, parameters, cost = facts[draft.name]
        reasons = ("It is refused.",) if verdict == "refused" else ()
        return PairReport(verdict, reasons, "", "", 1, 1, (), (), parameter_ratio=parameters, cost_ratio=cost)

    monkeypatch.setattr("hf_specgen.pairing.check_pair", check)
    drafts = recommend(tmp_path / "target", [tmp_path])
    assert [draft.draft.rsplit("/", 1)[-1] for draft in drafts] == [
        "exact-cheap",
        "exact-dear",
        "exact-unknown",
        "padded",
        "mapped",
        "text",
        "exact-larger",
        "useless",
    ]
    assert [draft.usable for draft in drafts] == [True] * 6 + [False] * 2
    assert (drafts[0].ratio, drafts[3].ratio) == (0.2, 0.4)
    assert drafts[0].reason == "Every id means the same to both." and "no less per token" in drafts[6].reason


def test_among_what_is_no_model(tmp_path, folder):
    target = folder("target", tokenizer=make_tokenizer(WORDS))
    (tmp_path / "empty").mkdir()
    for place, error in (("gone", "is not a local folder"), ("empty", "holds no model")):
        with pytest.raises(FileNotFoundError, match=error):
            recommend(target, [tmp_path / place])
    assert recommend(target, [target]) == []


@pytest.mark.real
@pytest.mark.parametrize(("name", "tokenizer"), [("qwen2.5-coder-0.5b", "qwen2.5"), ("smollm2-135m", "smollm2")])
def test_real_tokens_bear_the_marks(real_models, tmp_path, name, tokenizer):
    (tmp_path / "mine").mkdir()
    config = json.loads((real_models / name / "config.json").read_text())
    del config["_model_name_or_path"]
    (tmp_path / "mine" / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine" / "tokenizer.json").symlink_to(real_models / name / "tokenizer.json")
    assert place_of(tmp_path / "mine").tokenizer == tokenizer


@pytest.mark.real
def test_real_folders(real_models):
    target = real_models / "qwen2.5-coder-1.5b"
    assert drafts_of(target)[0] == "Qwen2.5-Coder-0.5B-Instruct"
    wanted = [real_models / "smollm2-135m", real_models / "qwen2.5-coder-0.5b"]
    drafts = recommend(target, wanted)
    assert [draft.draft for draft in drafts] == [str(folder) for folder in wanted[::-1]]
    assert [draft.verdict for draft in drafts] == ["exact", "cross-vocabulary"]
