"""A CPU is given the weights first where there are few positions; nothing else may come of it."""

import copy

import pytest
import torch
from families import FAMILIES, build, draft_of
from torch.nn.functional import linear
from toys import batch_of, noisy, plain, prompts, spec, text, tiny, weights_first

import hf_specgen
from hf_specgen.cache import products
from hf_specgen.cache.products import FewLinear, few, for_few, shallow


@pytest.fixture
def everywhere():
    with weights_first():
        yield


@pytest.fixture
def counted(monkeypatch):
    """What was multiplied with the weights first."""
    seen = []
    first = {name: getattr(torch, name) for name in ("mv", "addmv", "mm", "addmm")}
    for name, product in first.items():
        monkeypatch.setattr(products.torch, name, lambda *args, product=product: seen.append(args) or product(*args))
    return seen


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (2, 3), (1,), (4,), (), (1, 40), (0, 3)])
def test_the_numbers_are_a_linear_layers(everywhere, monkeypatch, shape, bias):
    monkeypatch.setattr(products, "MOST", 32)
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(*shape, 6, generator=generator), torch.randn(5, 6, generator=generator)
    offsets = torch.randn(5, generator=generator) if bias else None
    found = few(x, weight, offsets)
    torch.testing.assert_close(found, linear(x, weight, offsets))
    assert found.is_contiguous()


def test_a_view_of_more_positions(everywhere):
    x, weight = torch.randn(2, 5, 6)[:, -2:], torch.randn(7, 6)
    torch.testing.assert_close(few(x, weight, None), linear(x, weight))


@pytest.mark.parametrize(
    "positions, weights, dtype, first",
    [
        ((1, 16), 2**20, torch.bfloat16, True),
        ((8, 2), 2**20, torch.bfloat16, True),
        ((1, 17), 2**20, torch.bfloat16, False),
        ((1, 2), 2**19, torch.bfloat16, False),
        ((1, 1), 2**18, torch.bfloat16, True),
        ((1, 3), 2**20, torch.float32, False),
        ((1, 3), 2**20, torch.float16, False),
    ],
)
def test_where_the_weights_come_first(monkeypatch, counted, positions, weights, dtype, first):
    monkeypatch.setattr(products, "pays_on", lambda device: True)
    few(torch.ones(*positions, 512, dtype=dtype), torch.ones(weights // 512, 512, dtype=dtype), None)
    assert bool(counted) == first


def test_mixed_precision_is_left_to_torch(everywhere, counted):
    with torch.autocast("cpu", torch.bfloat16):
        found = few(torch.ones(1, 2, 4), torch.ones(3, 4, dtype=torch.bfloat16), None)
    assert found.dtype == torch.bfloat16 and not counted


@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_logits_are_plains(everywhere, counted, name):
    model, draft = build(name), draft_of(name)
    batch = batch_of([text(n, seed=n) for n in (5, 9, 2)])
    options = {"return_dict_in_generate": True, "output_logits": True}
    wanted = plain(model, **batch, max_new_tokens=20, **options)
    got = spec(model, draft, **batch, max_new_tokens=20, num_assistant_tokens=3, **options)
    assert torch.equal(got.sequences, wanted.sequences)
    for mine, theirs in zip(got.logits, wanted.logits, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-4)
    assert counted, "not one layer"


def test_collected_states_are_plains_once_each(everywhere, counted):
    """The hooks that record them stay on the model itself."""
    model, draft, batch = tiny(), noisy(tiny()), prompts([4, 7])
    options = {"return_dict_in_generate": True, "output_hidden_states": True, "output_attentions": True}
    model.set_attn_implementation("eager")
    spec(model, draft, **batch, max_new_tokens=12)  # without them first
    wanted = plain(model, **batch, max_new_tokens=12, **options)
    got = spec(model, draft, **batch, max_new_tokens=12, **options)
    for mine, theirs in zip(got.hidden_states[1:], wanted.hidden_states[1:], strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("flag", ["output_hidden_states", "output_attentions"])
def test_models_that_always_record_are_not_copied(everywhere, flag):
    model = tiny(attn_implementation="eager")
    assert for_few(model) is not model
    setattr(model.config, flag, True)
    assert for_few(model) is model


def test_the_callers_model_is_never_changed(everywhere):
    model = tiny()
    before = {name: (id(module), type(module), dict(vars(module))) for name, module in model.named_modules()}
    parts = {name: dict(module._modules) for name, module in model.named_modules()}
    copied = for_few(model)
    assert {name: (id(module), type(module), dict(vars(module))) for name, module in model.named_modules()} == before
    assert {name: dict(module._modules) for name, module in model.named_modules()} == parts
    assert type(copied) is type(model) and isinstance(copied.lm_head, FewLinear)
    assert [p.data_ptr() for p in copied.parameters()] == [p.data_ptr() for p in model.parameters()]


def test_new_weights_are_seen_at_once(everywhere):
    model = tiny()
    copied, ids = for_few(model), prompts([5])["input_ids"]
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight)
        torch.testing.assert_close(copied(ids).logits, model(ids).logits, atol=1e-4, rtol=1e-4)


def test_hooks_are_shown_the_models_own_modules(everywhere):
    model, draft, shown = tiny(), noisy(tiny()), []
    modules = [model, model.model.layers[1], model.model.layers[1].mlp.up_proj, model.lm_head]
    for n in (1, 2, 4):  # not the model itself at first, or nothing would be copied
        for module in modules[-n:]:
            module.register_forward_hook(lambda module, *_: shown.append(module))
        out = spec(model, draft, **prompts([5]), max_new_tokens=16, return_dict_in_generate=True)
        hooked = {module: shown.count(module) for module in modules}
        expected = {module: len(module._forward_hooks) * out.spec_stats.target_forwards for module in modules}
        assert hooked == expected
        shown.clear()


class Remembers(torch.nn.Module):
    """A module that keeps state, for another to read."""

    def __init__(self, mlp):
        super().__init__()
        self.mlp, self.calls = mlp, 0

    def forward(self, x):
        self.calls += 1
        self.last = x
        return self.mlp(x)


def test_modules_that_transformers_has_not_written_are_not_copied(everywhere):
    model, draft, batch = tiny(), noisy(tiny()), prompts([5])
    mine = model.model.layers[1].mlp = Remembers(model.model.layers[1].mlp)
    copied = for_few(model)
    assert copied is not model and copied.model.layers[1].mlp is mine
    out = spec(model, draft, **batch, max_new_tokens=12, return_dict_in_generate=True)
    assert mine.calls == out.spec_stats.target_forwards

    class Own(type(model)):
        pass

    model.__class__ = Own
    assert for_few(model) is model


def test_an_enabled_model_is_copied(everywhere):
    model = hf_specgen.enable(tiny())
    assert for_few(model) is not model


def test_global_hooks(everywhere):
    model = tiny()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert for_few(model) is model
    finally:
        handle.remove()


def test_what_computes_by_itself_is_not_copied(everywhere):
    model = tiny()
    patched, compiled = model.model.layers[0].mlp.up_proj, model.model.layers[1].mlp
    patched.forward = lambda x: linear(x, patched.weight)
    compiled._compiled_call_impl = compiled._call_impl
    copied = for_few(model)
    assert copied.model.layers[0].mlp.up_proj is patched
    assert copied.model.layers[1].mlp is compiled
    assert isinstance(copied.model.layers[0].mlp.down_proj, FewLinear)


def test_other_layers_are_left_alone(everywhere):
    class Other(torch.nn.Linear):
        pass

    model = tiny()
    model.lm_head.__class__ = Other
    assert type(for_few(model).lm_head) is Other
    quantized = copy.deepcopy(model)
    for module in quantized.modules():
        if type(module) is torch.nn.Linear:
            module.__class__ = Other
    assert for_few(quantized) is quantized, "nothing to gain"


def test_a_layer_that_appears_twice_does_so_in_the_copy(everywhere):
    model = tiny()
    model.model.layers[2].mlp = model.model.layers[1].mlp
    copied = for_few(model)
    assert copied.model.layers[2].mlp is copied.model.layers[1].mlp is not model.model.layers[1].mlp


def test_small_layers_and_other_devices_are_not_worth_it(monkeypatch):
    assert for_few(tiny().bfloat16()).lm_head.__class__ is torch.nn.Linear, "too small"
    monkeypatch.setattr(products, "LEAST", 0)
    assert for_few(tiny()).lm_head.__class__ is torch.nn.Linear, "float32"
    meta = tiny().bfloat16().to("meta")
    assert for_few(meta) is meta
    with torch.backends.mkldnn.flags(enabled=False):
        assert not products.pays_on(tiny().device)


def test_a_copy_shares_all_but_its_parts():
    model = tiny()
    copied = shallow(model)
    copied._modules["lm_head"] = None
    assert model.lm_head is not None and copied.model is model.model


def test_an_adapter_may_be_changed_in_the_middle_of_a_call(everywhere):
    """Nothing of peft's is copied."""
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(tiny(), peft.LoraConfig(r=4, target_modules=["q_proj", "up_proj"])).eval()
    assert for_few(model) is model
    inner = model.get_base_model()
    copied = for_few(inner)
    layer, same = inner.model.layers[0].self_attn, copied.model.layers[0].self_attn
    assert same is not layer and same.q_proj is layer.q_proj
