"""Checkpoints that are quantized already: GGUF files, llm-compressor's format, AWQ with a config of one's own."""

import pytest
import torch
from quantization_toys import DRAFTING, GREEDY, IDS, make
from toys import plain
from transformers import AutoModelForCausalLM

from hf_specgen.benchmarking.loading import Side, load
from hf_specgen.pairing import check_pair
from hf_specgen.pairing.loading import load_pair
from hf_specgen.planning.plan import plan_pair
from hf_specgen.quantization import backend_of
from hf_specgen.quantization.rounding import restore, round_to_nearest
from hf_specgen.quantization.writing import write_quantized

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "input_layernorm": "attn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def qwen(folder):
    from transformers import Qwen2Config

    return make(folder, config_class=Qwen2Config)


def write_gguf(folder, file):
    """The Qwen2 model in `folder` as 8-bit GGUF, with a tokenizer of 256 words."""
    gguf = pytest.importorskip("gguf")
    model = AutoModelForCausalLM.from_pretrained(folder)
    config, writer = model.config, gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["a", "b", "ab", "abb", *(f"w{i}" for i in range(4, config.vocab_size))])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges(["a b", "ab b"])
    writer.add_eos_token_id(255)
    for name, x in model.state_dict().items():
        for ours, theirs in GGUF_NAMES.items():
            name = name.replace(ours, theirs)
        if x.dim() == 2:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(name, gguf.quants.quantize(x.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, x.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("named", [False, True], ids=["as it is", "gguf"])
@pytest.mark.parametrize("alone", [False, True], ids=["beside config.json", "alone"])
def test_gguf(alone, named, tmp_path):
    target = qwen(tmp_path / "target")
    (tmp_path / "draft").mkdir()
    file = write_gguf(target, tmp_path / "draft" / "draft.gguf")
    if not alone:
        (tmp_path / "draft" / "config.json").write_text((target / "config.json").read_text())
    quantization = "gguf" if named else None
    for path in (file, file.parent):
        report = check_pair(path, path)
        assert report.verdict == ("exact" if alone else "unknown"), "no tokenizer lies beside config.json"
        assert plan_pair(target, path).draft_device is not None
        pair = load_pair(target, path, draft_quantization=quantization)
        out = pair.generate(**DRAFTING, return_dict_in_generate=True)
        assert torch.equal(out.sequences, plain(pair.target, **GREEDY))
        assert out.spec_stats.acceptance_rate > 0.5
        assert pair.draft.dtype == torch.bfloat16, "float32, the loader's own, takes twice the memory"
        assert pair.quantization == ("dense", "gguf")
        side = Side("draft", path, "auto")
        loaded = load(Side("target", target, "auto"), side, pair.tokenizer, None)
        assert loaded.assistant_tokenizer is None, "stock decoding takes none where the vocabularies are the same"
        assert side.fingerprint()["config"] and side.context_length() == pair.draft.config.max_position_embeddings
    assert load_pair(target, file, dtype=torch.float32).draft.dtype == torch.float32
    assert load_pair(file, target).tokenizer is not None or not alone


def test_a_folder_of_several_gguf_files(tmp_path):
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"2 GGUF files \(a\.gguf, b\.gguf\)"):
        load_pair(make(tmp_path / "target"), tmp_path, draft_quantization="gguf")


def test_llm_compressors_format(tmp_path):
    """Asymmetric 4-bit groups with packed zero points, as its AWQ recipe writes them."""
    pytest.importorskip("compressed_tensors")
    backend = backend_of(None, write_compressed(make(tmp_path / "target"), tmp_path / "draft"))
    assert backend.name == "compressed-tensors" == backend_of("awq", tmp_path / "draft").name
    try:
        backend.check()
    except ImportError as error:
        pytest.skip(str(error))
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    with torch.no_grad():
        for name, layer in dense.named_modules():
            if type(layer) is torch.nn.Linear and name != "lm_head":
                layer.weight.copy_(restore(*round_to_nearest(layer.weight, 128)))
    pair = load_pair(tmp_path / "target", tmp_path / "draft")
    with torch.no_grad():
        wanted, got = dense(IDS).logits, pair.draft(IDS).logits
    assert (got - wanted).abs().max() < 0.02 * wanted.abs().max()
    out = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **GREEDY)) and out.spec_stats.acceptance_rate > 0.1


def write_compressed(source, folder):
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

    model = AutoModelForCausalLM.from_pretrained(source)
    tensors = dict(model.state_dict())
    for name, layer in model.named_modules():
        if type(layer) is torch.nn.Linear and name != "lm_head":
            weight = tensors.pop(f"{name}.weight")
            codes, scale, zero = round_to_nearest(weight, 128)
            tensors[f"{name}.weight_packed"] = pack_to_int32((codes - 8).to(torch.int8), 4)
            tensors[f"{name}.weight_scale"] = scale
            tensors[f"{name}.weight_zero_point"] = pack_to_int32((zero - 8).to(torch.int8), 4, packed_dim=0)
            tensors[f"{name}.weight_shape"] = torch.tensor(weight.shape)
    weights = {"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 128}
    model.config.quantization_config = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    model.save_pretrained(folder, state_dict=tensors)
    return folder


def test_awq_with_a_config_of_ones_own(tmp_path):
    pytest.importorskip("gptqmodel")
    from transformers import AwqConfig

    target = make(tmp_path / "target")
    write_quantized(target, tmp_path / "draft", "awq")
    config = AwqConfig(backend="torch_awq")
    pair = load_pair(target, tmp_path / "draft", draft_quantization=config, dtype=torch.float32)
    assert pair.draft.dtype == torch.float32, "asked for, and that kernel runs in it"
    assert type(pair.draft.get_output_embeddings()) is torch.nn.Linear
    out = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **GREEDY)) and out.spec_stats.acceptance_rate > 0.1
    assert load_pair(target, tmp_path / "draft", draft_quantization=config).draft.dtype == torch.bfloat16
