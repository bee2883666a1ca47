"""Estimates of bytes, against the models and caches themselves."""

import dataclasses
import json

import pytest
import torch
from families import FAMILIES, build
from toys import prompts, tiny
from transformers import DynamicCache

from hf_specgen.cache.ragged import ROUND
from hf_specgen.cache.stock import Layout, adopt
from hf_specgen.checkpoints.checkpoint import Checkpoint, Tensor, read_checkpoint
from hf_specgen.checkpoints.memory import (
    BEHIND_WINDOW,
    FORMATS,
    activation_bytes,
    bytes_per_token,
    dtype_name,
    kv_bytes,
    kv_bytes_by_layer,
    weight_bytes,
    weight_format,
)
from hf_specgen.compat import CACHE_NAME

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "tie_word_embeddings": False, "dtype": "bfloat16"}


def config_of(model):
    """As saved; without what `tiny` sets for families that have no such setting."""
    known = type(model.config)().to_dict()
    return {k: v for k, v in json.loads(model.config.to_json_string(use_diff=False)).items() if k in known}


def header_of(model):
    """A checkpoint's header, made from the model."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16"}
    return {n: Tensor(names[x.dtype], tuple(x.shape)) for n, x in model.named_parameters()}


# ---- weights -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt2", "mixtral", "deepseek_v3", "gpt_oss"])
def test_dense_weights_are_the_models(family, tied):
    model = build(family, tie_word_embeddings=tied)
    checkpoint = Checkpoint.of(header_of(model), config_of(model))
    real = model.get_memory_footprint(return_buffers=False)
    assert weight_bytes(config_of(model), checkpoint) == real
    assert weight_bytes(config_of(model), checkpoint, dtype=torch.bfloat16) == real // 2


def small(**shapes):
    """bfloat16 tensors by name, with "_" for "."."""
    return Checkpoint.of({name.replace("__", "."): Tensor("BF16", shape) for name, shape in shapes.items()}, CONFIG)


WHOLE = {
    "model__embed_tokens__weight": (100, 64),
    "model__layers__0__mlp__up_proj__weight": (128, 64),
    "model__layers__0__self_attn__q_proj__bias": (64,),
    "model__norm__weight": (64,),
    "lm_head__weight": (100, 64),
}
DENSE = 2 * (100 * 64 + 64 + 64)  # embedding, bias, norm: never quantized


@pytest.mark.parametrize(
    ("name", "linear"),
    [
        ("nf4", lambda rows, columns: rows * columns // 2 + rows * columns // 64 * 4),
        ("int8", lambda rows, columns: rows * columns + rows * 4),
        ("torchao-int8", lambda rows, columns: rows * columns + rows * 2),
        ("awq", lambda rows, columns: rows * columns // 2 + rows * 2.5),  # one group: 64 columns
    ],
)
def test_quantized_weights(name, linear):
    up, head = linear(128, 64), linear(100, 64)
    assert weight_bytes(CONFIG, small(**WHOLE), form=weight_format(name)) == DENSE + up + 2 * 100 * 64
    with_head = weight_bytes(CONFIG, small(**WHOLE), form=weight_format(name, head=True))
    assert with_head == DENSE + up + (2 * 100 * 64 if name == "awq" else head)


def test_a_tied_head_is_quantized_beside_the_embedding():
    tied = CONFIG | {"tie_word_embeddings": True}
    shapes = {name: shape for name, shape in WHOLE.items() if name != "lm_head__weight"}
    plain, form = weight_format("int8"), weight_format("int8", head=True)
    grown = weight_bytes(tied, small(**shapes), form=form) - weight_bytes(tied, small(**shapes), form=plain)
    assert grown == 100 * 64 + 100 * 4
    # A head that was saved although it is tied is not loaded twice.
    assert weight_bytes(tied, small(**WHOLE)) == weight_bytes(tied, small(**shapes))


def test_stored_quantization_takes_what_it_takes_on_disk():
    config = CONFIG | {"quantization_config": {"quant_method": "awq", "bits": 4}}
    found = Checkpoint.of({"model.layers.0.mlp.up_proj.qweight": Tensor("I32", (64, 16))}, config)
    assert weight_bytes(config, found, form=FORMATS["int8"]) == found.bytes == 64 * 16 * 4


def test_formats_by_config():
    from transformers import BitsAndBytesConfig

    nested = weight_format({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True})
    assert nested.bytes((64, 64)) == 64 * 32 + 65  # a byte per 64 weights, four more per 256 of those
    assert weight_format(BitsAndBytesConfig(load_in_4bit=True, llm_int8_skip_modules=[])) == weight_format(
        "nf4", head=True
    )
    assert weight_format(BitsAndBytesConfig(load_in_8bit=True)) == FORMATS["int8"]
    assert weight_format({"quant_method": "awq", "bits": 4, "group_size": 128}) == FORMATS["awq"]
    assert weight_format({"quant_method": "gguf"}) is weight_format("gguf") is weight_format(None) is None
    with pytest.raises(ValueError, match=r"'nf5' is no quantization known here: pass one of 'nf4'"):
        weight_format("nf5")
    with pytest.raises(ValueError, match="'higgs' are not known"):
        weight_format({"quant_method": "higgs"})


def test_dtypes():
    assert dtype_name("auto", {"torch_dtype": "float16"}) == dtype_name(torch.float16, {}) == "float16"
    assert dtype_name("auto", {"text_config": {"dtype": "bfloat16"}}) == "bfloat16"
    assert dtype_name("auto", {}, small(**WHOLE)) == "bfloat16"
    with pytest.raises(ValueError, match="dtype 'int3' is none"):
        dtype_name("int3", {})


# ---- what a token reads ------------------------------------------------------------------------------------------
def test_a_token_reads_all_but_the_embedding():
    checkpoint = small(**WHOLE)
    assert bytes_per_token(CONFIG, checkpoint) == checkpoint.bytes - 2 * 100 * 64


def test_a_tied_head_is_read():
    tied = CONFIG | {"tie_word_embeddings": True}
    shapes = {name: shape for name, shape in WHOLE.items() if name != "lm_head__weight"}
    assert bytes_per_token(tied, small(**shapes)) == bytes_per_token(CONFIG, small(**WHOLE))
    form = weight_format("int8", head=True)
    assert bytes_per_token(tied, small(**shapes), form=form) == bytes_per_token(CONFIG, small(**WHOLE), form=form)


def test_encoders_are_read_once():
    shapes = WHOLE | {"model__vision_tower__layers__0__weight": (64, 64), "model__encoder__layers__0__weight": (64, 64)}
    assert bytes_per_token(CONFIG, small(**shapes)) == bytes_per_token(CONFIG, small(**WHOLE))


def cost_ratio(target, draft, draft_form=None):
    ours, theirs = bytes_per_token(*target), bytes_per_token(*draft, form=draft_form)
    return theirs / ours if ours and theirs else None


def test_the_cost_ratio_is_that_of_bytes_read():
    tall = small(**WHOLE | {f"model__layers__{i}__mlp__up_proj__weight": (128, 64) for i in range(9)})
    ours, theirs = bytes_per_token(CONFIG, tall), bytes_per_token(CONFIG, small(**WHOLE))
    assert cost_ratio((CONFIG, tall), (CONFIG, small(**WHOLE))) == theirs / ours < 0.5
    assert cost_ratio((CONFIG, tall), (CONFIG, small(**WHOLE)), draft_form=FORMATS["int8"]) < theirs / ours
    assert cost_ratio((CONFIG, tall), (CONFIG, Checkpoint({}, 5))) is None


def test_only_active_experts_are_read():
    sizes = {"num_local_experts": 8, "num_experts_per_tok": 2}
    shapes = {f"model__layers__0__mlp__experts__{i}__w1__weight": (64, 64) for i in range(8)}
    assert bytes_per_token(CONFIG | sizes, small(**shapes)) == 2 * 2 * 64 * 64


# ---- caches ------------------------------------------------------------------------------------------------------
LONG = 90  # over every window, and what our cache keeps behind it


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_cache_is_the_models(family):
    """Full layers to the byte. A sliding one holds in ours more than in transformers', and no more than estimated."""
    model = build(family)
    cache = DynamicCache(config=model.config)
    batch = prompts([LONG, LONG])
    model(**batch, **{CACHE_NAME: cache})
    stock = [x.keys.nbytes + x.values.nbytes for x in cache.layers]
    windows = [getattr(x, "sliding_window", None) for x in cache.layers]
    layout = Layout(batch["attention_mask"], 2, LONG)
    ours = [sum(x.nbytes for x in layer.buffers) for layer in adopt([(cache, layout, [0, 1])], room=0).kv]
    estimates = kv_bytes_by_layer(config_of(model), 2, LONG)
    assert len(estimates) == len(stock)
    for estimate, real, window, held in zip(estimates, stock, windows, ours, strict=True):
        if window is None:
            assert estimate == real and held == real // LONG * (-(-LONG // ROUND) * ROUND)
        else:
            per_position = real // (window - 1)
            assert estimate == per_position * (window + BEHIND_WINDOW)
            assert real < estimate <= held <= estimate + per_position * ROUND


def test_short_texts_do_not_fill_a_window():
    config = config_of(build("mistral"))
    assert kv_bytes(config, 1, 5) == 5 * kv_bytes(config, 1, 1)
    assert kv_bytes(config, 1, 500) == kv_bytes(config, 1, 5000)
    assert kv_bytes(config, 3, 7, dtype="bfloat16") * 2 == kv_bytes(config, 3, 7) == 3 * kv_bytes(config, 1, 7)


def test_configs_that_do_not_list_their_layers():
    """As they stand on the Hub, without the defaults that the config classes add."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 4, "dtype": "bfloat16"}
    one = 2 * 64 * 2
    assert kv_bytes(sizes, 1, 10_000) == 4 * 10_000 * one
    window = sizes | {"sliding_window": 400}
    assert kv_bytes(window, 1, 10_000) == 4 * 500 * one
    assert kv_bytes(window | {"model_type": "gemma2"}, 1, 10_000) == (2 * 500 + 2 * 10_000) * one
    assert kv_bytes(window | {"sliding_window_pattern": 4}, 1, 10_000) == (3 * 500 + 10_000) * one
    assert kv_bytes(window | {"use_sliding_window": False}, 1, 10_000) == 4 * 10_000 * one
    kinds = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
    assert kv_bytes(sizes | {"layer_types": kinds}, 1, 10_000) == 2 * 10_000 * one
    assert kv_bytes(sizes | {"num_kv_shared_layers": 3}, 1, 10_000) == 10_000 * one
    assert kv_bytes({"text_config": sizes}, 1, 10) == kv_bytes(sizes, 1, 10)
    with pytest.raises(ValueError, match="names no number of layers"):
        kv_bytes({"model_type": "strange", "dtype": "float32"}, 1, 1)


def test_a_long_prefill_outweighs_a_block_of_logits():
    config = config_of(tiny())
    assert activation_bytes(config, 1, 1) == 2 * 6 * 64 * 4
    assert activation_bytes(config, 2, 1000) == 2 * 1000 * (4 * 32 + 3 * 64) * 4 + 2 * 64 * 4


# ---- the real models ---------------------------------------------------------------------------------------------
@pytest.mark.real
def test_real_models(real_models):
    """Measured: bitsandbytes' codes alone 723.65 MB (get_memory_footprint counts no scales), a saved nf4 draft with
    its head 550 MB, int8 903 MB, an AWQ checkpoint of group 128 731 MB."""

    def facts(name):
        config = json.loads((real_models / name / "config.json").read_text())
        return config, read_checkpoint(real_models / name, config)

    draft, target, tied = (facts(n) for n in ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b", "smollm2-135m"))

    def megabytes(side, form=None):
        return weight_bytes(*side, form=form) / 1e6

    assert [round(megabytes(side)) for side in (draft, target, tied)] == [1260, 3554, 269]
    codes = dataclasses.replace(FORMATS["nf4"], group_bytes=0)
    assert megabytes(draft, codes) == pytest.approx(723.65, abs=0.1)
    assert megabytes(draft, dataclasses.replace(codes, head=True)) == pytest.approx(519, abs=1)
    assert megabytes(draft, weight_format("nf4", head=True)) == pytest.approx(550, abs=1)
    assert megabytes(draft, FORMATS["int8"]) == pytest.approx(903, abs=1)
    assert megabytes(draft, FORMATS["awq"]) == pytest.approx(731, abs=1)
    assert kv_bytes(target[0], 1, 1) == 28_672 and kv_bytes(draft[0], 1, 1) == 12_288
    assert cost_ratio(target, draft) == pytest.approx((1260.33 - 272.27) / (3554.18 - 466.75), abs=1e-4)
