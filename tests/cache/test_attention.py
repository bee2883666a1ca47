"""Folded attention gives transformers' own numbers, only inside our forwards; the probe judges strangers rightly."""

import threading

import pytest
import torch
from families import build
from toys import batch_of, noisy, spec, text
from transformers import FalconForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from hf_specgen.cache import attention, probe
from hf_specgen.cache.reader import Reader, read_prompt
from hf_specgen.cache.stock import Layout


class Layer(torch.nn.Module):
    """What the attention function wants to know of its module."""

    def __init__(self, groups: int):
        super().__init__()
        self.num_key_value_groups, self.is_causal = groups, True
        self.eval()


def inputs(
    groups: int, width: int, dtype: torch.dtype, rows: int = 3, kv_heads: int = 2, slots: int = 23, dim: int = 8
):
    """Query, key, value and a ragged bool mask in which every query sees at least one slot."""
    generator = torch.Generator().manual_seed(groups * 10 + width)
    query, key, value = (
        torch.randn(rows, heads, n, dim, generator=generator).to(dtype)
        for heads, n in ((kv_heads * groups, width), (kv_heads, slots), (kv_heads, slots))
    )
    starts = torch.randint(0, slots - width, (rows, 1, 1, 1), generator=generator)
    return query, key, value, torch.arange(slots) <= starts + torch.arange(width)[:, None]


def folded(*args, **kwargs):
    with attention.folding():
        return ALL_ATTENTION_FUNCTIONS["sdpa"](*args, **kwargs)[0]


@pytest.fixture
def counted(monkeypatch):
    """Number of folded attentions, as a list of one."""
    calls, original = [0], attention._folded

    def counting(*args):
        calls[0] += 1
        return original(*args)

    monkeypatch.setattr(attention, "_folded", counting)
    return calls


@pytest.mark.parametrize("additive", [False, True], ids=["bool", "additive"])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
@pytest.mark.parametrize("scaling", [None, 0.1])
@pytest.mark.parametrize("groups, width", [(2, 1), (2, 5), (4, 5), (7, 3)])
def test_folded_equals_transformers(groups, width, scaling, dtype, tolerance, additive, counted):
    query, key, value, mask = inputs(groups, width, dtype)
    if additive:
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)
    wanted = sdpa_attention_forward(Layer(groups), query, key, value, mask, scaling=scaling)[0]
    got = folded(Layer(groups), query, key, value, mask, scaling=scaling)
    assert counted == [1]
    assert got.shape == wanted.shape and got.is_contiguous()
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=0)


def test_one_mask_serves_many_layers_and_two_masks_are_told_apart(counted):
    query, key, value, mask = inputs(4, 3, torch.float32)
    other = mask & (torch.arange(mask.shape[-1]) >= mask.sum(-1, keepdim=True) - 2)  # a window of two
    with attention.folding():
        sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        for m in (mask, other, mask, other):
            wanted = sdpa_attention_forward(Layer(4), query, key, value, m)[0]
            torch.testing.assert_close(sdpa(Layer(4), query, key, value, m)[0], wanted, atol=1e-6, rtol=0)
    assert counted == [4]


@pytest.mark.parametrize("groups", [2, 7])
def test_a_single_query_needs_no_mask_to_be_folded(groups, counted):
    query, key, value, _ = inputs(groups, 1, torch.float32)
    wanted = sdpa_attention_forward(Layer(groups), query, key, value, None, scaling=0.1)[0]
    torch.testing.assert_close(folded(Layer(groups), query, key, value, None, scaling=0.1), wanted, atol=1e-6, rtol=0)
    assert counted == [1]


@pytest.mark.parametrize("case", ["no mask", "one query head per key head", "training", "dropout", "mask per head"])
def test_what_cannot_be_folded_is_passed_on(case, counted):
    groups = 1 if case == "one query head per key head" else 4
    query, key, value, mask = inputs(groups, 5, torch.float32)
    layer, options = Layer(groups), {}
    if case == "no mask":
        mask = None
    elif case == "training":
        layer.train()
    elif case == "dropout":
        options = {"dropout": 1e-9}
    elif case == "mask per head":
        mask = mask.expand(-1, query.shape[1], -1, -1)
    got = folded(layer, query, key, value, mask, **options)
    wanted = sdpa_attention_forward(layer, query, key, value, mask, **options)[0]
    assert counted == [0]
    assert torch.equal(got, wanted)


def test_inactive_outside_our_forwards_and_in_other_threads(counted):
    args = (Layer(4), *inputs(4, 5, torch.float32))
    sdpa = lambda: ALL_ATTENTION_FUNCTIONS["sdpa"](*args)  # noqa: E731
    with attention.folding():
        sdpa()
        assert counted == [1]
        thread = threading.Thread(target=sdpa)
        thread.start()
        thread.join()
        assert counted == [1], "another thread's forward is not ours"
    sdpa()
    assert counted == [1], "left behind after the block"
    with pytest.raises(RuntimeError), attention.folding():
        raise RuntimeError
    sdpa()
    assert counted == [1], "left behind by an exception"


def test_a_call_folds_and_plain_decoding_does_not(counted):
    target = build("llama")
    batch = batch_of([text(3), text(11)])
    spec(target, noisy(target), **batch, max_new_tokens=12)
    inside = counted[0]
    assert inside > 0
    type(target).generate(target, **batch, max_new_tokens=12, do_sample=False)
    assert counted == [inside]


# ---- the probe ----------------------------------------------------------------------------------------------------
class DeafAttention(torch.nn.Module):
    """Wraps a llama's inner model: throws ready-made 4-D masks away, as an architecture with its own mask code may."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def forward(self, *args, attention_mask=None, **kwargs):
        if attention_mask is not None and attention_mask.dim() == 4:
            attention_mask = None
        return self.inner(*args, attention_mask=attention_mask, **kwargs)


class StrangerConfig(LlamaConfig):
    model_type = "stranger"


class Stranger(LlamaForCausalLM):
    """A llama under a name that the probe does not know."""

    config_class = StrangerConfig


class DeafStranger(Stranger):
    def __init__(self, config):
        super().__init__(config)
        self.model = DeafAttention(self.model)

    def get_input_embeddings(self):
        return self.model.inner.embed_tokens


def stranger(cls):
    torch.manual_seed(0)
    config = StrangerConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        attn_implementation="sdpa",
    )
    model = cls(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(6)
    return model


def verdict(model) -> bool:
    ids = torch.tensor([text(4)])
    filled = [(read_prompt(model, ids, None)[1], Layout(None, *ids.shape), [0])]
    reader = Reader.from_prefill(model, filled, 8, ids.device)
    lengths = list(reader.lengths)
    answer = reader.ragged_together
    assert reader.lengths == lengths and reader.forwards == 0, "the asking reader is left as it was"
    return answer


@pytest.fixture
def forgetful(monkeypatch):
    monkeypatch.setattr(probe, "_verdicts", {})


@pytest.mark.parametrize("cls, right", [(Stranger, True), (DeafStranger, False)])
def test_probe_judges_an_unknown_architecture(cls, right, forgetful):
    assert StrangerConfig.model_type not in probe.KNOWN
    model = stranger(cls)
    assert verdict(model) is right
    assert len(probe._verdicts) == 1
    assert verdict(model) is right and len(probe._verdicts) == 1, "asked once"


@pytest.mark.parametrize("cls", [Stranger, DeafStranger])
def test_unknown_architecture_decodes_exactly_after_its_verdict(cls, forgetful):
    target = stranger(cls)
    rows = [text(n) for n in (3, 11, 6)]
    out = spec(target, noisy(target), **batch_of(rows), max_new_tokens=24, eos_token_id=None)
    for b, row in enumerate(rows):
        wanted = cls.generate(
            target, input_ids=torch.tensor([row]), max_new_tokens=24, do_sample=False, eos_token_id=None
        )
        assert out.sequences[b, -24:].tolist() == wanted[0, -24:].tolist()


def test_position_schemes_of_one_class_are_judged_apart(forgetful):
    """Falcon's rotary models take ready-made masks, its ALiBi models do not."""
    rotary, alibi = build("falcon"), build("falcon_alibi")
    assert isinstance(rotary, FalconForCausalLM) and isinstance(alibi, FalconForCausalLM)
    assert verdict(rotary) is True
    assert verdict(alibi) is False
    assert verdict(rotary) is True


def test_model_without_position_ids_is_not_even_asked(forgetful):
    assert verdict(build("bloom")) is False
    assert not probe._verdicts
