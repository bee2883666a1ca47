"""Model cards: what they say and refuse."""

import json
import re
import shutil
from pathlib import Path

import pytest
from bench_toys import save_pair
from huggingface_hub import ModelCard
from record_toys import record
from toys import tiny, toy_tokenizer
from transformers import AutoModelForCausalLM

import hf_specgen
from hf_specgen.benchmarking.loading import CHECKPOINT, Side
from hf_specgen.benchmarking.store import LOADED_DTYPE
from hf_specgen.cards.card import Wanted, make

EMBEDDED = Path(__file__).parents[2] / "model_cards" / "embedded-pair"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """target/ and draft/, a bench and a certificate of them, of calls that nobody made."""
    root = tmp_path_factory.mktemp("cards")
    for name in ("target", "draft"):
        tiny(num_hidden_layers=1 if name == "draft" else 2).save_pretrained(root / name)
        toy_tokenizer().save_pretrained(root / name)
    told = json.loads((EMBEDDED / "certificate.json").read_text())
    manifest = json.loads((EMBEDDED / "bench" / "manifest.json").read_text())
    for name in ("target", "draft"):
        own = Side(name, root / name, "auto").fingerprint()
        told[name] |= {what: own[what] for what in ("config", CHECKPOINT)}
        manifest[name] = own | {LOADED_DTYPE: "float32"}
    (root / "bench").mkdir()
    (root / "certificate.json").write_text(json.dumps(told))
    manifest["commands"] = ["hf-specgen bench /home/me/target"]
    (root / "bench" / "manifest.json").write_text(json.dumps(manifest))
    parted = {"same_ids": False, "diverged_at": 4, "gap": 0.0}
    records = [
        record("plain", task="code", same_ids=True),
        record("ours", task="code", seconds=0.5, drafted=10, accepted=8, rounds=3, **parted),
        record("stock", task="code", error="OSError: no | room"),
    ]
    (root / "bench" / "records.jsonl").write_text("".join(json.dumps(one.to_dict()) + "\n" for one in records))
    return root


@pytest.fixture
def mine(pair, tmp_path):
    return Path(shutil.copytree(pair, tmp_path / "mine"))


def of(root, **more):
    files = {"bench": root / "bench", "certificate": root / "certificate.json"}
    return make(Wanted(str(root / "target"), str(root / "draft"), **files | more))


def data_of(card):
    return ModelCard(card.text, ignore_metadata_errors=False).data


def changed(file: Path, change) -> None:
    told = json.loads(file.read_text())
    change(told)
    file.write_text(json.dumps(told))


# ---- what it says -------------------------------------------------------------------------------------
def test_every_figure_is_the_records(pair):
    text = of(pair).text
    assert "| ours | 2.00× | 2.00× |" in text, "11 tokens in half the time"
    assert "| ours | 22.0 | 80% | 3.67 | – | 0 of 1 |" in text
    assert "ours: code 0 parts from plain's at token 4, where plain's two logits differ by 0." in text
    assert "stock: 1 failed: OSError: no | room" in text
    assert "hf-specgen bench target\n" in text and "/home" not in text, "no folders of one machine"
    assert "On AMD EPYC, 2 threads, float32, python" in text and "auto" not in text
    (one,) = data_of(of(pair)).eval_results
    assert one.metric_value == 2.0 and one.metric_type == "speedup" and "code" in one.dataset_name
    assert one.metric_name.endswith("(ours, temperature 0, batch 1; float32 on AMD EPYC)"), "a speed-up is a machine's"


def test_what_was_not_measured_is_said_not_to_be(pair):
    without = of(pair, bench=None)
    assert "## Speed\n\nNot measured" in without.text and data_of(without).eval_results is None
    assert "## Losslessness\n\nNot verified" in of(pair, certificate=None).text


def test_the_certificate_is_told(mine):
    text = of(mine).text
    assert "**LOSSLESS**" in text and not of(mine).faulty
    assert re.search(
        r"\| greedy \| 9 of 9 texts \(of 4 prompts of \d+ to \d+ tokens and up to 48 new ones; alone", text
    )
    assert "from " in text and "on it would be a fault" in text and "Of greedy text, nothing longer" in text
    changed(mine / "certificate.json", faulty)
    card = of(mine)
    assert card.faulty and "**FAULT**" in card.text and "- prompt 0: no" in card.text


def test_what_the_bench_found_is_told_beside_the_verdict(mine):
    """One of its texts parts from plain's where the certificate says LOSSLESS."""
    text = of(mine).text
    verdict = text.index("**LOSSLESS**")
    tie = re.search(r"- code 0, token 4: a gap of 0 logits, which rounding explains \(up to \d", text)
    assert tie.start() > verdict and "stock" not in text[tie.start() : tie.end()]
    records = mine / "bench" / "records.jsonl"
    records.write_text(records.read_text().replace('"gap": 0.0', '"gap": 0.5'))
    assert "**a gap of 0.5 logits, more than rounding explains here" in of(mine).text
    assert "of ours that part" not in of(mine, bench=None).text


def test_promises_of_the_same_text_say_below_which_precision_they_end(mine):
    for kind in ("pair", "draft"):
        assert "(below float32: but for near ties)." in of(mine, kind=kind).text.split("## ")[0]
    assert "depend on the draft (below float32: but for near ties)" in of(mine, certificate=None).text
    assert "never the text" not in of(mine, kind="draft").text


def test_a_certificate_of_loaded_models_is_theirs(tmp_path):
    """Made in Python, and used for a card of their folders; what could not be compared is said."""
    root = save_pair(tmp_path)
    target, draft = (AutoModelForCausalLM.from_pretrained(root / name) for name in ("target", "draft"))
    options = {"prompts": ["the cab sing"], "max_new_tokens": 8, "temperature": 0}
    hf_specgen.verify(target, draft, toy_tokenizer(), **options).save(root / "certificate.json")
    text = of(root, bench=None).text
    assert "**LOSSLESS**" in text
    assert "- The weights of target and draft were not compared with those that `--certificate` measured" in text
    hf_specgen.verify(root / "target", root / "draft", **options).save(root / "certificate.json")
    assert "not compared" not in of(root, bench=None).text


def test_a_certificate_of_a_quantized_draft(tmp_path):
    pytest.importorskip("bitsandbytes")
    root = save_pair(tmp_path)
    options = {"prompts": ["the cab sing"], "max_new_tokens": 8, "temperature": 0, "draft_quantization": "nf4"}
    hf_specgen.verify(root / "target", root / "draft", **options).save(root / "certificate.json")
    told = json.loads((root / "certificate.json").read_text())
    assert told["draft"]["quantization"] == "nf4" and told["machine"]["versions"]["bitsandbytes"]
    card = of(root, bench=None, draft_quantization="nf4")
    assert 'draft_quantization="nf4"' in card.text and "quantized" in data_of(card).tags
    with pytest.raises(ValueError, match="of a draft that was nf4, and this one is dense"):
        of(root, bench=None)


def test_metadata_is_the_hubs(mine):
    (mine / "target" / "LICENSE").write_text("  Apache License\n  Version 2.0, January 2004\n")
    (mine / "draft" / "README.md").write_text("---\nlicense: mit\n---\n")
    data = data_of(of(mine, base_models=("org/large", "org/small")))
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert data.base_model is None, "the Hub takes two of them for a merge"
    assert data.license == "other" and "speculative-decoding" in data.tags
    text = of(mine).text
    assert "Target: apache-2.0 (`LICENSE` in its folder)." in text and "Draft: mit (by the card in its folder)." in text
    assert data_of(of(mine, draft_licence="apache-2.0")).license == "apache-2.0"


def test_an_unknown_licence_is_not_invented(pair):
    card = of(pair)
    assert not {"license", "base_model"} & card.metadata.keys() and "not stated by its files" in card.text


def test_a_quantized_draft_brings_its_making(mine):
    made = "---\nbase_model: org/small\n---\n# x\n\n## Quantization\n\nin steps\n\n## Limits\n"
    (mine / "draft" / "README.md").write_text(made)
    card = of(mine, kind="draft")
    data = data_of(card)
    assert "## Quantization\n\nin steps\n\n## " in card.text and "do not survive `state_dict()`" in card.text
    assert data.base_model == "org/small" and data.base_model_relation == "quantized" and "quantized" in data.tags
    assert 'load_pair("TARGET", "DRAFT")' in card.text and "`DRAFT` is this repository's id" in card.text
    (mine / "draft" / "README.md").write_text(made.replace("org/small", "small"))
    told = of(mine, kind="draft").metadata
    assert not {"base_model", "base_model_relation"} & told.keys(), "the name of a folder is no id"
    assert data_of(of(mine, kind="draft", base_models=("org/base",))).base_model == "org/base"
    with pytest.raises(ValueError, match="made from one model, not from org/a, org/b"):
        of(mine, kind="draft", base_models=("org/a", "org/b"))


def test_a_pair_that_is_on_the_hub_is_used_from_there(pair):
    text = of(pair, base_models=("org/large", "org/small"), draft_quantization=None).text
    assert 'load_pair("org/large", "org/small")' in text and 'load_pair("target", "draft")' in of(pair).text


def test_notes_come_first(mine):
    (mine / "about.md").write_text("Found in a drawer.\n")
    assert of(mine, notes=mine / "about.md", title="Two models").text.split("\n\n")[1] == "# Two models"
    assert "## About\n\nFound in a drawer." in of(mine, notes=mine / "about.md").text


# ---- refusals -----------------------------------------------------------------------------------------
def other_target(root):
    changed(root / "target" / "config.json", lambda told: told.update(rms_norm_eps=1e-4))


def other_weights(root):
    """A fine-tune: the same config.json."""
    tiny(seed=5).save_pretrained(root / "tuned")
    shutil.copy(root / "tuned" / "model.safetensors", root / "target" / "model.safetensors")


def certificate_says(change):
    return lambda root: changed(root / "certificate.json", change)


def faulty(told):
    told["greedy"]["texts"][0] |= {"verdict": "fault", "why": "no"}
    told.update(verdict="FAULT", lossless=False, faults=["prompt 0: no"])


def garbage(name):
    return lambda root: (root / name).write_text("garbage")


def certificate_lacks(*path):
    def lack(told):
        for name in path[:-1]:
            told = told[name]
        del told[path[-1]]

    return lambda root: changed(root / "certificate.json", lack)


@pytest.mark.parametrize(
    "spoil, more, says",
    [
        (None, {"bench": None, "certificate": None}, "pass --bench"),
        (None, {"bench": Path("none")}, "There is no none/manifest.json"),
        (None, {"certificate": Path("none.json")}, "There is no file none.json"),
        (None, {"kind": "trio"}, "'trio' is no kind of card"),
        (None, {"draft_quantization": "nf4"}, "same --draft-quantization"),
        (None, {"bench": None, "draft_quantization": "nf4"}, "of a draft that was dense, and this one is nf4"),
        (None, {"target_licence": "My Own"}, "'My Own' is no licence"),
        (other_target, {}, "is of another target, 'target'"),
        (other_target, {"bench": None}, "--certificate .* is of another target"),
        (garbage("certificate.json"), {}, "is not JSON"),
        (garbage("bench/manifest.json"), {}, "is not JSON"),
        (garbage("bench/records.jsonl"), {}, "line 1"),
        (garbage("target/config.json"), {}, "not valid JSON"),
        (lambda root: (root / "bench/records.jsonl").write_text(""), {}, "no call that went through"),
        (lambda root: changed(root / "bench/manifest.json", lambda told: told.pop("device")), {}, "has no 'device'"),
        (certificate_lacks("greedy"), {}, "'greedy' is None"),
        (certificate_lacks("format"), {}, "no certificate of this version"),
        (certificate_lacks("greedy", "noise"), {}, "is not whole"),
        (certificate_lacks("prompts", "count"), {}, "is not whole"),
        (certificate_says(lambda told: told.update(verdict="FAULT")), {}, "was changed"),
        (certificate_says(lambda told: told.update(lossless=False)), {}, "was changed"),
        (certificate_says(lambda told: told.update(faults=["no"])), {}, "was changed"),
        (certificate_says(lambda told: told["sampling"][0].update(passed=False)), {}, "tests come to FAULT"),
        (certificate_says(lambda told: told["greedy"]["flips"].update(passed=False)), {}, "tests come to FAULT"),
        (certificate_says(lambda told: told["greedy"]["texts"][0].update(verdict="tie")), {}, "come to LOSSLESS UP TO"),
        (certificate_lacks("lossless"), {}, "'lossless' is None"),
        (certificate_lacks("greedy", "flips"), {}, "is no whole certificate"),
        (other_weights, {"bench": None}, "--certificate .* another target with the same config.json: its weights"),
        (other_weights, {"certificate": None}, "--bench .* another target with the same config.json: its weights"),
        (lambda root: (root / "draft/README.md").write_text("---\n[\n---\n"), {}, "cannot be read"),
    ],
)
def test_what_is_missing_broken_or_foreign_is_refused(mine, spoil, more, says):
    if spoil is not None:
        spoil(mine)
    with pytest.raises((ValueError, OSError), match=says):
        of(mine, **more)
