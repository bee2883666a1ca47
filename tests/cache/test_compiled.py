"""compile=True: the same text, from a few graphs that are compiled once."""

import contextlib
import copy
import functools
import gc
import pickle
import shutil
import warnings
import weakref

import pytest
import torch
from families import build, draft_of
from toys import VOCAB, batch_of, noisy, plain, seeded, spec, text, tiny
from transformers import Gemma3TextConfig, GPT2Config, MistralConfig, Qwen2Config, StableLmConfig

import hf_specgen
from hf_specgen.cache import compiled
from hf_specgen.cache.compiled import WIDTHS, steps_of


@pytest.fixture(autouse=True)
def traced_only(monkeypatch):
    """Graphs are traced and guarded as ever, and then run as they are, and they are fewer: seconds, not minutes."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")
    monkeypatch.setattr(compiled, "WIDTHS", (4, 12))


def small(**settings):
    return tiny(**{"num_hidden_layers": 1, "max_position_embeddings": 1024, "eos_token_id": None} | settings)


@functools.cache
def pair():
    """Shared by the tests, as its graphs are: leave it as it is."""
    return small(), noisy(small(), 0.2)


def graphs(*models) -> list:
    return [graph for model in models for graph in steps_of(model).graphs]


@contextlib.contextmanager
def compiled_once(*models):
    """The models do not decode uncompiled, and what torch has compiled at the end is one graph for each new shape."""

    def seen() -> int:
        return torch._dynamo.utils.counters["stats"]["unique_graphs"]

    before = seen() - len(graphs(*models))
    yield
    assert all(steps_of(model).graphs and not steps_of(model).fault for model in models)
    assert seen() - len(graphs(*models)) == before


MIXED = {
    "sliding_window": 8,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "num_hidden_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
}


@pytest.mark.parametrize(
    "config, settings, side",
    [
        (Gemma3TextConfig, MIXED, "right"),
        (GPT2Config, {"n_embd": 32, "n_layer": 1, "n_head": 4}, "left"),
        (Qwen2Config, {}, "right"),
    ],
)
def test_ragged_rows_say_what_plain_says(config, settings, side):
    model = small(config_class=config, **settings)
    draft, rows = noisy(model), [text(n, seed=n) for n in (5, 9)]
    with compiled_once(model, draft):
        got = spec(model, draft, **batch_of(rows, side), max_new_tokens=20, num_assistant_tokens=3, compile=True)
    wanted = plain(model, **batch_of(rows), max_new_tokens=20, do_sample=False)
    assert torch.equal(got.sequences[:, 9:], wanted[:, 9:])
    assert 0 < got.spec_stats.accepted < got.spec_stats.drafted


def test_few_graphs_for_any_draft_length(monkeypatch):
    """Bug log 98: neither a draft length, nor a schedule that varies it, nor where the text stands costs a graph."""
    monkeypatch.setattr(compiled, "WIDTHS", WIDTHS)
    model, draft = small(), noisy(small(), 0.2)
    options = batch_of([text(7)]) | {"max_new_tokens": 40}
    wanted = plain(model, **options, do_sample=False)
    lengths = [{"num_assistant_tokens": k} for k in range(1, 9)]
    lengths += [{"num_assistant_tokens_schedule": "goodput", "spec_source": "draft", "num_assistant_tokens": 8}]
    with compiled_once(model, draft):
        for length in lengths:
            assert torch.equal(spec(model, draft, **options, compile=True, **length).sequences, wanted)
        first = graphs(model, draft)
        small(config_class=StableLmConfig)  # a class that transformers has not seen yet concerns no graph
        for length in lengths[::3]:
            spec(model, draft, **batch_of([text(11)]), max_new_tokens=30, compile=True, **length)
    assert graphs(model, draft) == first
    assert len(graphs(model)) <= len([width for width in WIDTHS if width <= 12])
    assert len(graphs(draft)) <= 4  # a step, and what a draft catches up with


@pytest.mark.parametrize("window", [None, 8])
def test_growing_text_doubles_the_buffers(window):
    model, draft = pair() if window is None else (small(config_class=MistralConfig, sliding_window=window), pair()[1])
    options = batch_of([text(200)]) | {"max_new_tokens": 320}
    wanted = plain(model, **options, do_sample=False)
    before = graphs(model)
    with compiled_once(model, draft):
        assert torch.equal(spec(model, draft, **options, num_assistant_tokens=3, compile=True).sequences, wanted)
    capacities = {graph.capacities for graph in graphs(model)[len(before) :]}
    assert capacities == ({(512,), (1024,)} if window is None else {(136,)}), "a rolling buffer keeps its size"


def test_rows_that_leave_take_no_graph_each():
    model, _ = pair()
    options = batch_of([text(n, seed=n) for n in (5, 9, 2, 4, 6)]) | {"max_new_tokens": 48}
    steady = {"num_assistant_tokens_schedule": "constant", "num_assistant_tokens": 3}  # not by the clock
    wanted = plain(model, **options, do_sample=False)
    with compiled_once(model):
        got = spec(model, None, **options, prompt_lookup_num_tokens=3, **steady, compile=True)
    assert torch.equal(got.sequences, wanted)
    assert {graph.rows for graph in graphs(model)} == {5, 4, 2, 1}


def test_samples_are_those_of_the_uncompiled_call():
    model, draft = pair()
    options = batch_of([text(n, seed=n) for n in (6, 3)]) | {"max_new_tokens": 30, "temperature": 3.0}
    wanted = spec(model, draft, **options, **seeded())
    assert 0 < wanted.spec_stats.accepted < wanted.spec_stats.drafted
    with compiled_once(model, draft):
        got = spec(model, draft, **options, **seeded(), compile=True)
    assert torch.equal(got.sequences, wanted.sequences)


def test_a_session_goes_on_in_the_same_graphs():
    model, draft = pair()
    session, ids = hf_specgen.SpecSession(), batch_of([text(8)])["input_ids"]
    for turn in range(3):
        ids = torch.cat([ids, torch.tensor([text(5, seed=turn)])], dim=1)
        options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 16}
        with compiled_once(model, draft):
            got = spec(model, draft, **options, spec_session=session, compile=True)
        ids = plain(model, **options, do_sample=False)
        assert torch.equal(got.sequences, ids)


@torch.no_grad()
def moved(model):
    for p in model.parameters():
        p.add_(0.3 * p.std() * torch.randn(p.shape, generator=torch.Generator().manual_seed(3)))


WEIGHTS = {
    "in place": ("target", moved),
    "past torch's count": ("draft", lambda model: model.model.layers[0].mlp.up_proj.weight.data.mul_(-3)),
    "another parameter": (
        "target",
        lambda model: setattr(model.lm_head, "weight", torch.nn.Parameter(torch.rand(VOCAB, 32))),
    ),
}


@pytest.mark.parametrize("whose, change", WEIGHTS.values(), ids=WEIGHTS)
def test_changed_weights_count_at_once(whose, change):
    """Bug log 102: the graphs hold nothing of the weights that they were traced with."""
    target = small(tie_word_embeddings=False)
    models = {"target": target, "draft": noisy(target, 0)}
    options = batch_of([text(7)]) | {"max_new_tokens": 16}
    before, rates = plain(target, **options, do_sample=False), []
    for step in range(2):
        with compiled_once(*models.values()):
            got = spec(*models.values(), **options, num_assistant_tokens=3, compile=True)
        assert torch.equal(got.sequences, plain(target, **options, do_sample=False))
        rates.append(got.spec_stats.acceptance_rate)
        if not step:
            change(models[whose])
    assert torch.equal(got.sequences, before) == (whose == "draft") and rates[0] == 1.0 > rates[1]


def test_another_adapter_counts_at_once():
    peft = pytest.importorskip("peft")
    model, options = small(), batch_of([text(7)]) | {"max_new_tokens": 20}
    settings = peft.LoraConfig(r=2, target_modules=["up_proj"], init_lora_weights=False, lora_alpha=8)
    wrapped = peft.get_peft_model(model, settings, adapter_name="one").eval()
    wrapped.add_adapter("two", settings)
    texts = []
    for name in ("one", "two", "one"):
        wrapped.set_adapter(name)
        texts.append(plain(model, **options, do_sample=False).tolist())
        got = spec(model, None, **options, prompt_lookup_num_tokens=3, compile=True)
        assert got.sequences.tolist() == texts[-1]
    assert texts[0] != texts[1] and graphs(model) and not steps_of(model).fault


def reasons(found) -> list[str]:
    return [str(w.message).split("uncompiled: ")[1] for w in found if "compile=True" in str(w.message)]


@pytest.mark.parametrize(
    "name, options, reason",
    [
        ("llama", {"output_hidden_states": True}, "hidden states or attentions were asked for"),
        ("llama", {"draft_vocab_size": 40}, "draft_vocab_size gives it another output layer"),
        ("bloom", {}, "its "),  # its biases are built from the mask
        ("phi3", {}, "its class prepares the inputs of each step itself"),
    ],
)
def test_what_cannot_be_compiled_says_why_and_decodes_as_ever(name, options, reason):
    model, draft = build(name), draft_of(name)
    batch = batch_of([text(7)])
    wanted = plain(model, **batch, max_new_tokens=12, do_sample=False)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        got = spec(model, draft, **batch, max_new_tokens=12, compile=True, **options)
    assert torch.equal(got.sequences, wanted)
    told = reasons(found)
    assert any(reason in why for why in told) and len(told) <= 2, "one for each model"


def test_hooks_are_called():
    model, draft = pair()
    called = []
    handle = model.model.layers[0].register_forward_hook(lambda *_: called.append(1))
    try:
        with pytest.warns(UserWarning, match=r"hooks on it \(model.layers.0\)"):
            out = spec(model, draft, **batch_of([text(7)]), max_new_tokens=12, compile=True)
    finally:
        handle.remove()
    assert len(called) == out.spec_stats.target_forwards


def test_a_compiler_that_fails_is_no_error(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    model, batch = small(), batch_of([text(7)])
    wanted = plain(model, **batch, max_new_tokens=12, do_sample=False)
    for _ in range(2):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            got = spec(model, None, **batch, max_new_tokens=12, prompt_lookup_num_tokens=3, compile=True)
        assert torch.equal(got.sequences, wanted)
        (told,) = reasons(found)
        assert "torch.compile fails on it" in told


def test_models_stay_what_they_were():
    model, options = small(), batch_of([text(7)]) | {"max_new_tokens": 12, "prompt_lookup_num_tokens": 1}
    before = set(vars(model)), [set(vars(module)) for module in model.modules()]
    wanted = spec(model, None, **options, compile=True).sequences
    assert (set(vars(model)), [set(vars(module)) for module in model.modules()]) == before
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    assert graphs(model) and not graphs(twin)
    assert torch.equal(spec(twin, None, **options).sequences, wanted)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None, "the graphs do not keep their model"


def test_compile_is_true_or_false():
    model, draft = pair()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="compile='max': pass True or False"):
        spec(model, draft, **batch_of([text(7)]), compile="max")


@pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="needs a C++ compiler")
def test_the_real_compiler(monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "inductor")
    model, options = small(), batch_of([text(7)]) | {"max_new_tokens": 12}
    wanted = plain(model, **options, do_sample=False)
    with compiled_once(model):
        got = spec(model, None, "coupled", **options, spec_source="none", compile=True)
    assert torch.equal(got.sequences, wanted)
