"""Every folder of a zoo with every other, both ways round: which verdict, and why."""

import itertools
import json
import os
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from text_toys import byte_level, fast
from tokenizers import Tokenizer
from transformers import BitsAndBytesConfig, GPT2Config, GPT2LMHeadModel

from hf_specgen.pairing import check_pair

MODELS = Path(os.environ.get("HF_SPECGEN_MODELS", Path.home() / ".cache" / "hf-specgen" / "models"))
QWEN, SMALL_QWEN, SMOL = "qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", "smollm2-135m"
TOYS = ("gpt2-like", "padded", "permuted", "special-differs", "added", "head", "lacking")
REAL = (QWEN, SMALL_QWEN, SMOL)


def gpt2(rows: int) -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(vocab_size=rows, n_embd=16, n_layer=2, n_head=2, n_positions=64))


def renamed(tokenizer: Tokenizer, **change) -> Tokenizer:
    """With other ids or strings, given the vocabulary as strings in the order of their ids."""
    content = json.loads(tokenizer.to_str())
    words = sorted(content["model"]["vocab"], key=content["model"]["vocab"].get)
    names = change["names"](list(words))
    content["model"]["vocab"] = {name: id_ for id_, name in enumerate(names)}
    for added in content["added_tokens"]:
        added["content"] = added["content"] if added["content"] in names else change["special"]
        added["id"] = content["model"]["vocab"][added["content"]]
    return Tokenizer.from_str(json.dumps(content))


@pytest.fixture(scope="module")
def zoo(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    base = byte_level(340, special=("<end>", "<pad>"))
    size = base.get_vocab_size()

    def save(name, rows, tokenizer):
        gpt2(rows).save_pretrained(root / name)
        end = "<end>" if "<end>" in tokenizer.get_vocab() else "<stop>"
        fast(tokenizer, eos_token=end).save_pretrained(root / name)

    save("gpt2-like", size, base)
    save("padded", size + 12, base)
    save("permuted", size, renamed(base, names=lambda words: words[:2] + words[:1:-1]))
    save("special-differs", size, renamed(base, names=lambda words: ["<stop>", *words[1:]], special="<stop>"))
    more = byte_level(340, special=("<end>", "<pad>"))
    more.add_special_tokens(["<tool>"])
    save("added", size + 1, more)
    head = root / "head"
    head.mkdir()
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 32}
    (head / "config.json").write_text(json.dumps(config | {"vocab_size": size}))
    save("lacking", size, base)
    weights = root / "lacking" / "model.safetensors"
    tensors = load_file(weights)
    del tensors["transformer.h.1.mlp.c_proj.weight"]
    save_file(tensors, weights, metadata={"format": "pt"})
    for name in REAL:
        if (MODELS / name).is_dir():
            (root / name).symlink_to(MODELS / name)
    return root


def expected(a: str, b: str) -> str:
    if {a, b} & {"head", "lacking"}:
        return "refused"
    if a == b or {a, b} == {QWEN, SMALL_QWEN}:
        return "exact"
    if {a, b} & set(REAL) or "permuted" in (a, b):
        return "cross-vocabulary"
    return "exact-with-padding" if {a, b} == {"gpt2-like", "padded"} else "mappable"


@pytest.mark.parametrize(("a", "b"), list(itertools.product((*TOYS, *REAL), repeat=2)))
def test_verdict(zoo, a, b):
    if not ((zoo / a).exists() and (zoo / b).exists()):
        pytest.skip(f"no real models in {MODELS}")
    report = check_pair(zoo / a, zoo / b)
    assert report.verdict == expected(a, b)
    assert json.dumps(report.to_dict()) and str(report)
    if report.verdict in ("exact", "mappable", "exact-with-padding", "cross-vocabulary"):
        assert report.parameter_ratio > 0 and report.cost_ratio > 0
        assert report.target_weights.bytes > 0 < report.draft_weights.kv_bytes_per_token
    else:
        assert report.reasons


def test_reasons_say_what_a_person_can_act_on(zoo):
    def why(a, b):
        return " ".join(check_pair(zoo / a, zoo / b).reasons)

    assert "an EAGLE-3 head" in why("gpt2-like", "head") and "Pass a whole causal LM" in why("gpt2-like", "head")
    assert "lacks 1 tensors (transformer.h.1.mlp.c_proj.weight)" in why("lacking", "gpt2-like")
    assert "Known only to the draft: 1 token" in why("gpt2-like", "added") and "<tool>" in why("gpt2-like", "added")
    assert "The eos token differs: target '<end>', draft '<stop>'" in why("gpt2-like", "special-differs")
    assert "the draft has none for ids from" in why("padded", "gpt2-like")
    assert "Another vocabulary" in why("gpt2-like", "permuted")
    assert "can hardly win" in why("gpt2-like", "padded")


def test_a_head_whose_config_says_nothing_is_known_by_its_tensors(zoo, tmp_path):
    gpt2(342).save_pretrained(tmp_path / "head")
    file = tmp_path / "head" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"fc.weight": tensors["transformer.wpe.weight"].clone()}, file, metadata={"format": "pt"})
    report = check_pair(zoo / "gpt2-like", tmp_path / "head")
    assert report.verdict == "refused" and "an EAGLE head" in " ".join(report.reasons)


def test_a_quantization_config_is_named_by_its_method(zoo):
    pytest.importorskip("bitsandbytes")
    config = BitsAndBytesConfig(load_in_4bit=True)
    report = check_pair(zoo / "gpt2-like", zoo / "padded", draft_quantization=config)
    assert report.draft_weights.quantization == "bitsandbytes"
