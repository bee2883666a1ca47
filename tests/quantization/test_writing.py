"""hf-specgen quantize's work: what it writes loads, is near the original, and is all there or not at all."""

import json
from pathlib import Path

import pytest
import torch
from fake_hub import COMMIT
from huggingface_hub import ModelCard
from quantization_toys import DRAFTING, GREEDY, make
from toys import plain, toy_tokenizer
from transformers import AutoModelForCausalLM

from hf_specgen.pairing.loading import load_pair
from hf_specgen.quantization import writing
from hf_specgen.quantization.awq_format import save_awq
from hf_specgen.quantization.steps import Steps
from hf_specgen.quantization.writing import METHODS, NotLikeOriginalError, write_quantized

PACKAGE = {"nf4": "bitsandbytes", "fp4": "bitsandbytes", "int8": "bitsandbytes"}
PACKAGE |= {"torchao-int8": "torchao", "int4": "gptqmodel", "awq": "gptqmodel"}


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def draft(request, tmp_path):
    folder = make(tmp_path / "draft", tied=request.param)
    toy_tokenizer().save_pretrained(folder)
    (folder / "LICENSE").write_text("free")
    return folder


@pytest.mark.parametrize("method", METHODS)
def test_what_is_written_drafts(method, draft, tmp_path):
    pytest.importorskip(PACKAGE[method])
    out = tmp_path / "out"
    written = write_quantized(draft, out, method)
    assert written.likeness > 0.85 and written.bytes_after < 0.75 * written.bytes_before
    files = {file.name for file in out.iterdir()}
    assert files >= {"model.safetensors", "config.json", "tokenizer.json", "LICENSE", "README.md"}
    assert sorted(tmp_path.iterdir()) == [draft, out], "nothing else stays"
    card = (out / "README.md").read_text()
    assert f"hf-specgen quantize draft --to {method}" in card and METHODS[method] in card and "MB, before" in card
    assert "base_model" not in card, "the name of a folder is no id on the Hub"
    assert 'load_pair("TARGET", "DRAFT")' in card and "(below float32: but for near ties)" in card
    pair = load_pair(draft, out)
    result = pair.generate(**DRAFTING, return_dict_in_generate=True)
    assert torch.equal(result.sequences, plain(pair.target, **GREEDY))
    assert result.spec_stats.acceptance_rate > 0.1
    head = pair.draft.get_output_embeddings()
    assert type(head) is not torch.nn.Linear or type(head.weight.data) is not torch.Tensor


def test_a_draft_from_the_hub_names_what_it_was_made_from(tmp_path):
    pytest.importorskip("bitsandbytes")
    folder = make(tmp_path / "models--org--small" / "snapshots" / COMMIT, tied=True)
    toy_tokenizer().save_pretrained(folder)
    write_quantized(folder, tmp_path / "out", "nf4")
    data = ModelCard.load(tmp_path / "out" / "README.md").data
    assert (data.base_model, data.base_model_relation) == ("org/small", "quantized")
    assert COMMIT not in (tmp_path / "out" / "README.md").read_text().split("command")[0]


@pytest.mark.parametrize("backend, dtype", [("torch_awq", torch.float32), ("auto", torch.bfloat16)])
def test_the_awq_format_is_read_as_it_was_meant(backend, dtype, draft, tmp_path):
    """gptqmodel's layers compute what the integers stand for, to float32's precision in its plain kernel."""
    pytest.importorskip("gptqmodel")
    from transformers import AwqConfig

    from hf_specgen.quantization.rounding import restore, round_to_nearest

    write_quantized(draft, tmp_path / "out", "int4", group_size=64)
    dense = AutoModelForCausalLM.from_pretrained(draft)
    with torch.no_grad():
        for name, layer in dense.named_modules():
            if type(layer) is torch.nn.Linear and name != "lm_head":
                layer.weight.copy_(restore(*round_to_nearest(layer.weight, 64)))
    options = {"dtype": dtype, "quantization_config": AwqConfig(backend=backend, group_size=64)}
    packed = AutoModelForCausalLM.from_pretrained(tmp_path / "out", device_map={"": "cpu"}, **options)
    with torch.no_grad():
        wanted, got = dense(GREEDY["input_ids"]).logits, packed(GREEDY["input_ids"]).logits.float()
    tolerance = 0.002 if dtype == torch.float32 else 0.1
    assert (got - wanted).abs().max() < tolerance * wanted.abs().max()


def test_awq_is_loaded_in_the_kernels_dtype(draft, tmp_path):
    """float16, which most of these checkpoints name, takes a hundred times as long on a CPU."""
    pytest.importorskip("gptqmodel")
    write_quantized(draft, tmp_path / "out", "awq")
    config = json.loads((tmp_path / "out" / "config.json").read_text()) | {"dtype": "float16"}
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    for asked in ("auto", torch.float16, torch.float32):
        pair = load_pair(draft, tmp_path / "out", draft_quantization="awq", dtype=asked)
        assert pair.draft.dtype == torch.bfloat16
        assert pair.target.dtype == (torch.float32 if asked == "auto" else asked)


def test_a_failure_leaves_nothing(draft, tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    monkeypatch.setattr(writing, "LEAST_LIKENESS", 1.1)
    with pytest.raises(NotLikeOriginalError, match=r"likeness of 0\.9"):
        write_quantized(draft, tmp_path / "out", "nf4")
    assert list(tmp_path.iterdir()) == [draft]


@pytest.mark.parametrize(
    "error, options, match",
    [
        (ValueError, {"method": "int3"}, "'int3' cannot be written. Choose one of nf4"),
        (ValueError, {"method": "nf4", "group_size": 64}, "group size of its own"),
        (ValueError, {"method": "nf4", "calibration": Path("text")}, "no calibration text"),
    ],
)
def test_bad_arguments(error, options, match, draft, tmp_path):
    with pytest.raises(error, match=match):
        write_quantized(draft, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == [draft]


def test_a_folder_with_something_in_it_is_not_touched(draft, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep")
    with pytest.raises(FileExistsError, match="is there already"):
        write_quantized(draft, tmp_path / "out", "nf4")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["mine"]


def test_sources_that_cannot_be_quantized(draft, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        write_quantized(tmp_path / "nowhere", tmp_path / "out", "nf4")
    config = json.loads((draft / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "awq", "bits": 4}
    (draft / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"quantized already \(awq\)"):
        write_quantized(draft, tmp_path / "out", "nf4")


def test_group_sizes_are_those_of_the_kernels(draft, tmp_path):
    with pytest.raises(ValueError, match=r"one of 32, 64, 128, not 100"):
        write_quantized(draft, tmp_path / "out", "awq", group_size=100)
    assert list(tmp_path.iterdir()) == [draft]


@pytest.mark.parametrize(
    "spoil, match",
    [
        (lambda f, c: (f / "config.json").write_text(json.dumps(c | {"is_encoder_decoder": True})), "encoder-decoder"),
        (lambda f, c: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "pickled.*save_pretrained"),
    ],
)
def test_folders_of_another_kind(spoil, match, tmp_path):
    folder = make(tmp_path / "draft")
    spoil(folder, json.loads((folder / "config.json").read_text()))
    with pytest.raises(ValueError, match=match):
        write_quantized(folder, tmp_path / "out", "nf4")


def test_an_empty_calibration_text(tmp_path):
    (tmp_path / "empty").write_text(" ")
    with pytest.raises(ValueError, match="empty holds no text"):
        write_quantized(make(tmp_path / "draft"), tmp_path / "out", "awq", calibration=tmp_path / "empty")


def test_names_are_resolved_first(tmp_path, monkeypatch):
    pytest.importorskip("bitsandbytes")
    make(tmp_path / "draft")
    (tmp_path / "here").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "draft")
    monkeypatch.chdir(tmp_path / "here")
    written = write_quantized(Path("../link"), Path("."), "nf4")
    assert (tmp_path / "here" / "model.safetensors").is_file() and written.positions > 0
    assert "hf-specgen quantize draft --to nf4 --out here" in (tmp_path / "here" / "README.md").read_text()


def test_a_model_without_linear_layers(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=64))
    with pytest.raises(ValueError, match=r"no Linear layers to quantize.*Conv1D"):
        save_awq(model, tmp_path, None, torch.ones(1, 4, dtype=torch.long), Steps())


def test_steps_are_told_as_they_begin(draft, tmp_path):
    """For the bar: one of the rest, one a row of text, one a layer."""
    told = []
    model, steps = AutoModelForCausalLM.from_pretrained(draft), Steps(lambda *step: told.append(step), expected=3)
    steps.begin("loading")
    save_awq(model, tmp_path / "out", None, torch.ones(2, 4, dtype=torch.long), steps)
    steps.begin("comparing")
    layers = 2 * 7
    assert [what for what, _, _ in told] == ["loading", *2 * ["calibrating"], *layers * ["quantizing"], "comparing"]
    assert [done for _, done, _ in told] == [*range(layers + 4)] and told[-1][2] == layers + 4
