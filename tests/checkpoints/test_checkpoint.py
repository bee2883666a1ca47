"""What safetensors headers say, and what is wrong with a folder."""

import json
import subprocess
import sys

import pytest
import tensor_table
import torch
from pairing_toys import make_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_specgen.checkpoints import checkpoint as module
from hf_specgen.checkpoints.checkpoint import Checkpoint, CheckpointError, Tensor, read_checkpoint, read_headers
from hf_specgen.checkpoints.expected import TABLE, tensor_names

WEIGHTS = "model.safetensors"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def read(folder, **options):
    return read_checkpoint(folder, config_of(folder), **options)


@pytest.fixture
def transformers_is_not_asked(monkeypatch):
    def refuse(*_):
        raise AssertionError("the table should have been enough")

    monkeypatch.setattr(module, "ask_transformers", refuse)


def rewrite(folder, change):
    tensors = load_file(folder / WEIGHTS)
    save_file(change(tensors), folder / WEIGHTS, metadata={"format": "pt"})


# ---- facts -------------------------------------------------------------------------------------------------------
def test_the_facts_are_the_models(folder, transformers_is_not_asked):
    model = make_model().to(torch.bfloat16)
    found = read(folder("model", model))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.bytes == model.get_memory_footprint(return_buffers=False) == found.bytes_by_dtype["bfloat16"]
    assert found.dtype == "bfloat16"
    assert {name: tensor.shape for name, tensor in found.tensors.items()} == {
        name: tuple(x.shape) for name, x in model.state_dict().items()
    }
    assert found.missing == found.unexpected == () and found.quantization is found.gguf is None


def test_most_bytes_decide_the_dtype(folder):
    path = folder("mixed", make_model())
    rewrite(path, lambda tensors: {n: x.half() if x.dim() > 1 else x for n, x in tensors.items()})
    found = read(path)
    assert found.dtype == "float16" and [*found.bytes_by_dtype] == ["float16", "float32"]


def test_shards_are_one_checkpoint(folder):
    model = make_model()
    whole, path = read(folder("whole", model)), folder("sharded", model)
    (path / WEIGHTS).unlink()
    model.save_pretrained(path, max_shard_size="8KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    assert read(path) == whole


def test_headers_from_elsewhere(folder):
    """A hub repository's headers, say: the same facts, without a folder."""
    path = folder("model")
    tensors = {name: Tensor(t.dtype, t.shape) for name, t in read_headers([path / WEIGHTS]).items()}
    assert Checkpoint.of(tensors, config_of(path)) == read(path)
    del tensors["model.norm.weight"]
    assert Checkpoint.of(tensors, config_of(path)).missing is None  # nobody has confirmed it


def test_no_torch_is_imported(folder):
    path = folder("model")
    code = f"""
import sys, json, types
package = types.ModuleType("hf_specgen")
package.__path__ = [{str(TABLE.parent.parent)!r}]
sys.modules["hf_specgen"] = package
from hf_specgen.checkpoints.checkpoint import read_checkpoint
import hf_specgen.checkpoints.memory
assert read_checkpoint({str(path)!r}, json.load(open({str(path / "config.json")!r}))).missing == ()
assert not {{"torch", "transformers"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- the table ---------------------------------------------------------------------------------------------------
def test_the_table_is_what_transformers_says():
    table = json.loads(TABLE.read_text())
    assert set(table) == set(tensor_table.FAMILIES)
    for name in tensor_table.FAMILIES:
        assert table[name] == tensor_table.family(name), f"{name}: run python tests/checkpoints/tensor_table.py"


@pytest.mark.parametrize("name", tensor_table.FAMILIES)
def test_every_setting_of_a_family(name):
    """With biases and without, tied and not, another number of layers: as the built model has it."""
    for on in (False, True):
        flags = {flag: on for flag in tensor_table.FLAGS if hasattr(CONFIG_MAPPING[name](), flag)}
        config = CONFIG_MAPPING[name](num_hidden_layers=5, tie_word_embeddings=on, **flags)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        needed, allowed = tensor_names(json.loads(config.to_json_string()))
        assert needed == set(model.state_dict()) - (allowed if on else set())
        assert bool(allowed) == on


# ---- missing and unexpected --------------------------------------------------------------------------------------
def test_missing_and_unexpected(folder):
    path = folder("model")
    lost, extra = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate.extra"
    rewrite(path, lambda tensors: {extra if n == lost else n: x for n, x in tensors.items()})
    found = read(path)
    assert found.missing == (lost,) and found.unexpected == (extra,)


def test_a_tied_head_may_be_there_or_not(folder, transformers_is_not_asked):
    path = folder("tied", make_model(tie_word_embeddings=True))
    assert "lm_head.weight" not in read(path).tensors and read(path).missing == ()
    rewrite(path, lambda tensors: tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert read(path).unexpected == ()


def test_an_untied_head_must_be_there(folder):
    path = folder("headless", make_model(tie_word_embeddings=False))
    rewrite(path, lambda tensors: {n: x for n, x in tensors.items() if n != "lm_head.weight"})
    assert read(path).missing == ("lm_head.weight",)


def test_outside_the_table_transformers_is_asked(tmp_path):
    """Its experts have other names in files than in the model: no table of names would do."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = MixtralConfig(vocab_size=64, num_key_value_heads=1, num_local_experts=2, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert tensor_names(config_of(tmp_path)) is None
    found = read(tmp_path)
    assert found.missing == found.unexpected == ()
    rewrite(tmp_path, lambda tensors: {n: x for n, x in tensors.items() if "layers.1.input_layernorm" not in n})
    assert read(tmp_path).missing == ("model.layers.1.input_layernorm.weight",)


def test_a_class_that_transformers_lacks_is_not_judged(folder):
    path = folder("remote")
    config = config_of(path) | {"model_type": "nobodys", "architectures": ["NobodysForCausalLM"]}
    assert read_checkpoint(path, config).missing is None


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_an_edited_config(tmp_path, family):
    """A vocabulary size that was changed to match another model's: by the table, and by transformers."""
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](vocab_size=64, num_key_value_heads=1, **sizes))
    model.save_pretrained(tmp_path)
    edited = config_of(tmp_path) | {"vocab_size": 70}
    (tmp_path / "config.json").write_text(json.dumps(edited))
    with pytest.raises(CheckpointError, match=r"\.weight is 64 × 16 in the checkpoint, 70 × 16 by config"):
        read(tmp_path)


# ---- quantized ---------------------------------------------------------------------------------------------------
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 8}
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "_load_in_8bit": False}


def awq(name, x):
    n_out, n_in = x.shape
    return {
        name.replace("weight", "qweight"): torch.zeros(n_in, n_out // 8, dtype=torch.int32),
        name.replace("weight", "qzeros"): torch.zeros(n_in // 8, n_out // 8, dtype=torch.int32),
        name.replace("weight", "scales"): torch.zeros(n_in // 8, n_out, dtype=torch.float16),
    }


def bnb(name, x):
    return {
        name: torch.zeros(x.numel() // 2, 1, dtype=torch.uint8),
        f"{name}.absmax": torch.zeros(max(1, x.numel() // 64)),
        f"{name}.quant_map": torch.zeros(16),
        f"{name}.quant_state.bitsandbytes__nf4": torch.zeros(90, dtype=torch.uint8),
    }


@pytest.mark.parametrize(("settings", "pack"), [(AWQ, awq), (BNB, bnb)])
def test_quantized_is_judged_by_module(folder, transformers_is_not_asked, settings, pack):
    model = make_model(tie_word_embeddings=False)
    path = folder("quantized", model)

    def quantize(tensors):
        packed = {}
        for name, x in tensors.items():
            packed |= pack(name, x) if "_proj" in name else {name: x}
        return packed

    rewrite(path, quantize)
    config = config_of(path) | {"quantization_config": settings}
    found = read_checkpoint(path, config)
    assert found.missing == found.unexpected == ()
    assert (found.quantization.method, found.quantization.bits) == (settings["quant_method"], 4)
    assert found.parameters == sum(p.numel() for p in model.parameters())

    strange = {"model.layers.0.self_attn.k_scale": torch.ones(1), "model.layers.1.mlp.up_proj.qweight": torch.ones(1)}
    rewrite(path, lambda tensors: {n: x for n, x in tensors.items() if "layers.0.mlp.up_proj" not in n} | strange)
    found = read_checkpoint(path, config)
    assert found.missing == ("model.layers.0.mlp.up_proj.weight",)
    assert found.unexpected == ("model.layers.1.mlp.up_proj.qweight",)  # a scale of the cache has its place


def test_methods_say_their_bits_in_their_own_words():
    groups = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    for told, bits in [
        ({"quant_method": "fp8"}, 8),
        ({"quant_method": "mxfp4"}, 4),
        ({"quant_method": "gptq", "bits": 3}, 3),
        ({"load_in_8bit": True, "quant_method": "bitsandbytes"}, 8),
        (groups, 4),
        ({"quant_method": "spqr"}, None),
    ]:
        assert module.StoredQuantization.of({"quantization_config": told}).bits == bits, told


# ---- broken folders ----------------------------------------------------------------------------------------------
def cut(path, to):
    path.write_bytes(path.read_bytes()[:to])


def test_half_a_file_names_both_sizes(folder):
    path = folder("half")
    size = (path / WEIGHTS).stat().st_size
    cut(path / WEIGHTS, size - 100)
    with pytest.raises(CheckpointError, match=f"{size - 100} of {size} bytes"):
        read(path)


def test_cut_inside_the_header(folder):
    path = folder("head")
    cut(path / WEIGHTS, 50)
    with pytest.raises(CheckpointError, match="ends inside its header: it is 50 bytes long"):
        read(path)


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"])
def test_no_safetensors_file(folder, content):
    path = folder("noise")
    (path / WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors (is no safetensors file|is corrupt)"):
        read(path)


def test_a_header_of_garbage(folder):
    path = folder("garbage")
    raw = bytearray((path / WEIGHTS).read_bytes())
    raw[8:40] = b"\x00" * 32
    (path / WEIGHTS).write_bytes(raw)
    with pytest.raises(CheckpointError, match="no safetensors header"):
        read(path)


def test_too_long(folder):
    path = folder("long")
    with (path / WEIGHTS).open("ab") as stream:
        stream.write(b"more")
    with pytest.raises(CheckpointError, match="is corrupt"):
        read(path)


def test_git_lfs_pointer(folder):
    path = folder("pointer")
    (path / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:1234\nsize 988097824\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read(path)


def test_a_shard_that_is_not_there(folder):
    model, path = make_model(), folder("shards")
    (path / WEIGHTS).unlink()
    model.save_pretrained(path, max_shard_size="8KB")
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.rename(path / (gone.name + ".incomplete"))
    with pytest.raises(CheckpointError, match=rf"lacks 1 of the .* {gone.name} \({gone.name}.incomplete is still"):
        read(path)


def test_a_download_that_stopped(folder):
    path = folder("partial")
    kept = path / ".cache" / "huggingface" / "download"
    kept.mkdir(parents=True)
    (path / WEIGHTS).rename(kept / "abc.incomplete")
    with pytest.raises(CheckpointError, match=r"half-downloaded \(abc.incomplete is still there\)"):
        read(path)


def test_pickled_weights_only_when_asked_for(folder):
    path = folder("pickled")
    (path / WEIGHTS).unlink()
    torch.save({"a": torch.zeros(3)}, path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="allow_pickle=True"):
        read(path)
    found = read(path, allow_pickle=True)
    assert found.pickled and found.parameters is found.missing is None
    assert found.bytes == (path / "pytorch_model.bin").stat().st_size


def test_no_weights(folder):
    path = folder("empty")
    (path / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match="holds no weights"):
        read(path)
    (path / "adapter_model.safetensors").touch()
    with pytest.raises(CheckpointError, match="holds an adapter"):
        read(path)


def test_gguf_alone(folder):
    path = folder("gguf")
    (path / WEIGHTS).rename(path / "q4.gguf")
    found = read(path)
    assert found.gguf == "q4.gguf" and found.quantization.method == "gguf" and found.parameters is None


@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "size"),
    [("qwen2.5-coder-1.5b", 3554176000), ("qwen2.5-coder-0.5b", 1260334848), ("smollm2-135m", 269030016)],
)
def test_real_checkpoints(real_models, transformers_is_not_asked, name, size):
    found = read(real_models / name)
    assert (found.bytes, found.dtype, found.missing, found.unexpected) == (size, "bfloat16", (), ())


def test_transformers_is_asked_once_about_the_same_files(tmp_path, monkeypatch):
    from hf_specgen.checkpoints import expected

    asked = []
    original = expected.model_class
    monkeypatch.setattr(expected, "model_class", lambda config: asked.append(config) or original(config))
    make_model().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert expected.ask_transformers(tmp_path, config) == expected.ask_transformers(tmp_path, config)
    assert len(asked) == 1
    (tmp_path / "config.json").write_text(json.dumps(config, indent=1))
    expected.ask_transformers(tmp_path, config)
    assert len(asked) == 2
