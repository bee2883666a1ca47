"""`enable(model, **defaults)`: code that knows nothing of speculation uses it; what a call says itself comes first."""

import copy
import pickle

import pytest
import torch
from toys import noisy, plain, prompts, reading, tiny, toy_tokenizer
from transformers import GenerationConfig, LlamaForCausalLM

import hf_specgen

NEW = 14
DRAFTING = {"spec_strategy": "rejection", "num_assistant_tokens": 5}  # by itself, a draft as large as its target rests


@pytest.fixture
def target():
    return tiny()


@pytest.fixture(scope="module")
def draft():
    return noisy(tiny())


@pytest.fixture(scope="module")
def batch():
    return prompts([7, 4, 9])


def stats_of(model, batch, *args, **options):
    """A greedy call: its ids, and the statistics of the speculative calls in it."""
    with hf_specgen.collect_stats() as stats:
        out = model.generate(*args, **{**batch, "max_new_tokens": NEW, "do_sample": False} | options)
    return (out if isinstance(out, torch.Tensor) else out.sequences).tolist(), stats


def greedy(model, batch, **options):
    return plain(model, **batch, **{"max_new_tokens": NEW, "do_sample": False} | options).tolist()


def widest(stats):
    return max(drafted for row in stats.rows for drafted, _ in row.trace)


# ---- what the defaults do -----------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_a_call_that_says_nothing_is_speculative_and_equal_to_plain(target, draft, batch, strategy):
    assert hf_specgen.enable(target, assistant_model=draft, spec_strategy=strategy, num_assistant_tokens=3) is target
    ids, stats = stats_of(target, batch)
    assert ids == greedy(target, batch)
    assert stats.calls == 1 and stats.accepted > 0 and widest(stats) == 3


def test_coupled_needs_no_draft_among_the_defaults(target, batch):
    hf_specgen.enable(target, spec_strategy="coupled")
    assert stats_of(target, batch)[1].calls == 1
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="needs a draft"):
        stats_of(target, batch, spec_strategy="rejection")


def test_positional_arguments_go_together_with_defaults(target, draft, batch):
    """Of `generate`: the inputs, then the config; the seventh is the draft."""
    other = noisy(target, seed=4)
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    config = GenerationConfig(max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=63)
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with hf_specgen.collect_stats() as stats:
        first = target.generate(ids, config, attention_mask=mask)
        second = target.generate(ids, config, None, None, None, None, other, attention_mask=mask)
    assert first.tolist() == second.tolist() == greedy(target, batch)
    assert stats.calls == 2
    traces = [row.trace for row in stats.rows]
    assert traces[:3] != traces[3:], "the second call has used the draft that it was given"


def test_a_tokenizer_among_the_defaults_serves_stop_strings(target, draft):
    tokenizer, one = toy_tokenizer(), prompts([7])
    whole = greedy(target, one, eos_token_id=None)[0][7:]
    stop = tokenizer.decode(whole[6])
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING, tokenizer=tokenizer)
    ids, _ = stats_of(target, one, stop_strings=[stop], eos_token_id=None)
    assert ids == greedy(target, one, stop_strings=[stop], tokenizer=tokenizer, eos_token_id=None)
    assert len(ids[0]) < 7 + NEW


def test_a_generator_among_the_defaults_moves_on_from_call_to_call(target, draft, batch):
    def run():
        generator = torch.Generator().manual_seed(5)
        hf_specgen.enable(target, assistant_model=draft, **DRAFTING | {"spec_strategy": "block"}, generator=generator)
        return [stats_of(target, batch, do_sample=True, top_k=0, temperature=2.0)[0] for _ in range(2)]

    first, second = run(), run()
    assert first == second and first[0] != first[1]


def test_a_session_among_the_defaults_is_every_calls(target, draft):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING, spec_session=hf_specgen.SpecSession())
    turn = prompts([9])
    for number in range(3):
        with reading(target) as shapes:
            ids, _ = stats_of(target, turn, eos_token_id=None)
        assert ids == greedy(target, turn, eos_token_id=None)
        assert (shapes[0][1] <= 2) == (number > 0), "a later turn does not read the ones before"
        turn = {"input_ids": torch.tensor(ids), "attention_mask": torch.ones(1, len(ids[0]), dtype=torch.long)}


def test_the_plain_fallback_among_the_defaults(target, draft, batch):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING, spec_fallback="plain")
    with pytest.warns(UserWarning, match="num_beams"):
        ids, stats = stats_of(target, batch, num_beams=2)
    assert ids == greedy(target, batch, num_beams=2) and "num_beams" in stats.fallback_reason
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="num_beams"):
        stats_of(target, batch, num_beams=2, spec_fallback=None)


# ---- what a call says itself --------------------------------------------------------------------------
def test_a_calls_own_arguments_come_first(target, draft, batch):
    other = noisy(target, 0)
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=3)
    want = greedy(target, batch)
    ids, stats = stats_of(target, batch, num_assistant_tokens=7)
    assert (ids, widest(stats)) == (want, 7)
    ids, stats = stats_of(target, batch, spec_strategy="coupled")
    assert (ids, stats.strategy) == (want, "coupled")
    ids, stats = stats_of(target, batch, assistant_model=other)
    assert ids == want and stats.accepted == stats.drafted
    ids, stats = stats_of(target, batch, spec_strategy="coupled", assistant_model=None)
    assert ids == want and stats.drafted == 0
    ids, stats = stats_of(target, batch)
    assert widest(stats) == 3 and stats.strategy == "rejection", "the next call has the defaults again"


def test_a_config_given_to_the_call_comes_before_the_defaults(target, draft, batch):
    """And the defaults before the models' own configs."""
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=3)
    given = GenerationConfig(max_new_tokens=NEW, pad_token_id=0, eos_token_id=63, num_assistant_tokens=7)
    assert widest(stats_of(target, batch, generation_config=given)[1]) == 7
    target.generation_config.num_assistant_tokens = 6
    assert widest(stats_of(target, batch)[1]) == 3


@pytest.mark.parametrize(
    "more", [{}, {"spec_fallback": "plain", "spec_source": "draft"}, {"generator": None}, {"num_beams": 2}], ids=str
)
def test_spec_strategy_none_decodes_plainly_without_any_draft(target, batch, more):
    hooked = noisy(target)
    hooked.register_forward_pre_hook(lambda *_: pytest.fail("the draft was run"))
    hf_specgen.enable(target, assistant_model=hooked, spec_strategy="rejection", num_assistant_tokens=3)
    ids, stats = stats_of(target, batch, spec_strategy=None, **more)
    assert ids == greedy(target, batch, **{k: v for k, v in more.items() if k == "num_beams"}) and stats.calls == 0


def test_spec_strategy_none_with_a_generator_is_told(target, draft, batch):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="generator= needs a spec_strategy"):
        stats_of(target, batch, spec_strategy=None, generator=torch.Generator())


@pytest.mark.parametrize(
    "setting",
    [{"spec_source": "draft"}, {"draft_vocab_size": 32}, {"spec_fallback": "plain"}, {"spec_session": 1}],
    ids=str,
)
def test_a_setting_without_a_strategy_is_told(target, draft, batch, setting):
    """transformers would say that the model does not use it."""
    hf_specgen.enable(target)
    ((name, value),) = setting.items()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match=f"{name}={value!r} needs a spec_strategy: pass spec_"):
        stats_of(target, batch, assistant_model=draft, **setting)


def test_spec_strategy_none_means_the_same_without_defaults(target, batch):
    hf_specgen.enable(target)
    ids, stats = stats_of(target, batch, spec_strategy=None)
    assert ids == greedy(target, batch) and stats.calls == 0


def test_the_classs_own_generate_stays_plain(target, draft, batch):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    with hf_specgen.collect_stats() as stats:
        greedy(target, batch)
    assert stats.calls == 0


# ---- enable, enable again, disable --------------------------------------------------------------------
def test_enabling_again_replaces_all_defaults(target, draft, batch):
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection", num_assistant_tokens=2)
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="block", num_assistant_tokens_schedule="constant")
    _, stats = stats_of(target, batch)
    assert stats.strategy == "block" and widest(stats) == 5, "constant by itself is five, not the two of before"
    hf_specgen.enable(target)
    assert stats_of(target, batch)[1].calls == 0


def test_disable_takes_the_defaults_with_it(target, draft, batch):
    before = set(vars(target))
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    assert hf_specgen.disable(target) is target and set(vars(target)) == before
    assert stats_of(target, batch)[1].calls == 0
    hf_specgen.disable(target)


def test_defaults_of_one_model_are_no_others(target, draft, batch):
    other = copy.deepcopy(target)
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    hf_specgen.enable()
    try:
        assert stats_of(other, batch)[1].calls == stats_of(draft, batch)[1].calls == 0
        assert stats_of(target, batch)[1].calls == 1
    finally:
        hf_specgen.disable()
    assert stats_of(target, batch)[1].calls == 1


def test_the_given_objects_are_neither_changed_nor_copied(target, draft, batch):
    config = copy.deepcopy(draft.generation_config.to_dict())
    defaults = {"assistant_model": draft, "spec_strategy": "rejection", "num_assistant_tokens": 3}
    hf_specgen.enable(target, **defaults)
    stats_of(target, batch, num_assistant_tokens=6)
    assert defaults == {"assistant_model": draft, "spec_strategy": "rejection", "num_assistant_tokens": 3}
    assert draft.generation_config.to_dict() == config and "generate" not in vars(draft)


WRONG = [
    ({"assistant_model": "draft"}, TypeError, "without a model or a spec_strategy"),
    ({"spec_strategy": None, "assistant_model": "draft"}, TypeError, "spec_strategy"),
    ({"spec_strategy": "rejection", "k": 4}, TypeError, r"\['k'\].*num_assistant_tokens"),
    ({"spec_strategy": "rejection", "max_new_tokens": 4}, TypeError, "max_new_tokens"),
    ({"spec_strategy": "typical"}, hf_specgen.SpecUnsupportedError, "typical.*rejection"),
    ({"spec_strategy": "rejection", "num_assistant_tokens": 0}, hf_specgen.SpecUnsupportedError, "num_assistant"),
    ({"spec_strategy": "rejection", "spec_fallback": "yes"}, hf_specgen.SpecUnsupportedError, "spec_fallback"),
]


@pytest.mark.parametrize("defaults, error, says", WRONG, ids=lambda x: str(x) if isinstance(x, dict) else "")
@pytest.mark.parametrize("enabled", [False, True])
def test_wrong_defaults_are_told_at_once_and_change_nothing(target, draft, batch, defaults, error, says, enabled):
    if enabled:
        hf_specgen.enable(target, assistant_model=draft, **DRAFTING | {"spec_strategy": "block"})
    before = vars(target).get("generate")
    with pytest.raises(error, match=says):
        hf_specgen.enable(target, **defaults)
    assert vars(target).get("generate") is before


def test_defaults_need_a_model(draft):
    with pytest.raises(TypeError, match="without a model"):
        hf_specgen.enable(assistant_model=draft, **DRAFTING)
    with pytest.raises(TypeError, match="not a dict"):
        hf_specgen.enable({}, assistant_model=draft, **DRAFTING)


# ---- the model stays a model --------------------------------------------------------------------------
@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_has_the_defaults_and_decodes_with_its_own_weights(target, draft, batch, way):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    twin = pickle.loads(pickle.dumps(target)) if way == "pickle" else copy.deepcopy(target)
    with torch.no_grad():
        twin.lm_head.weight.neg_()
    want = greedy(twin, batch)
    ids, stats = stats_of(twin, batch)
    assert (ids, stats.calls) == (want, 1) and want != greedy(target, batch)
    hf_specgen.disable(twin)
    assert stats_of(target, batch)[1].accepted > 0, "the original keeps its own"


def test_the_draft_is_no_part_of_the_model(target, draft, batch, tmp_path):
    parameters, keys = sum(p.numel() for p in target.parameters()), list(target.state_dict())
    modules = len(list(target.modules()))
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    assert sum(p.numel() for p in target.parameters()) == parameters and list(target.state_dict()) == keys
    assert len(list(target.modules())) == modules
    target.save_pretrained(tmp_path)
    back = LlamaForCausalLM.from_pretrained(tmp_path)
    assert "generate" not in vars(back) and stats_of(back, batch)[1].calls == 0
    target.double()
    assert next(draft.parameters()).dtype == torch.float32


def test_a_mixin_class_takes_defaults_too(draft, batch):
    class Mine(hf_specgen.SpecGenerationMixin, LlamaForCausalLM):
        pass

    mine = Mine(tiny().config).eval()
    mine.load_state_dict(tiny().state_dict())
    hf_specgen.enable(mine, assistant_model=draft, **DRAFTING)
    ids, stats = stats_of(mine, batch)
    assert ids == greedy(tiny(), batch) and stats.accepted > 0
    hf_specgen.disable(mine)
    assert stats_of(mine, batch)[1].calls == 0


@pytest.mark.parametrize("wrapper", ["peft", "data parallel", "compile"])
def test_wrappers_are_looked_through(target, draft, batch, wrapper):
    if wrapper == "peft":
        peft = pytest.importorskip("peft")
        wrapped = peft.get_peft_model(target, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])).eval()
        with torch.no_grad():
            for name, p in wrapped.named_parameters():
                if "lora_B" in name:
                    p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(0)) * 0.1)
    elif wrapper == "compile":
        wrapped = torch.compile(target)
    else:
        wrapped = torch.nn.DataParallel(target)
    want = greedy(target, batch)
    assert hf_specgen.enable(wrapped, assistant_model=draft, **DRAFTING) is wrapped
    caller = target if wrapper == "data parallel" else wrapped
    ids, stats = stats_of(caller, batch)
    assert ids == want and stats.calls == 1 and stats.accepted > 0
    if wrapper == "peft":
        with wrapped.disable_adapter():
            bare = greedy(tiny(), batch)
            assert stats_of(wrapped, batch)[0] == bare != want
    hf_specgen.disable(wrapped)
    assert stats_of(caller, batch)[1].calls == 0


def test_a_peft_draft_among_the_defaults(target, batch):
    peft = pytest.importorskip("peft")
    wrapped = peft.get_peft_model(noisy(target), peft.LoraConfig(r=4, target_modules=["q_proj"])).eval()
    hf_specgen.enable(target, assistant_model=wrapped, **DRAFTING)
    ids, stats = stats_of(target, batch)
    assert ids == greedy(target, batch) and stats.accepted > 0


def test_another_custom_generate_is_not_mixed_with_the_defaults(target, draft):
    hf_specgen.enable(target, assistant_model=draft, **DRAFTING)
    seen = []

    def own(model, input_ids, **kwargs):
        seen.append(kwargs.keys())
        return input_ids

    ids = prompts([4])["input_ids"]
    assert torch.equal(target.generate(ids, custom_generate=own), ids)
    assert len(seen) == 1 and "spec_strategy" not in seen[0]


def test_another_draft_of_a_call_does_not_read_with_the_tokenizer_of_the_defaults(target, draft, batch, monkeypatch):
    own, read = toy_tokenizer(), []
    pair_up = hf_specgen.api.pair_up
    monkeypatch.setattr(
        hf_specgen.api,
        "pair_up",
        lambda model, draft, ours, theirs: read.append(theirs) or pair_up(model, draft, ours, theirs),
    )
    hf_specgen.enable(target, assistant_model=draft, assistant_tokenizer=own, tokenizer=own, **DRAFTING)
    other = copy.deepcopy(draft)
    for options in ({}, {"assistant_model": draft}, {"assistant_model": other}):
        stats_of(target, batch, **options)
    stats_of(target, batch, assistant_model=other, assistant_tokenizer=own)
    assert read == [own, own, None, own]
