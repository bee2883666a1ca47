"""Folders that were edited, cut, mixed up or made for something else: one sentence each, no verdict on trust."""

import json
import os

import pytest
from pairing_toys import make_model, make_tokenizer
from safetensors.torch import load_file, save_file
from transformers import LlamaForSequenceClassification, LlamaModel
from typer.testing import CliRunner

from hf_specgen.checkpoints.checkpoint import CheckpointError
from hf_specgen.cli import app
from hf_specgen.pairing import check_pair

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 12\n"
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def pair(folder):
    return folder("target", tokenizer=make_tokenizer()), folder("draft", tokenizer=make_tokenizer())


def edit(path, **changes):
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def run(*folders):
    return CliRunner().invoke(app, ["check-pair", *map(str, folders), "--json"])


# ---- config.json -------------------------------------------------------------------------------------------------
WRONG = [
    *(("vocab_size", value) for value in ("64", [64], True, 64.0, -1, NAN, INF)),
    *(("eos_token_id", value) for value in ("ab", 1.5, [[1]], [True], {"a": 1})),
    *(("max_position_embeddings", value) for value in ("4096", [1], INF)),
    *(("rope_parameters", value) for value in ("x", [1], {"rope_type": "yarn", "factor": "4"}, {"type": ["x"]})),
    *(("quantization_config", value) for value in ("awq", 5, {"config_groups": {"g": None}})),
    *(("num_hidden_layers", value) for value in ("1", 0, 1.0)),
    ("model_type", ["llama"]),
    ("architectures", 5),
    ("architectures", "LlamaForCausalLM"),
    ("speculators_config", "x"),
    ("speculators_config", {"verifier": "x"}),
    ("num_key_value_heads", "x"),
    ("head_dim", "x"),
    ("attn_config", "x"),
    ("layer_types", 5),
    ("layer_types", [None]),
    ("sliding_window", "x"),
    ("tie_word_embeddings", "no"),
    ("text_config", "x"),
]


@pytest.mark.parametrize(("key", "value"), WRONG, ids=str)
def test_a_value_of_the_wrong_type_is_named(pair, key, value):
    edit(pair[1], **{key: value})
    with pytest.raises(ValueError, match=rf"config\.json: {key} is ") as raised:
        check_pair(*pair)
    assert repr(value) in str(raised.value)


def test_also_in_the_text_config_and_in_the_generation_config(pair):
    edit(pair[1], text_config={"vocab_size": "64"})
    with pytest.raises(ValueError, match=r"config\.json: text_config\.vocab_size is '64', not a positive integer"):
        check_pair(*pair)
    edit(pair[1], text_config=None)
    (pair[1] / "generation_config.json").write_text('{"eos_token_id": "x"}')
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id is 'x'"):
        check_pair(*pair)


@pytest.mark.parametrize("content", ["", "[]", '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_no_json_object(pair, content):
    (pair[1] / "config.json").write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is not"):
        check_pair(*pair)


def test_a_byte_order_mark_infinity_elsewhere_and_null_are_accepted(pair):
    edit(pair[1], time_step_limit=[0.0, INF], sliding_window=None, eos_token_id=None)  # Mamba's configs hold Infinity
    file = pair[1] / "config.json"
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert check_pair(*pair).verdict == "exact"


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "float99"}, {"kv_lora_rank": 8}, {"num_local_experts": 8, "num_experts_per_tok": "2"}],
    ids=str,
)
def test_what_cannot_be_estimated_is_a_note(pair, settings):
    edit(pair[1], **settings)
    report = check_pair(*pair)
    assert report.verdict == "exact" and report.draft_weights is report.cost_ratio is report.parameter_ratio is None
    assert "memory and cost were not estimated" in " ".join(report.reasons)


def test_a_home_folder(pair, monkeypatch):
    monkeypatch.setenv("HOME", str(pair[0].parent))
    assert check_pair("~/target", "~/draft").verdict == "exact"


# ---- weights -----------------------------------------------------------------------------------------------------
def reheader(path, change):
    raw = (path / WEIGHTS).read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    change(next(entry for name, entry in header.items() if name.endswith("q_proj.weight")))
    text = json.dumps(header).encode()
    (path / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "F16"},
        {"shape": [16, 8]},
        {"shape": [-16, -16]},
        {"shape": ["16", 16]},
        {"shape": [256.0]},
        {"data_offsets": ["0", "4"]},
        {"data_offsets": [0]},
    ],
    ids=str,
)
def test_a_header_that_contradicts_itself(pair, change):
    reheader(pair[1], lambda entry: entry.update(change))
    with pytest.raises(CheckpointError, match="is corrupt"):
        check_pair(*pair)


def no_weights(path):
    (path / WEIGHTS).unlink()


def dangling(path):
    no_weights(path)
    (path / WEIGHTS).symlink_to(path / "gone")


def shards_without_index(path):
    (path / WEIGHTS).rename(path / "model-00001-of-00002.safetensors")


def instead(name, content):
    def change(path):
        no_weights(path)
        (path / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (dangling, "is no file, or a link to one that is gone"),
        (shards_without_index, f"but no {INDEX}"),
        (instead("pytorch_model.bin", POINTER), "git lfs pull"),
        (instead("pytorch_model.bin", b""), "is empty"),
        (instead("q4.gguf", POINTER), "git lfs pull"),
        (instead("q4.gguf", b""), "is empty"),
        (instead(WEIGHTS, b"\x02" + b"\0" * 7 + b"{}"), "holds no tensors"),
        (instead(INDEX, b'{"weight_map": {"a": 1}}'), "is corrupt"),
        (instead(INDEX, b'{"weight_map": {"a": 1, "b": "x"}}'), "is corrupt"),
        (instead(INDEX, b'{"weight_map": ["a"]}'), "is corrupt"),
    ],
)
@pytest.mark.parametrize("side", [0, 1])
def test_weights_that_cannot_load(pair, change, sentence, side):
    change(pair[side])
    with pytest.raises(CheckpointError, match=sentence):
        check_pair(*pair)
    result = run(*pair)
    assert result.exit_code == 2 and len(result.stderr.splitlines()) == 1


def test_no_weights_at_all_is_a_note(pair):
    no_weights(pair[1])
    report = check_pair(*pair)
    assert report.verdict == "exact" and "holds no weights" in report.reasons[-1]


@pytest.mark.parametrize(
    ("settings", "tensor"),
    [
        ({"vocab_size": 70}, r"embed_tokens\.weight is 64 × 16 in the checkpoint, 70 × 16 by"),
        ({"num_attention_heads": 4, "head_dim": 8}, r"[qo]_proj\.weight is 16 × 16 in the checkpoint, .*32.* by"),
        ({"num_key_value_heads": 2}, r"[kv]_proj\.weight is 8 × 16 in the checkpoint, 16 × 16 by"),
        ({"intermediate_size": 32}, r"(gate|up|down)_proj\.weight is 16 × 16 in the checkpoint, .*32.* by"),
    ],
    ids=str,
)
def test_shapes_that_are_another_configs(pair, settings, tensor):
    edit(pair[1], **settings)
    with pytest.raises(CheckpointError, match=tensor):
        check_pair(*pair)


def test_numbers_that_the_config_leaves_out_are_not_guessed(pair):
    edit(pair[1], num_key_value_heads=None, intermediate_size=None)
    assert check_pair(*pair).verdict == "exact"


def test_a_target_of_empty_tensors(pair):
    tensors = load_file(pair[0] / WEIGHTS)
    save_file({name: tensor[:0] for name, tensor in tensors.items()}, pair[0] / WEIGHTS)
    edit(pair[0], model_type="nobodys", architectures=["NobodysForCausalLM"])
    assert check_pair(*pair).parameter_ratio is None


def test_a_refusal_outlives_broken_weights(pair):
    edit(pair[1], architectures=["Eagle3X"])
    (pair[1] / WEIGHTS).write_bytes(b"")
    report = check_pair(*pair)
    assert report.verdict == "refused" and "EAGLE-3" in report.reasons[0]
    assert "is no safetensors file" in report.reasons[-1] and run(*pair).exit_code == 1


# ---- made for something else -------------------------------------------------------------------------------------
def test_an_adapter_beside_a_model_and_beside_a_bare_config(pair):
    (pair[1] / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    report = check_pair(*pair)
    assert report.verdict == "exact" and "loads that adapter with it if peft is installed" in report.reasons[0]
    (pair[1] / WEIGHTS).rename(pair[1] / "adapter_model.safetensors")
    report = check_pair(*pair)
    assert report.verdict == "refused" and "a PEFT adapter for org/base" in report.reasons[0]


@pytest.mark.parametrize("other", [LlamaForSequenceClassification, LlamaModel])
def test_another_architecture_is_named(pair, folder, other):
    draft = folder("other", other(make_model().config), make_tokenizer())
    report = check_pair(pair[0], draft)
    assert report.verdict == "refused"
    assert f"is a {other.__name__}, not a causal LM: it lacks 1 tensors (lm_head.weight)" in report.reasons[0]
    assert "Download it again" not in " ".join(report.reasons)


@pytest.mark.parametrize("pickled", [False, True])
def test_a_snapshot_of_small_files_while_offline(pair, tmp_path, monkeypatch, pickled):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "models--org--name" / "snapshots" / ("a" * 40)
    os.makedirs(snapshot.parent)
    pair[1].rename(snapshot)
    (instead("pytorch_model.bin", b"x") if pickled else no_weights)(snapshot)
    report = check_pair(pair[0], snapshot)
    assert report.verdict == "exact"
    assert ("are pickled" if pickled else "weights were not checked: org/name@aaa") in report.reasons[-1]


@pytest.mark.parametrize(
    "content, message",
    [(b"", "empty"), (b"nonsense", "Download it again"), (b"GGUF\x03", "Download it again"), (POINTER, "git lfs pull")],
)
def test_a_gguf_file_alone_that_is_none(pair, tmp_path, content, message):
    pytest.importorskip("gguf")
    alone = tmp_path / "gguf"
    alone.mkdir()
    (alone / "q4.gguf").write_bytes(content)
    for draft in (alone, alone / "q4.gguf"):
        result = run(pair[0], draft)
        assert result.exit_code == 2 and message in result.stderr and str(alone / "q4.gguf") in result.stderr


def test_a_gguf_file_alone_without_its_reader(pair, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_specgen.quantization.base.installed", lambda package: False)
    (tmp_path / "q4.gguf").write_bytes(b"GGUF")
    result = run(pair[0], tmp_path / "q4.gguf")
    assert result.exit_code == 2 and "pip install" in result.stderr
