"""load_pair: what it hands back, where things go, and what bad input leads to: a clear error, and nothing loaded."""

import gc
import json
import os
import weakref

import pytest
import torch
from fake_hub import FakeHub
from pairing_toys import WORDS, make_tokenizer
from toys import plain, tiny
from transformers import AutoModelForCausalLM

from hf_specgen import SpecUnsupportedError
from hf_specgen.pairing.loading import Pair, load_pair
from hf_specgen.planning.plan import SpecMemoryError
from hf_specgen.quantization import Backend

IDS = torch.arange(2, 12)[None]
GREEDY = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "max_new_tokens": 12, "do_sample": False}


@pytest.fixture
def make(tmp_path):
    """make("name", seed=…, …) saves a tiny model with a tokenizer (None: without) and returns its folder."""

    def save(name, tokenizer=WORDS, **config):
        tiny(**config).save_pretrained(tmp_path / name)
        if tokenizer is not None:
            make_tokenizer(tokenizer).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


@pytest.fixture
def loaded(monkeypatch):
    """Weak references to the models that back ends have loaded, in order."""
    models, load = [], Backend.load

    def watched(self, folder, *args, **kwargs):
        model = load(self, folder, *args, **kwargs)
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(Backend, "load", watched)
    return models


def decodes(pair, k=5):
    """`k` tokens a round: by itself, a draft as large as its target rests. None: as the pair's defaults say."""
    drafting = {} if k is None else {"num_assistant_tokens": k}
    out = pair.generate(**GREEDY, **drafting, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **GREEDY)) and out.spec_stats.draft_forwards > 0
    return out.spec_stats


def test_a_pair_is_ready_to_decode(make, loaded):
    target, draft = make("target"), make("draft", num_hidden_layers=1)
    pair = load_pair(target, draft, num_assistant_tokens=3)
    assert isinstance(pair, Pair) and [ref() for ref in loaded] == [pair.target, pair.draft]
    assert pair.report.verdict == "exact" and pair.quantization == ("dense", "dense")
    assert len(pair.tokenizer) == len(WORDS)
    assert decodes(pair, k=None).strategy == "rejection"
    assert not pair.target.training and not pair.draft.training
    shown = str(pair)
    assert repr(pair) == shown and "target" in shown and f"{draft} on cpu, float32, dense" in shown
    assert "verdict  exact" in shown and len(shown.splitlines()) <= 5


def test_defaults_are_those_of_enable(make):
    pair = load_pair(make("target"), make("draft", seed=5), spec_strategy="coupled", num_assistant_tokens=2)
    stats = decodes(pair, k=None)
    assert stats.strategy == "coupled" and 0 < stats.drafted <= 2 * stats.rounds
    with pytest.raises(TypeError, match=r"\['num_assistant_token'\], which are no arguments"):
        load_pair("target", "draft", num_assistant_token=2)
    with pytest.raises(ValueError, match="num_assistant_tokens=0"):
        load_pair("target", "draft", num_assistant_tokens=0)


def test_models_are_taken_as_they_are(make, loaded):
    folder = make("model")
    target, draft = AutoModelForCausalLM.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder)
    pair = load_pair(target, draft)
    assert pair.target is target and pair.draft is draft and not loaded and pair.tokenizer is not None
    assert decodes(pair).acceptance_rate == 1
    assert decodes(load_pair(folder, draft)).acceptance_rate == 1
    assert decodes(load_pair(target, folder)).acceptance_rate == 1 and len(loaded) == 2
    with pytest.raises(ValueError, match="LlamaForCausalLM is loaded already"):
        load_pair(target, folder, target_quantization="nf4")


def test_each_side_keeps_its_dtype(make):
    target, draft = make("target"), make("draft", seed=5)
    config = json.loads((draft / "config.json").read_text()) | {"dtype": "bfloat16"}
    (draft / "config.json").write_text(json.dumps(config))
    pair = load_pair(target, draft)
    assert (pair.target.dtype, pair.draft.dtype) == (torch.float32, torch.bfloat16)
    decodes(pair)
    pair = load_pair(target, draft, dtype="bfloat16", draft_kwargs={"attn_implementation": "eager"})
    assert pair.target.dtype == pair.draft.dtype == torch.bfloat16
    assert pair.draft.config._attn_implementation == "eager" != pair.target.config._attn_implementation


def test_a_target_without_tokenizer(make):
    pair = load_pair(make("target", tokenizer=None), make("draft", tokenizer=None))
    assert pair.tokenizer is None and pair.report.verdict == "unknown"
    decodes(pair)


def test_a_target_spread_by_hand(make):
    pytest.importorskip("accelerate")
    parts = [
        "model.embed_tokens",
        *(f"model.layers.{i}" for i in range(3)),
        "model.norm",
        "model.rotary_emb",
        "lm_head",
    ]
    device_map = {part: "disk" if "layers.1" in part or part == "lm_head" else "cpu" for part in parts}
    pair = load_pair(make("target"), make("draft", num_hidden_layers=1), device_map=device_map)
    assert pair.target.hf_device_map == device_map and "disk (2 modules)" in str(pair)
    assert pair.draft.device == torch.device("cpu")
    decodes(pair)


def test_memory_that_is_enough_and_too_small(make, loaded):
    pytest.importorskip("accelerate")
    target, draft = make("target", num_hidden_layers=8), make("draft", num_hidden_layers=1)
    options = {"reserve": 0, "length": 16}
    decodes(load_pair(target, draft, max_memory={"cpu": "10MB"}, **options))
    loaded.clear()
    memory = {"cpu": "50KB"}
    with pytest.raises(ValueError, match="missing on device cpu"):
        load_pair(target, draft, max_memory=memory, **options)
    assert not loaded and memory == {"cpu": "50KB"}
    size = os.path.getsize(target / "model.safetensors")
    pair = load_pair(target, draft, max_memory={"cpu": size // 2 + 80_000, "disk": "1GB"}, **options)
    assert {"cpu", "disk"} == set(pair.target.hf_device_map.values())
    decodes(pair)


def test_a_device_that_is_not_there(make, loaded):
    absent = "xpu" if torch.cuda.is_available() else "cuda"
    with pytest.raises(ValueError, match=f"{absent}.* is not on this machine"):
        load_pair(make("target"), make("draft"), draft_device=absent)
    assert not loaded


def test_a_refused_pair_is_not_loaded(make, loaded, tmp_path):
    head = make("head")
    config = json.loads((head / "config.json").read_text()) | {"architectures": ["LlamaForCausalLMEagle3"]}
    (head / "config.json").write_text(json.dumps(config))
    with pytest.raises(SpecUnsupportedError, match="EAGLE"):
        load_pair(make("target"), head)
    assert not loaded


def test_an_adapter_alone_is_refused_with_a_way_out(make, loaded, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    with pytest.raises(SpecUnsupportedError, match=r"PEFT adapter for org/base.*AutoPeftModelForCausalLM"):
        load_pair(make("target"), tmp_path / "adapter")
    assert not loaded


def test_an_encoder_decoder_is_loaded_as_what_it_is(tmp_path):
    """Its config is also known to AutoModelForCausalLM, which would load the decoder alone."""
    from transformers import BartConfig, BartForConditionalGeneration

    sizes = {"d_model": 16, "vocab_size": 64, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 64}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    BartForConditionalGeneration(BartConfig(**sizes, **heads)).save_pretrained(tmp_path / "bart")
    pair = load_pair(tmp_path / "bart", tmp_path / "bart")
    assert type(pair.target) is type(pair.draft) is BartForConditionalGeneration
    decodes(pair)


def test_names_on_the_hub(make, loaded, hub):
    pair = load_pair(hub.add("org/target", make("target")), hub.add("org/draft", make("draft", seed=5)))
    assert len(loaded) == 2 and len(pair.tokenizer) == len(WORDS) and pair.report.verdict == "exact"
    decodes(pair)


def test_pickles_on_the_hub(make, loaded, hub):
    draft = make("draft")
    pickle_weights(draft)
    names = hub.add("org/target", make("target")), hub.add("org/draft", draft)
    with pytest.raises(FileNotFoundError, match=r"org/draft.* holds no model\.safetensors"):
        load_pair(*names)
    assert not loaded


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty cache, and a running hub without models."""

    hub = FakeHub()
    with hub.installed(monkeypatch, tmp_path / "cache"):
        yield hub


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def garble(folder):
    (folder / "model.safetensors").write_bytes(b"\xff" * 200)


def lose_weights(folder):
    (folder / "model.safetensors").unlink()


def lose_a_shard(folder):
    index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def pickle_weights(folder):
    torch.save(AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


BROKEN = {
    "only partly there": cut,
    "no safetensors file": garble,
    "no weights": lose_weights,
    r"lacks 1 of the 1 files": lose_a_shard,
    "pickled weights": pickle_weights,
}


@pytest.mark.parametrize("which", ["target", "draft"])
@pytest.mark.parametrize("match", BROKEN)
def test_broken_checkpoints_are_told_before_anything_is_loaded(match, which, make, loaded):
    folders = {"target": make("target"), "draft": make("draft", seed=5)}
    BROKEN[match](folders[which])
    with pytest.raises(ValueError, match=match) as caught:
        load_pair(**folders)
    assert str(folders[which]) in str(caught.value) and not loaded


def test_pickled_weights_are_loaded_when_asked_for(make):
    target, draft = make("target"), make("draft", seed=5)
    pickle_weights(draft)
    decodes(load_pair(target, draft, allow_pickle=True))


@pytest.mark.parametrize("name", ["nowhere", "nowhere.gguf"])
def test_names_of_nothing(name, make, loaded, tmp_path):
    with pytest.raises(FileNotFoundError, match=name):
        load_pair(make("target"), tmp_path / name)
    with pytest.raises(FileNotFoundError, match=name):
        load_pair(tmp_path / name, make("draft"))
    assert not loaded


def test_an_awq_draft_without_its_back_end(make, loaded, monkeypatch):
    draft = make("draft")
    config = json.loads((draft / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
    (draft / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("hf_specgen.quantization.base.installed", lambda package: "gptqmodel" not in package)
    for quantization in (None, "awq"):
        with pytest.raises(ImportError, match=r'awq needs gptqmodel.*pip install "gptqmodel>=.*" "torch=='):
            load_pair(make("target"), draft, draft_quantization=quantization)
    assert not loaded


def test_when_the_draft_fails_the_target_does_not_stay(make, loaded, monkeypatch):
    """Not even while the error, and the frames in its traceback, live on."""
    watched = Backend.load

    def second_fails(self, folder, *args, draft=False, **kwargs):
        model = watched(self, folder, *args, **kwargs)
        if draft:
            raise RuntimeError("out of memory") from OSError("cause")
        return model

    monkeypatch.setattr(Backend, "load", second_fails)
    with pytest.raises(RuntimeError, match="out of memory") as caught:
        load_pair(make("target"), make("draft", seed=5))
    assert len(loaded) == 2, "each was loaded once"
    gc.collect()
    assert [ref() for ref in loaded] == [None, None] and caught.value.__traceback__ is not None


def test_when_enabling_fails_neither_stays(make, loaded, monkeypatch):
    def fails(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_specgen.api.enable", fails)
    with pytest.raises(KeyboardInterrupt):
        load_pair(make("target"), make("draft", seed=5))
    gc.collect()
    assert [ref() for ref in loaded] == [None, None]


def test_a_failed_call_leaves_given_models_alone(make):
    target = AutoModelForCausalLM.from_pretrained(make("target"))
    before = dict(vars(target))
    with pytest.raises(FileNotFoundError):
        load_pair(target, "nowhere/at/all")
    assert dict(vars(target)) == before


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"dtype": "half"}, ValueError, "dtype='half' is none"),
        ({"dtype": None}, ValueError, "dtype=None"),
        ({"dtype": torch.int8}, ValueError, "dtype=torch.int8"),
        ({"device_map": {}}, ValueError, "places nothing"),
        ({"device_map": [0]}, ValueError, r"device_map=\[0\] is no device"),
        ({"device_map": "disk"}, ValueError, "device_map='disk' is no device"),
        ({"draft_device": "xyz"}, ValueError, "draft_device='xyz' is no device"),
        ({"draft_device": 99}, ValueError, "draft_device=99: .* is not on this machine"),
        ({"max_memory": {99: "8GB"}}, ValueError, "max_memory=99: .* is not on this machine"),
        ({"max_memory": ["8GB"]}, ValueError, "Memory is given by device"),
        ({"max_memory": {"cpu": 8e9}}, ValueError, "8000000000.0 is no size"),
        ({"max_memory": {"cpu": "8GB"}, "device_map": "cpu"}, ValueError, "pass one of the two"),
        ({"length": 0}, ValueError, "length=0"),
        ({"batch_size": "3"}, ValueError, "batch_size='3'"),
        ({"reserve": "lots"}, ValueError, "'lots' is no size"),
        ({"target_kwargs": {"revision": "v2"}}, TypeError, "'revision': pass .*org/name@revision"),
        ({"draft_kwargs": {"torch_dtype": "auto"}}, TypeError, "'torch_dtype': pass dtype="),
        ({"draft_kwargs": "eager"}, TypeError, "draft_kwargs is a dict"),
    ],
)
def test_bad_arguments_are_told_first(options, error, match):
    with pytest.raises(error, match=match):
        load_pair("nowhere/target", "nowhere/draft", **options)


def test_the_side_that_is_no_model_is_named(make):
    with pytest.raises(TypeError, match="target=None is no model"):
        load_pair(None, make("draft"))
    with pytest.raises(TypeError, match="draft=5 is no model"):
        load_pair(make("target"), 5)


@pytest.mark.parametrize(
    "options", [{"target_kwargs": {"a": 1}}, {"device_map": "cpu"}, {"max_memory": {"cpu": "8GB"}}]
)
def test_arguments_that_a_loaded_model_cannot_follow(options, make):
    target = AutoModelForCausalLM.from_pretrained(make("target"))
    with pytest.raises(ValueError, match=f"target is loaded already, so {next(iter(options))}="):
        load_pair(target, make("draft"), **options)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="the memory of a CPU")
def test_the_memory_of_this_machine(make, loaded):
    pytest.importorskip("psutil")
    target, draft = make("target"), make("draft")
    with pytest.raises(SpecMemoryError, match="missing on device cpu"):
        load_pair(target, draft, reserve="1000TiB")
    assert not loaded


def test_beside_a_loaded_draft_only_its_cache_is_counted(make):
    pytest.importorskip("accelerate")
    target, options = make("target", num_hidden_layers=8), {"reserve": 0, "length": 16}
    draft = AutoModelForCausalLM.from_pretrained(make("draft", num_hidden_layers=8))
    size = os.path.getsize(target / "model.safetensors")
    pair = load_pair(target, draft, max_memory={"cpu": int(1.3 * size)}, **options)
    assert pair.draft is draft
    with pytest.raises(SpecMemoryError, match="missing on device cpu"):
        load_pair(target, draft, max_memory={"cpu": "1KB"}, **options)


def test_a_broken_tokenizer_is_named_before_models_are_loaded(make, loaded):
    target, draft = make("target"), make("draft", seed=5)
    (target / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer"):
        load_pair(target, draft)
    assert not loaded


def test_code_of_a_checkpoint_is_not_run_unasked(make, loaded):
    target = make("target")
    config = json.loads((target / "config.json").read_text())
    config |= {"model_type": "weird", "auto_map": {"AutoConfig": "code.C", "AutoModelForCausalLM": "code.M"}}
    (target / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="trust_remote_code"):
        load_pair(target, make("draft"))
    assert not loaded


def test_a_pair_dropped_a_moment_ago_is_gone(make, monkeypatch):
    folder = make("model")
    gc.disable()
    try:
        pair = load_pair(folder, folder)
        dropped = weakref.ref(pair.target)
        del pair
        load_pair(folder, folder)
        assert dropped() is None
    finally:
        gc.enable()
