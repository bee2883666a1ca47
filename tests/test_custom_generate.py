"""The `custom_generate` repository in examples/: from a copied folder, on models that were never enabled."""

import copy
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard, ModelCardData
from stream_toys import Pieces, RowRecorder, byte_tokenizer
from test_side_effects import state
from toys import noisy, plain, prompts, seeded, spec, tiny, toy_tokenizer
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin

import hf_specgen
from hf_specgen import demo

REPOSITORY = Path(__file__).parent.parent / "examples" / "custom_generate"
NEW = 14


@pytest.fixture(autouse=True)
def own_module_cache(monkeypatch, tmp_path):
    """transformers copies the code before it runs it: to here, not to the user's cache."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield
    for name in set(sys.modules) - known:
        if name.startswith("transformers_modules"):
            del sys.modules[name]


@pytest.fixture
def repository(tmp_path):
    return shutil.copytree(REPOSITORY, tmp_path / "speculation", ignore=shutil.ignore_patterns("__pycache__"))


@pytest.fixture
def pair():
    """Target and draft, never enabled; the test fails if either is not at its end what it was."""
    target = tiny()
    draft = noisy(target)
    show = {"output_hidden_states": True, "return_dict_in_generate": True, "max_new_tokens": 1}
    plain(target, **prompts([3]), **show)  # transformers' own hooks, which stay, are there from the first such call on
    before = [state(model) for model in (target, draft)]
    yield target, draft
    assert [state(model) for model in (target, draft)] == before


def custom(pair, repository, **options):
    """Five tokens a round: by itself, a draft as large as its target rests."""
    call = {"custom_generate": str(repository), "trust_remote_code": True, "assistant_model": pair[1]}
    call |= {"num_assistant_tokens": 5, "max_new_tokens": NEW, "do_sample": False}
    return pair[0].generate(**call | options)


# ---- decoding -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("options", [{}, {"spec_strategy": "block"}, {"spec_strategy": "coupled"}], ids=str)
@pytest.mark.parametrize("lengths", [[6], [7, 4, 9]], ids=["a prompt", "a batch"])
def test_the_ids_are_plains_and_a_draft_has_helped(pair, repository, options, lengths):
    batch = prompts(lengths)
    with hf_specgen.collect_stats() as stats:
        ids = custom(pair, repository, **batch, **options)
    assert ids.tolist() == plain(pair[0], **batch, max_new_tokens=NEW, do_sample=False).tolist()
    assert stats.accepted > 0 and stats.strategy == options.get("spec_strategy", "rejection")


OPTIONS = {
    "lengths": {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic"},
    "threshold": {"assistant_confidence_threshold": 0.4},
    "processors": {"repetition_penalty": 1.3, "logits_processor": [lambda ids, scores: scores * 0.9]},
    "criteria": {"stopping_criteria": [lambda ids, scores, **_: torch.full((len(ids),), ids.shape[1] >= 16)]},
    "stop strings": {"stop_strings": ["a", "in"], "tokenizer": toy_tokenizer()},
    "constraint": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(5 + row, 60, 2))},
    "config": {"generation_config": GenerationConfig(max_new_tokens=9, eos_token_id=7, pad_token_id=0)},
    "scores": {"output_scores": True, "output_logits": True, "output_hidden_states": True},
    "returned": {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
    "sampled": {"do_sample": True, "temperature": 1.5, "spec_strategy": "block"},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_argument_arrives_as_on_an_enabled_model(pair, repository, name):
    batch, options = prompts([7, 4]), OPTIONS[name]

    def more():
        seed = seeded() if name == "sampled" else {}
        config = {} if "generation_config" not in options else {"max_new_tokens": None, "do_sample": None}
        return {"return_dict_in_generate": True, "max_new_tokens": NEW, "do_sample": False} | config | seed | options

    got = custom(pair, repository, **batch, **more())
    other = [model.__class__(model.config).eval() for model in pair]
    for model, twin in zip(pair, other, strict=True):
        twin.load_state_dict(model.state_dict())
    again = more()
    want = spec(*other, again.pop("spec_strategy", "rejection"), **batch, **again)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert [row.trace for row in got.spec_stats.rows] == [row.trace for row in want.spec_stats.rows]
    assert got.draft_mask.tolist() == want.draft_mask.tolist()
    assert got.keys() == want.keys()


def test_streams_and_sessions(pair, repository):
    one, rows, session = Pieces(byte_tokenizer()), RowRecorder(), hf_specgen.SpecSession()
    first = custom(pair, repository, **prompts([6]), streamer=one, spec_session=session)
    assert one.text == byte_tokenizer().decode(first[0]) and one.ends == 1
    turn = {"input_ids": first, "attention_mask": torch.ones_like(first)}
    second = custom(pair, repository, **turn, spec_session=session, streamer=rows)
    assert second.tolist() == plain(pair[0], **turn, max_new_tokens=NEW, do_sample=False).tolist()
    assert rows.of(0)[1] == second[0, first.shape[1] :].tolist()


def test_positional_inputs_and_drafters_of_ones_own(pair, repository):
    from toys import Scripted

    ids = prompts([6])["input_ids"]
    want = plain(pair[0], inputs=ids, max_new_tokens=NEW, do_sample=False)
    draft = Scripted(want.tolist(), [[3, 0, 2]])
    options = {"custom_generate": str(repository), "trust_remote_code": True, "assistant_model": draft}
    options["num_assistant_tokens"] = 5
    assert pair[0].generate(ids, max_new_tokens=NEW, do_sample=False, **options).tolist() == want.tolist()
    assert draft.forwards > 1


def test_spec_strategy_none_decodes_plainly(pair, repository):
    with hf_specgen.collect_stats() as stats:
        ids = custom(pair, repository, **prompts([7, 4]), spec_strategy=None, assistant_model=None)
    assert ids.tolist() == plain(pair[0], **prompts([7, 4]), max_new_tokens=NEW, do_sample=False).tolist()
    assert stats.calls == 0


# ---- refusals -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "options, says",
    [
        ({"num_beams": 2}, "num_beams=2"),
        ({"assistant_model": None}, "needs a draft"),
        ({"assistant_model": "some/draft"}, "is a path"),
        ({"spec_strategy": "typical"}, "typical"),
        ({"stop_strings": ["x"]}, "tokenizer"),
        ({"streamer": Pieces(byte_tokenizer())}, "shows one row"),
        ({"use_cache": False}, "use_cache=False"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_refusals_come_through(pair, repository, options, says):
    with pytest.raises(hf_specgen.SpecUnsupportedError, match=says):
        custom(pair, repository, **prompts([7, 4]), **options)


def test_the_fallback_comes_through(pair, repository):
    with pytest.warns(UserWarning, match="num_beams=2"):
        ids = custom(pair, repository, **prompts([7, 4]), num_beams=2, spec_fallback="plain")
    want = plain(pair[0], **prompts([7, 4]), num_beams=2, max_new_tokens=NEW, do_sample=False)
    assert ids.tolist() == want.tolist()


def test_without_trust_transformers_refuses_to_run_it(pair, repository):
    with pytest.raises(ValueError, match="trust_remote_code"):
        custom(pair, repository, **prompts([6]), trust_remote_code=False)


def test_the_requirements_are_read(pair, repository):
    path = repository / "custom_generate" / "requirements.txt"
    assert path.read_text().split() == ["hf-specgen>=0.1.0"]
    path.write_text("hf-specgen>=999\n")
    with pytest.raises(ImportError, match=r"hf-specgen>=999 \(installed: "):
        custom(pair, repository, **prompts([6]))


# ---- beside enable() ----------------------------------------------------------------------------------
def test_beside_enable_for_all_models(pair, repository):
    hf_specgen.enable()
    try:
        ids = custom(pair, repository, **prompts([6]))
    finally:
        hf_specgen.disable()
    assert ids.tolist() == plain(pair[0], **prompts([6]), max_new_tokens=NEW, do_sample=False).tolist()
    assert GenerationMixin.generate.__name__ == "generate"


def test_a_model_repository_may_hold_it(pair, repository):
    """`from_pretrained(..., trust_remote_code=True)` binds it as that model's `generate`."""
    copy.deepcopy(pair[0]).save_pretrained(repository)
    model = AutoModelForCausalLM.from_pretrained(repository, trust_remote_code=True).eval()
    with hf_specgen.collect_stats() as stats:
        ids = model.generate(
            **prompts([6]), max_new_tokens=NEW, do_sample=False, assistant_model=pair[1], num_assistant_tokens=5
        )
    assert ids.tolist() == plain(pair[0], **prompts([6]), max_new_tokens=NEW, do_sample=False).tolist()
    assert stats.accepted > 0
    own = vars(model)["generate"]
    hf_specgen.enable(model, assistant_model=pair[1], spec_strategy="block")
    hf_specgen.enable(model)
    assert vars(hf_specgen.disable(model))["generate"] is own, "disable puts the repository's own back"


# ---- the card -----------------------------------------------------------------------------------------
def test_the_card_is_one_that_the_hub_understands():
    card = ModelCard.load(REPOSITORY / "README.md")
    data = card.data
    assert isinstance(data, ModelCardData) and data.library_name == "transformers" and data.license == "apache-2.0"
    assert "custom_generate" in data.tags and data.pipeline_tag == "text-generation"
    again = ModelCard(f"---\n{data.to_yaml()}\n---\n{card.text}")
    assert again.data.to_dict() == data.to_dict()
    sections = ["Description", "Base model", "Model compatibility", "Additional Arguments", "Output Type changes"]
    shared = ["The two models", "Speed", "Losslessness", "Intended use", "Limits", "Licences"]
    assert re.findall(r"^## (.+)$", card.text, re.M) == [*sections, "Example usage", *shared]


def test_the_card_names_every_argument_that_there_is():
    from hf_specgen.config import ARGUMENTS

    table = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "README.md").read_text(), re.M)
    assert sorted(table) == sorted(["assistant_model", "spec_config", *ARGUMENTS])


def test_the_cards_example_runs(repository, capsys):
    """With the embedded pair in place of the one it names."""
    (code,) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.S)
    for name, folder in {
        "Qwen/Qwen2.5-Coder-1.5B-Instruct": demo.PAIR / "target",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct": demo.PAIR / "draft",
        "<this repository, or a folder with a copy of it>": repository,
    }.items():
        assert name in code
        code = code.replace(name, str(folder))
    exec(compile(code.replace("max_new_tokens=60", "max_new_tokens=10"), "the card", "exec"), {})
    printed = capsys.readouterr().out
    assert "class Reader:" in printed and "tokens per forward" in printed


def test_the_repository_has_what_the_hub_wants_and_nothing_else():
    found = {str(p.relative_to(REPOSITORY)) for p in REPOSITORY.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert found == {"README.md", "custom_generate/generate.py", "custom_generate/requirements.txt"}
