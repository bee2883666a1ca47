"""Quantized drafts and targets through load_pair: the text is plain's, the head is quantized, nothing is disturbed."""

import subprocess
import sys

import pytest
import torch
from quantization_toys import DRAFTING, GREEDY, IDS, make, tensors_of
from toys import noisy, plain
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hf_specgen.pairing.loading import load_pair
from hf_specgen.quantization import NAMES, Backend, backend_of

PACKAGE = {"nf4": "bitsandbytes", "fp4": "bitsandbytes", "int8": "bitsandbytes"}
PACKAGE |= {"torchao-int8": "torchao", "int4": "torchao"}
CPU = torch.device("cpu")


@pytest.fixture(params=PACKAGE)
def name(request):
    pytest.importorskip(PACKAGE[request.param])
    return request.param


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def folder(request, tmp_path):
    return make(tmp_path / "model", tied=request.param)


def load(name, folder, **kwargs):
    backend = backend_of(name, folder)
    backend.check([CPU])
    return backend.load(folder, {"": CPU}, device=CPU, **kwargs)


def test_greedy_text_is_plains(name, folder):
    pair = load_pair(folder, folder, draft_quantization=name)
    out = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **GREEDY))
    assert out.spec_stats.acceptance_rate > 0.1, "the draft says what the target says, now and then"
    assert pair.quantization == ("dense", name)


def test_the_head_is_quantized_and_the_embedding_is_not(name, folder):
    draft, dense = load(name, folder, draft=True), load(None, folder)
    head, embedding = draft.get_output_embeddings(), draft.get_input_embeddings()
    assert type(head) is not torch.nn.Linear or type(head.weight.data) is not torch.Tensor
    assert torch.equal(embedding.weight, dense.get_input_embeddings().weight.to(embedding.weight.dtype))
    x = torch.randn(2, 3, head.in_features, dtype=draft.dtype)
    with torch.no_grad():
        got, wanted = head(x).float(), dense.get_output_embeddings()(x.float())
    assert torch.cosine_similarity(got, wanted, dim=-1).min() > 0.98
    assert not draft.training and not any(module.training for module in draft.modules())


def test_a_targets_head_stays_as_the_back_end_leaves_it(name, folder):
    head = load(name, folder, draft=False).get_output_embeddings()
    assert type(head) is torch.nn.Linear and type(head.weight.data) is torch.Tensor


def test_decoding_leaves_the_draft_alone(name, folder, monkeypatch):
    """What a quantized module does not survive is never done; its tensors are the same bits after a call."""
    pair = load_pair(folder, folder, draft_quantization=name)
    pair.generate(**DRAFTING)  # on a CPU, the first forward repacks 4-bit weights
    before = {key: x.clone() for key, x in tensors_of(pair.draft).items()}
    assert len(before) > len(list(pair.draft.parameters()))

    def never(*args, **kwargs):
        raise AssertionError("done to a quantized draft")

    for method in ("state_dict", "to", "float", "half", "bfloat16", "cpu", "cuda", "_apply", "__deepcopy__"):
        monkeypatch.setattr(torch.nn.Module, method, never, raising=False)
    pair.generate(**DRAFTING, return_dict_in_generate=True)
    pair.generate(**DRAFTING | {"do_sample": True}, generator=torch.Generator().manual_seed(0))
    after = tensors_of(pair.draft)
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], x) for key, x in before.items())


@pytest.mark.parametrize("name", ["nf4", "int8"])
def test_a_quantized_target_gives_its_own_plain_text(name, tmp_path):
    pytest.importorskip("bitsandbytes")
    pair = load_pair(make(tmp_path / "model"), tmp_path / "model", target_quantization=name)
    out = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **GREEDY))
    assert out.spec_stats.acceptance_rate > 0.1 and pair.quantization == (name, "dense")


def test_each_side_has_its_own_quantization(folder):
    """Bug 69: a draft must neither inherit the target's quantization nor lose its own."""
    pytest.importorskip("bitsandbytes")
    pair = load_pair(folder, folder, target_quantization="nf4")
    assert pair.target.config.quantization_config.load_in_4bit
    assert not hasattr(pair.draft.config, "quantization_config")
    pair = load_pair(folder, folder, draft_quantization="int8")
    assert not hasattr(pair.target.config, "quantization_config")
    assert pair.draft.config.quantization_config.load_in_8bit
    pair = load_pair(folder, folder, draft_quantization="int8", target_quantization="nf4")
    assert pair.target.config.quantization_config.load_in_4bit
    assert not pair.target.config.quantization_config.load_in_8bit
    assert pair.draft.config.quantization_config.load_in_8bit


def test_an_eight_bit_target_with_an_adapter(tmp_path):
    """Bug 71."""
    pytest.importorskip("bitsandbytes")
    peft = pytest.importorskip("peft")
    folder = make(tmp_path / "model")
    target = load("int8", folder)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    target = peft.get_peft_model(target, lora).eval()
    pair = load_pair(target, noisy(AutoModelForCausalLM.from_pretrained(folder)))
    out = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(target.get_base_model(), **GREEDY))


def test_eight_bits_do_not_talk_in_every_layer(tmp_path, caplog):
    pytest.importorskip("bitsandbytes")
    pair = load_pair(make(tmp_path / "model"), tmp_path / "model", draft_quantization="int8")
    caplog.clear()
    pair.generate(**DRAFTING)
    assert not [record for record in caplog.records if record.name.startswith("bitsandbytes")]


def test_a_config_object_is_taken_as_it_is(folder):
    pytest.importorskip("bitsandbytes")
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="fp4", llm_int8_skip_modules=["lm_head", "up_proj"]
    )
    pair = load_pair(folder, folder, draft_quantization=config)
    assert type(pair.draft.model.layers[0].mlp.up_proj) is torch.nn.Linear
    assert type(pair.draft.get_output_embeddings()) is torch.nn.Linear, "the config says so"
    assert torch.equal(pair.generate(**DRAFTING), plain(pair.target, **GREEDY))


@pytest.mark.parametrize("tied", [False, True])
def test_layers_that_four_bits_cannot_run_on_a_cpu_stay_dense(tied, tmp_path):
    """96 inputs are one and a half blocks, 100 outputs no multiple of 32: bitsandbytes fails in the first forward."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    folder = make(tmp_path / "model", tied=tied, intermediate_size=96, vocab_size=100, eos_token_id=99)
    draft, dense = load("nf4", folder, draft=True), load(None, folder)
    layer = draft.model.layers[0].mlp
    assert type(layer.down_proj) is torch.nn.Linear and type(draft.get_output_embeddings()) is torch.nn.Linear
    assert type(layer.up_proj) is bitsandbytes.nn.Linear4bit
    draft.save_pretrained(tmp_path / "saved")
    with torch.no_grad():
        got, wanted = draft(IDS).logits, dense(IDS).logits
    assert torch.cosine_similarity(got, wanted, dim=-1).mean() > 0.8
    again = load(None, tmp_path / "saved", draft=True)
    with torch.no_grad():
        assert torch.equal(again(IDS).logits, got)


def test_the_group_of_int4_is_one_that_the_layers_have(tmp_path):
    """96 inputs: with torchao's usual 128 the layers would stay dense without a word."""
    pytest.importorskip("torchao")
    draft = load("int4", make(tmp_path / "model", hidden_size=96), draft=True)
    layers = [m for m in draft.modules() if type(m) is torch.nn.Linear]
    assert len(layers) == 15 and not any(type(layer.weight.data) is torch.Tensor for layer in layers)


def test_a_saved_checkpoint_says_itself_how_it_is_quantized(folder, tmp_path):
    pytest.importorskip("bitsandbytes")
    load("nf4", folder, draft=True).save_pretrained(tmp_path / "saved")
    for name in (None, "nf4"):
        assert backend_of(name, tmp_path / "saved").name == "nf4"
    with pytest.raises(ValueError, match="quantized already"):
        backend_of("int8", tmp_path / "saved")
    pair = load_pair(folder, tmp_path / "saved")
    assert torch.equal(pair.generate(**DRAFTING), plain(pair.target, **GREEDY)) and pair.quantization[1] == "nf4"


def test_a_config_object_is_mended_too(tmp_path):
    pytest.importorskip("bitsandbytes")
    folder = make(tmp_path / "model", intermediate_size=96)
    pair = load_pair(folder, folder, draft_quantization=BitsAndBytesConfig(load_in_4bit=True))
    assert torch.equal(pair.generate(**DRAFTING), plain(pair.target, **GREEDY))


def test_awqs_package_is_not_imported_by_others(folder):
    """It patches transformers and safetensors when it is imported."""
    pytest.importorskip("gptqmodel")
    code = f"""
import sys
from hf_specgen.pairing.loading import load_pair
from hf_specgen.quantization.awq import Awq
Awq().check()
load_pair({str(folder)!r}, {str(folder)!r})
assert "gptqmodel" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", PACKAGE)
def test_on_a_gpu(name, folder):
    pytest.importorskip(PACKAGE[name])
    pair = load_pair(folder, folder, draft_quantization=name, device_map={"": 0})
    assert pair.draft.device == pair.target.device == torch.device("cuda", 0)
    inputs = {key: x.cuda() if isinstance(x, torch.Tensor) else x for key, x in DRAFTING.items()}
    out = pair.generate(**inputs, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair.target, **inputs)) and out.spec_stats.acceptance_rate > 0.1


def test_unknown_names_and_things(folder):
    with pytest.raises(ValueError, match=r"'int3' is no quantization known here.*nf4"):
        backend_of("int3", folder)
    with pytest.raises(ValueError, match="not a int"):
        backend_of(4, folder)
    with pytest.raises(ValueError, match=r"no AWQ checkpoint.*hf-specgen quantize .* --to awq"):
        backend_of("awq", folder)
    with pytest.raises(FileNotFoundError, match="no GGUF file"):
        load_pair(folder, folder, draft_quantization="gguf")
    assert type(backend_of(None, folder)) is Backend


@pytest.mark.parametrize("name", PACKAGE)
def test_a_missing_package_is_told_with_versions_that_keep_torch(name, folder, monkeypatch):
    monkeypatch.setattr("hf_specgen.quantization.base.installed", lambda package: False)
    torch_version = torch.__version__.partition("+")[0]
    with pytest.raises(ImportError, match=rf'pip install "{PACKAGE[name]}.* "torch=={torch_version}"'):
        load_pair(folder, folder, draft_quantization=name)


def test_a_device_that_a_back_end_lacks(folder, monkeypatch):
    monkeypatch.setattr("hf_specgen.quantization.base.installed", lambda package: True)
    with pytest.raises(ValueError, match="int4 does not run on mps"):
        backend_of("int4", folder).check([torch.device("mps")])


@pytest.mark.parametrize("name", ["nf4", "torchao-int8", "int4"])
def test_float64_is_refused(name, folder):
    with pytest.raises(ValueError, match="does not work in float64"):
        backend_of(name, folder).dtype(torch.float64, CPU)


def test_layers_that_no_group_of_int4_divides_stay_dense(tmp_path):
    pytest.importorskip("torchao")
    draft = load("int4", make(tmp_path / "model", intermediate_size=112), draft=True)
    layer = draft.model.layers[0].mlp
    assert type(layer.down_proj.weight.data) is torch.Tensor and type(layer.up_proj.weight.data) is not torch.Tensor
    assert draft(IDS).logits.isfinite().all()


def test_a_gguf_is_not_quantized_while_loading(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    for quantization in (*PACKAGE, "awq", BitsAndBytesConfig(load_in_8bit=True)):
        with pytest.raises(ValueError, match="is GGUF"):
            backend_of(quantization, tmp_path / "a.gguf")


def test_a_config_object_that_contradicts_the_checkpoint(tmp_path):
    (tmp_path / "config.json").write_text(
        '{"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}'
    )
    with pytest.raises(ValueError, match=r"quantized already.*other bits"):
        backend_of(BitsAndBytesConfig(load_in_8bit=True), tmp_path)
    assert backend_of(BitsAndBytesConfig(load_in_4bit=True), tmp_path).name == "fp4"


def test_a_model_whose_layers_are_not_reached_is_told(tmp_path):
    pytest.importorskip("torchao")
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=256)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    with pytest.warns(UserWarning, match="torchao-int8 quantized no layer of GPT2LMHeadModel.*Conv1D"):
        load("torchao-int8", tmp_path / "gpt2", draft=True)


def test_packed_weights_without_their_scales(tmp_path):
    pytest.importorskip("bitsandbytes")
    from safetensors.torch import load_file, save_file

    target = make(tmp_path / "target")
    load("nf4", target, draft=True).save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    tensors = {name: x for name, x in load_file(file).items() if "up_proj.weight.absmax" not in name}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="without its scales"):
        load_pair(target, tmp_path / "saved")


def test_names_whose_sizes_are_known_are_those_that_load():
    from hf_specgen.checkpoints.memory import FORMATS

    assert {*FORMATS, "gguf"} == {*NAMES}
