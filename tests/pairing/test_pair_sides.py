"""Where the facts of a side come from, and checkpoints that are no models."""

import json
import os
from pathlib import Path

import pytest
from pairing_toys import WORDS, make_model, make_tokenizer
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from hf_specgen.pairing import check_pair
from hf_specgen.pairing.sides import CANNOT_GO_BACK, Side
from hf_specgen.pairing.tokenizers import FolderSource

MODELS = Path(os.environ.get("HF_SPECGEN_MODELS", "~/.cache/hf-specgen/models")).expanduser()
REAL = ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m")
real = [
    pytest.mark.real,
    pytest.mark.skipif(not all((MODELS / name).is_dir() for name in REAL), reason=f"no real models in {MODELS}"),
]


def edit_config(folder, **changes):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def write_folder(path, **files):
    path.mkdir()
    for name, content in files.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def test_loaded_model_uses_the_tokenizer_beside_its_checkpoint(folder):
    target = AutoModelForCausalLM.from_pretrained(folder("target", tokenizer=make_tokenizer()))
    draft = AutoModelForCausalLM.from_pretrained(folder("draft", tokenizer=make_tokenizer(WORDS[::-1])))
    assert check_pair(target, target).verdict == "exact"
    assert check_pair(target, draft).verdict == "cross-vocabulary"
    assert check_pair(target, draft, assistant_tokenizer=make_tokenizer()).verdict == "exact"  # what is passed in wins


def test_model_in_the_hub_cache(tmp_path, monkeypatch, folder):
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    folder("saved", tokenizer=make_tokenizer()).rename(snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = make_model()
    model.config.name_or_path, model.config._commit_hash = "org/name", "0" * 40
    report = check_pair(model, make_model(), assistant_tokenizer=make_tokenizer())
    assert (report.verdict, report.target) == ("exact", "org/name")


@pytest.mark.parametrize("name", ["gone/for/good", "org/never-downloaded", "/no/such/folder"])
def test_model_whose_folder_is_gone_has_no_tokenizer(name):
    model = make_model()
    model.config.name_or_path = name
    assert check_pair(model, make_model()).verdict == "unknown"


def test_folder_without_tokenizer_and_with_a_broken_one(folder):
    good, bare = folder("good", tokenizer=make_tokenizer()), folder("bare")
    assert check_pair(good, bare).verdict == "unknown"
    (bare / "tokenizer.json").write_text("{")
    report = check_pair(good, bare)
    assert report.verdict == "unknown" and "could not be read" in report.reasons[0]


def test_folder_with_a_slow_tokenizer_only(folder):
    bert = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS[:59]]
    target, draft = folder("target"), folder("draft")
    for path, words in ((target, bert), (draft, [*bert[:-1], "other"])):
        (path / "vocab.txt").write_text("\n".join(words))
        (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"}))
    assert check_pair(target, draft).differing == ((63, "w58", "other"),)


def test_tokenizer_json_is_read_as_transformers_reads_it(tmp_path):
    pieces = [("<unk>", 0.0), *((word, -1.0) for word in WORDS)]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(Unigram(pieces, unk_id=0)), unk_token="<unk>")
    tokenizer.add_tokens(["<a>"], special_tokens=True)
    tokenizer.add_tokens(["<b>"])
    tokenizer.save_pretrained(tmp_path)
    assert FolderSource.of(tmp_path).read().vocabulary == {id_: token for token, id_ in tokenizer.get_vocab().items()}


def test_rows_and_eos_of_a_folder(tmp_path):
    text = {"vocab_size": 72, "eos_token_id": 3}
    nested = write_folder(tmp_path / "vlm", config={"model_type": "llava", "text_config": text})
    assert (Side.of(nested).rows, Side.of(nested).eos) == (72, (3,))
    chat = write_folder(tmp_path / "chat", config=text, generation_config={"eos_token_id": [3, 7]})
    assert Side.of(chat).eos == (3, 7)


def test_head_in_a_folder_is_named(tmp_path, folder):
    verifier = {"verifier": {"name_or_path": "org/target"}}
    head = write_folder(
        tmp_path / "head",
        config={
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": verifier,
            "draft_vocab_size": 40,
        },
    )
    report = check_pair(folder("target"), head)
    assert report.verdict == "refused"
    assert "head is an EAGLE-3 head for org/target, not a causal LM" in report.reasons[0]


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"draft_vocab_size": 32}, "an EAGLE-3 head"),
        ({"architectures": ["DFlashDraftModel"]}, "a DFlash drafter"),
        ({"medusa_num_heads": 5, "base_model_name_or_path": "lmsys/vicuna"}, "a Medusa head for lmsys/vicuna"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "an EAGLE-3 head"),
        ({"architectures": ["XDraftModel"]}, "a drafter"),
    ],
)
def test_head_loaded_as_a_plain_model_is_refused(folder, config, kind):
    path = folder("head")
    edit_config(path, **config)
    loaded = AutoModelForCausalLM.from_pretrained(path)
    report = check_pair(make_model(), loaded)
    assert report.verdict == "refused" and f"is {kind}, not a causal LM" in report.reasons[0]


def test_causal_lm_with_a_similar_name_is_no_head(folder):
    path = folder("vlm")
    edit_config(path, architectures=["Eagle2_5_VLForConditionalGeneration"])
    assert check_pair(make_model(), path).usable


def test_adapter_folder_names_its_base(tmp_path):
    adapter = write_folder(tmp_path / "lora", adapter_config={"base_model_name_or_path": "org/base"})
    report = check_pair(make_model(), adapter)
    assert report.verdict == "refused"
    assert "a PEFT adapter for org/base" in report.reasons[0] and "AutoPeftModelForCausalLM" in report.reasons[0]


def test_what_cannot_be_checked_raises(tmp_path):
    with pytest.raises(FileNotFoundError, match="not a local folder"):
        check_pair(tmp_path / "missing", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        check_pair(tmp_path, tmp_path)
    with pytest.raises(TypeError, match="not int"):
        check_pair(make_model(), 3)


@pytest.mark.parametrize("name", [pytest.param(name, marks=real) for name in REAL])
def test_real_tokenizer_json_is_read_as_transformers_reads_it(name):
    vocabulary = AutoTokenizer.from_pretrained(MODELS / name, local_files_only=True).get_vocab()
    assert FolderSource.of(MODELS / name).read().vocabulary == {id_: token for token, id_ in vocabulary.items()}


@pytest.mark.parametrize(
    ("draft", "verdict"),
    [
        pytest.param("qwen2.5-coder-0.5b", "exact", marks=real),
        pytest.param("smollm2-135m", "cross-vocabulary", marks=real),
    ],
)
def test_real_pairs(draft, verdict):
    assert check_pair(MODELS / "qwen2.5-coder-1.5b", MODELS / draft).verdict == verdict


def test_model_types_that_cannot_go_back_are_those_that_the_sweep_refuses():
    verdicts = Path(__file__).parent.parent / "architectures" / "verdicts.json"
    swept = json.loads(verdicts.read_text(encoding="utf-8"))["architectures"]
    assert {name for name, found in swept.items() if found["verdict"] == "refused"} == CANNOT_GO_BACK


def test_a_folder_whose_model_cannot_go_back_is_refused(tmp_path):
    target = write_folder(tmp_path / "target", config={"model_type": "llama", "vocab_size": 64})
    draft = write_folder(tmp_path / "draft", config={"model_type": "rwkv", "vocab_size": 64})
    report = check_pair(target, draft)
    assert report.verdict == "refused" and "rwkv" in report.reasons[0]
