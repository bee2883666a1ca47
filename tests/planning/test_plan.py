"""The planner, on imagined devices: nothing is loaded."""

import functools
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from hf_specgen.checkpoints.checkpoint import Checkpoint, Tensor
from hf_specgen.checkpoints.memory import FORMATS, kv_bytes, weight_format
from hf_specgen.planning.devices import device_key, memory_of, parse_size
from hf_specgen.planning.plan import SpecMemoryError, parse_devices, plan_pair
from hf_specgen.planning.skeleton import device_of

UNREAD = Checkpoint({}, 0)
LENGTH = 100
KILO = 10**3


def toy(layers=8, **settings):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(vocab_size=256, num_hidden_layers=layers, dtype="bfloat16", **sizes | settings)


TARGET, DRAFT = toy(), toy(layers=2)


def meta(config):
    return _meta(config.to_json_string(use_diff=False))


@functools.cache
def _meta(config):
    config = LlamaConfig(**json.loads(config))
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def weights(config):
    """bfloat16 parameters, float32 buffers of rotary positions."""
    model = meta(config)
    return 2 * sum(p.numel() for p in model.parameters()) + sum(b.numel() * 4 for b in model.buffers())


def plan(devices, target=TARGET, draft=DRAFT, reserve=0, length=LENGTH, **options):
    return plan_pair((target, UNREAD), (draft, UNREAD), devices=devices, reserve=reserve, length=length, **options)


def need(*configs, rows=1):
    return sum(weights(c) + kv_bytes(c.to_dict(), rows, LENGTH) for c in configs)


def check(found, target=TARGET):
    """What holds of every plan."""
    for device, use in found.devices.items():
        assert use.free >= 0, device
    names = [*meta(target).state_dict(), *(name for name, m in meta(target).named_modules() if not [*m.children()])]
    assert all(device_of(name, found.device_map) is not None for name in names)
    keys = [*found.device_map]
    assert not [(a, b) for a in keys for b in keys if a != b and b.startswith(f"{a}." if a else "")]
    assert set(keys) <= {name for name, _ in meta(target).named_modules()}
    assert not [key for key in keys if "layers." in key and not key.rpartition(".")[2].isdecimal()], "a layer was split"
    uses = found.devices.values()
    assert sum(u.target_weights for u in uses) == weights(target)
    assert [d for d, u in found.devices.items() if u.draft_weights] == [found.draft_device]
    return found


def head_of(found):
    return device_of("lm_head", found.device_map)


# ---- everything on the accelerators ------------------------------------------------------------------------------
def test_one_device_to_the_byte():
    exact = need(TARGET, DRAFT)
    found = check(plan({0: exact}))
    assert found.fits and found.device_map == {"": 0} and found.devices[0].free == 0
    use = found.devices[0]
    assert use.target_kv == kv_bytes(TARGET.to_dict(), 1, LENGTH) and use.draft_kv == kv_bytes(
        DRAFT.to_dict(), 1, LENGTH
    )
    assert use.draft_weights == weights(DRAFT)
    with pytest.raises(SpecMemoryError, match=r"0\.00 KB \(1 bytes\) are missing on device 0") as error:
        plan({0: exact - 1})
    assert (error.value.missing, error.value.device) == (1, 0)


def test_rows_length_dtype_and_reserve_count():
    once = plan({0: 10**9}).devices[0]
    more = plan({0: 10**9}, batch_size=3, length=2 * LENGTH, reserve="5MB").devices[0]
    assert (more.target_kv, more.draft_kv, more.reserve) == (6 * once.target_kv, 6 * once.draft_kv, 5_000_000)
    wide = plan({0: 10**9}, dtype=torch.float32).devices[0]
    assert wide.target_kv == 2 * once.target_kv and wide.target_weights > 1.9 * once.target_weights


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("slack", [1.02, 1.15, 1.5])
def test_several_devices(tied, count, slack):
    """The draft is where the head is; caches are where their layers are."""
    target = toy(tie_word_embeddings=tied)
    limit = int(need(target, DRAFT) * slack / count) + 30 * KILO
    found = check(plan(dict.fromkeys(range(count), limit), target), target)
    assert found.fits and found.draft_device == head_of(found)
    layer = kv_bytes(target.to_dict(), 1, LENGTH) // 8
    for device, use in found.devices.items():
        here = [i for i in range(8) if device_of(f"model.layers.{i}", found.device_map) == device]
        assert use.target_kv == len(here) * layer
    if tied:
        assert head_of(found) == device_of("model.embed_tokens", found.device_map)


def test_the_head_moves_to_the_draft():
    """The target fills device 0 almost, and the draft only fits on device 1."""
    found = check(plan({0: need(TARGET) + 10, 1: need(TARGET)}))
    assert head_of(found) == found.draft_device == 1 and found.device_map["model"] == 0


def test_the_head_moves_over_devices_too_small_for_the_draft():
    found = check(plan({0: need(TARGET) + 10, 1: need(DRAFT) - 1, 2: 80 * KILO, 3: need(DRAFT) + 80 * KILO}))
    assert head_of(found) == found.draft_device == 3 and found.device_map["model"] == 0


def test_an_earlier_device_too_small_for_anything_is_skipped():
    found = check(plan({0: 5 * KILO, 1: 2 * need(TARGET, DRAFT)}, reserve=10 * KILO))
    assert set(found.device_map.values()) == {1} and found.devices[0].reserve == 5 * KILO


def test_the_draft_where_one_wants_it():
    limits = {0: need(TARGET, DRAFT) + KILO, 1: need(TARGET, DRAFT) + KILO}
    for wanted in (1, "1", "cuda:1", torch.device("cuda", 1)):
        found = check(plan(limits, draft_device=wanted))
        assert found.draft_device == 1 and found.device_map == {"": 0}
        assert "The draft is on 1, the target's head on 0" in found.notes[0]
    found = check(plan({0: need(TARGET), "cpu": need(DRAFT)}, draft_device="cpu"))
    assert found.fits and found.draft_device == "cpu" and found.devices["cpu"].reserve == 0
    for wanted in (2, "cpu", "disk"):
        with pytest.raises(ValueError, match=rf"draft_device='?{wanted}'? is not among the devices \[0, 1\]"):
            plan(limits, draft_device=wanted)


@pytest.mark.parametrize("sizes", [(300, 250, 300), (250, 250, 250, 250), (700, 150)])
def test_missing_is_what_is_missing(sizes):
    """As much more on that device, and it fits; one byte less, and it does not."""
    devices = {i: size * KILO for i, size in enumerate(sizes)}
    with pytest.raises(SpecMemoryError) as error:
        plan(devices)
    missing, device = error.value.missing, error.value.device
    check(plan(devices | {device: devices[device] + missing}))
    with pytest.raises(SpecMemoryError):
        plan(devices | {device: devices[device] + missing - 1})


def test_a_draft_that_fits_on_no_device_says_so():
    with pytest.raises(SpecMemoryError, match="fits without the draft, and shall not spill because of it") as error:
        plan({0: need(TARGET), 1: need(DRAFT) - 7}, draft_device=1)
    assert (error.value.missing, error.value.device) == (7, 1)


# ---- offloading --------------------------------------------------------------------------------------------------
def test_a_draft_never_pushes_the_target_off():
    """With the CPU's memory at hand, too."""
    with pytest.raises(SpecMemoryError, match="shall not spill") as error:
        plan({0: need(TARGET) + 5, "cpu": 10**9})
    assert error.value.missing == need(DRAFT) - 5


def test_a_target_too_large_is_offloaded():
    """The caches of its offloaded layers stay where they compute."""
    limit = need(DRAFT) + need(TARGET) * 2 // 3
    found = check(plan({0: limit, "cpu": 10**9}))
    assert not found.fits and set(found.spilled.values()) == {"cpu"} and found.draft_device == 0
    assert found.devices[0].target_kv == kv_bytes(TARGET.to_dict(), 1, LENGTH) and found.devices["cpu"].target_kv == 0
    largest = weights(TARGET) // 10
    assert found.devices[0].free >= largest, "no room to bring a layer back"
    assert "of the target are offloaded" in found.notes[0]
    with pytest.raises(SpecMemoryError, match="does not fit even without the draft"):
        plan({0: limit})


def test_to_the_disk_only_where_it_is_named():
    few = {"cpu": need(DRAFT) + need(TARGET) * 2 // 3}
    with pytest.raises(SpecMemoryError, match="are missing on device cpu"):
        plan(few)
    found = check(plan(few | {"disk": 10**9}))
    assert set(found.spilled.values()) == {"disk"} and found.draft_device == "cpu"
    with pytest.raises(SpecMemoryError, match="cpu cannot take the rest"):
        plan({0: need(DRAFT) + need(TARGET) // 2, "cpu": 10 * KILO})


def test_a_plan_is_a_device_map_for_from_pretrained(tmp_path):
    config = toy()
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "target")
    AutoModelForCausalLM.from_config(DRAFT).save_pretrained(tmp_path / "draft")
    few = {"cpu": need(DRAFT) + need(TARGET) * 2 // 3, "disk": 10**9}
    found = plan_pair(tmp_path / "target", tmp_path / "draft", devices=few, reserve=0, length=LENGTH)
    assert found.device_map == plan(few).device_map  # folders or facts
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    placed = AutoModelForCausalLM.from_pretrained(tmp_path / "target", device_map=found.device_map)
    assert placed.hf_device_map == found.device_map
    ids = torch.arange(5)[None]
    assert torch.equal(placed(ids).logits, dense(ids).logits)


# ---- quantized ---------------------------------------------------------------------------------------------------
def test_quantized_sizes():
    found = plan({0: 10**9}, draft_quantization="nf4", target_quantization="int8").devices[0]
    linear = sum(p.numel() for n, p in meta(DRAFT).named_parameters() if "_proj" in n)
    head = FORMATS["nf4"].bytes((256, 64))
    assert found.draft_weights == weights(DRAFT) - 2 * linear - 2 * 256 * 64 + linear * 9 // 16 + head
    rows = sum(p.shape[0] for n, p in meta(TARGET).named_parameters() if "_proj" in n)
    linear = sum(p.numel() for n, p in meta(TARGET).named_parameters() if "_proj" in n)
    assert found.target_weights == weights(TARGET) - linear + 4 * rows  # its head stays


def test_a_tied_drafts_head_is_a_quantized_copy():
    tied = toy(layers=2, tie_word_embeddings=True)
    dense = plan({0: 10**9}, draft=tied).devices[0].draft_weights
    linear = sum(p.numel() for n, p in meta(tied).named_parameters() if "_proj" in n)
    found = plan({0: 10**9}, draft=tied, draft_quantization="nf4").devices[0].draft_weights
    assert found == dense - 2 * linear + linear * 9 // 16 + weight_format("nf4").bytes((256, 64))


def awq(config, drop=(), prefix=""):
    """A header such as AWQ checkpoints have."""
    tensors = {}
    for name, p in meta(config).state_dict().items():
        rows, columns = (*p.shape, 1)[:2]
        module = name.removesuffix("weight").removeprefix(prefix)
        if "_proj" in name:
            tensors[f"{module}qweight"] = Tensor("I32", (columns, rows // 8))
            tensors[f"{module}scales"] = Tensor("F16", (columns // 64, rows))
        elif name not in drop:
            tensors[f"{module}weight"] = Tensor("F16", tuple(p.shape))
    return Checkpoint.of(tensors, AWQ | config.to_dict())


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 64}}


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_quantized_checkpoint_counts_as_it_is(prefix):
    checkpoint = awq(TARGET, prefix=prefix)
    limits = {0: 200 * KILO, 1: 400 * KILO}
    found = plan_pair((TARGET, checkpoint), (DRAFT, UNREAD), devices=limits, reserve=0, length=10)
    buffers = sum(b.numel() * 4 for b in meta(TARGET).buffers())
    assert sum(use.target_weights for use in found.devices.values()) == checkpoint.bytes + buffers
    assert set(found.device_map.values()) == {0, 1} and head_of(found) == found.draft_device


def test_a_tied_head_of_a_quantized_checkpoint_counts_once():
    tied = toy(tie_word_embeddings=True)
    sizes = set()
    for drop in ([], ["lm_head.weight"], ["model.embed_tokens.weight"]):
        found = plan_pair((tied, awq(tied, drop)), (DRAFT, UNREAD), devices={0: 10**9}, reserve=0)
        sizes.add(found.devices[0].target_weights)
    assert len(sizes) == 1


# ---- known models ------------------------------------------------------------------------------------------------
LLAMA_70B = LlamaConfig(
    vocab_size=128256,
    hidden_size=8192,
    intermediate_size=28672,
    num_hidden_layers=80,
    num_attention_heads=64,
    num_key_value_heads=8,
    max_position_embeddings=131072,
    dtype="bfloat16",
)
LLAMA_1B = LlamaConfig(
    vocab_size=128256,
    hidden_size=2048,
    intermediate_size=8192,
    num_hidden_layers=16,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=64,
    tie_word_embeddings=True,
    dtype="bfloat16",
)


@pytest.mark.parametrize("devices", ["4x80GB", "8x24GB", "2x80GB", "1x192GB", "1x24GB,2x80GB"])
def test_llama_70b_with_its_1b_draft(devices):
    """70.55 and 1.24 billion parameters; 327,680 and 32,768 bytes of cache per token."""
    found = check(plan(parse_devices(devices), LLAMA_70B, LLAMA_1B, length=4096, reserve="2GiB"), LLAMA_70B)
    uses = found.devices.values()
    assert found.fits and found.draft_device == head_of(found)
    assert sum(u.target_weights for u in uses) / 1e9 == pytest.approx(141.11, abs=0.01)
    assert sum(u.draft_weights for u in uses) / 1e9 == pytest.approx(2.47, abs=0.01)
    assert (sum(u.target_kv for u in uses), sum(u.draft_kv for u in uses)) == (4096 * 327_680, 4096 * 32_768)


def test_llama_70b_does_not_fit_on_one():
    with pytest.raises(SpecMemoryError) as error:
        plan(parse_devices("1x80GB"), LLAMA_70B, LLAMA_1B, length=4096, reserve="2GiB")
    exact = weights(LLAMA_70B) + weights(LLAMA_1B) + 4096 * (327_680 + 32_768) + 2 * 2**30 - 80 * 10**9
    assert error.value.missing == exact
    quarter = plan(
        parse_devices("1x80GB"), LLAMA_70B, LLAMA_1B, 2**31, 4096, target_quantization="nf4", draft_quantization="nf4"
    )
    assert quarter.fits and quarter.devices[0].target_weights / 1e9 == pytest.approx(42.7, abs=0.1)


def test_a_large_prefill_is_told():
    found = plan({0: 10**9}, batch_size=8, reserve="100KB")
    assert "beside all this; the reserve is 0.10 MB" in found.notes[0]


# ---- what is printed, and how devices are written ----------------------------------------------------------------
def test_it_prints_and_dumps():
    found = plan({0: 400 * KILO, 1: 700 * KILO, "cpu": 10**9}, dtype=torch.bfloat16)
    text = str(found)
    assert text.splitlines()[0].split("  ")[0] == "device" and "fits, for 1 row of 100 tokens" in text
    assert f"draft on {found.draft_device}" in text and "model.embed_tokens … model.layers." in text
    dumped = json.loads(json.dumps(found.to_dict()))
    assert dumped["fits"] and [d["device"] for d in dumped["devices"]] == [0, 1, "cpu"]
    assert dumped["device_map"] == found.device_map and dumped["devices"][1]["draft_weights"] == weights(DRAFT)


def test_devices_as_written():
    assert parse_devices("4x80GB") == dict.fromkeys(range(4), 80 * 10**9)
    assert parse_devices("2x24GiB, 1.5GB", cpu="64GB") == {
        0: 24 * 2**30,
        1: 24 * 2**30,
        2: 1_500_000_000,
        "cpu": 64 * 10**9,
    }
    assert parse_devices("", cpu=5) == {"cpu": 5}
    assert parse_size("80") == 80 and parse_size("0") == 0
    for wrong in ("", "4x", "x80GB", "four x80GB", "80gb", "2x3x4GB", "-1GB", "4x80"):
        with pytest.raises(ValueError):
            parse_devices(wrong)


@pytest.mark.parametrize("size", ["1GB", "2GiB", "1.5MB", "1200KB", "0.1TB", "7MiB", 12])
def test_sizes_are_accelerates(size):
    from accelerate.utils.modeling import convert_file_size_to_int

    if size != "0.1TB":
        assert parse_size(size) == convert_file_size_to_int(size)
    else:
        assert parse_size(size) == 10**11


def test_device_names():
    names = ["cpu", "disk", "mps", "cuda", "cuda:3", 3, "3", torch.device("cpu"), torch.device("mps", 0)]
    assert [device_key(name) for name in names] == ["cpu", "disk", "mps", 0, 3, 3, 3, "cpu", "mps"]
    assert [*memory_of({"disk": 1, "cpu": "1GB", "cuda:1": 5, 0: 7}).items()] == [
        (0, 7),
        (1, 5),
        ("cpu", 10**9),
        ("disk", 1),
    ]
    with pytest.raises(ValueError, match="No device can compute"):
        memory_of({"disk": 1})
    with pytest.raises(ValueError, match="Unknown device 'gpu'"):
        memory_of({"gpu": 1, "cpu": 1})


def test_this_machine():
    """Whatever it has: the free memory of its devices."""
    found = plan(None, reserve="1MB")
    assert found.fits and set(found.devices) == set(memory_of(None))
    if not torch.cuda.is_available():
        assert found.device_map == {"": "cpu"} and found.draft_device == "cpu"


def test_other_inputs_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a local folder"):
        plan_pair(tmp_path / "none", (DRAFT, UNREAD))
    (tmp_path / "bare").mkdir()
    with pytest.raises(FileNotFoundError, match=r"holds no config\.json"):
        plan_pair(tmp_path / "bare", (DRAFT, UNREAD))
    with pytest.raises(ValueError, match="'nf3' is no quantization"):
        plan({0: 10**9}, draft_quantization="nf3")
    facts = Qwen2Config(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4).to_dict()
    assert plan({0: 10**9}, draft=facts).fits  # a config.json's content will do


@pytest.mark.real
def test_the_real_pair(real_models):
    pair = real_models / "qwen2.5-coder-1.5b", real_models / "qwen2.5-coder-0.5b"
    found = plan_pair(*pair, devices=parse_devices("2x4GB"), reserve="500MB")
    assert found.fits and found.draft_device == 1 == head_of(found)
    assert [round(u.target_weights / 1e6) for u in found.devices.values()] == [3087, 467]
    assert found.devices[1].draft_weights == pytest.approx(1260.3e6, rel=1e-4)
    assert found.devices[0].target_kv == 28_672 * 4096 and found.devices[1].draft_kv == 12_288 * 4096
