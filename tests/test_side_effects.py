"""No side effects: models, configs, generation configs, custom objects, registries and random states are as before,
after a call that went well and after one that did not, alone and with several threads on the same two models."""

import copy
import threading

import pytest
import torch
from toys import noisy, plain, prompts, row_alone, tiny
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import hf_specgen
from hf_specgen import compat

NEW = 14


@pytest.fixture
def pair():
    """Target (enabled) and draft; disabled afterwards."""
    target = tiny()
    draft = noisy(target)
    hf_specgen.enable(target)
    return target, draft


@pytest.fixture(scope="module")
def prompt():
    return prompts([7])


@pytest.fixture(scope="module")
def batch():
    return prompts([7, 4, 9])


def state(model):
    """Everything of a model that a call could leave different: every module's attributes, flags and hooks, all tensors
    (address and version), both configs."""
    modules = {}
    for name, module in model.named_modules():
        attributes = {
            key: value if isinstance(value, (int, float, str, bool, type(None))) else id(value)
            for key, value in vars(module).items()
        }
        hooks = {key: len(value) for key, value in vars(module).items() if key.endswith("_hooks")}
        modules[name] = (type(module), module.training, attributes, hooks)
    parameters = {
        name: (p.data_ptr(), p._version, p.requires_grad, p.grad is None) for name, p in model.named_parameters()
    }
    return {
        "modules": modules,
        "parameters": parameters,
        "buffers": {name: (b.data_ptr(), b._version) for name, b in model.named_buffers()},
        "config": copy.deepcopy(model.config.__dict__),
        "generation_config": (id(model.generation_config), copy.deepcopy(model.generation_config.__dict__)),
    }


@pytest.fixture
def unchanged(pair):
    """Fails the test if the pair is not, at its end, what it was at its beginning."""
    before = [state(model) for model in pair]
    yield
    for was, model, who in zip(before, pair, ("target", "draft"), strict=True):
        now = state(model)
        for what in was:
            assert now[what] == was[what], f"{who}: {what}"


def call(pair, strategy="rejection", **kwargs):
    """Five tokens a round: by itself, a draft as large as its target rests."""
    target, draft = pair
    options = {"max_new_tokens": NEW, "do_sample": False, "num_assistant_tokens": 5} | kwargs
    return target.generate(assistant_model=draft, spec_strategy=strategy, **options)


class Broken(RuntimeError):
    pass


class FailsAtToken(LogitsProcessor):
    """Raises when it is shown `at` new tokens; says nothing before."""

    def __init__(self, at, length, error=Broken):
        self.at, self.length, self.error = at, length, error

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self.length + self.at:
            raise self.error("on purpose")
        return scores


class CriterionFails(StoppingCriteria):
    def __init__(self, at):
        self.at = at

    def __call__(self, input_ids, scores, **kwargs):
        if input_ids.shape[1] >= self.at:
            raise Broken("on purpose")
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


# ---- calls that go well -------------------------------------------------------------------------------
@pytest.mark.parametrize("schedule", ["constant", "heuristic", "heuristic_transient"])
@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_nothing_of_the_models_changes(pair, batch, unchanged, strategy, schedule):
    options = {
        "num_assistant_tokens_schedule": schedule,
        "num_assistant_tokens": 3,
        "assistant_confidence_threshold": 0.05,
    }
    call(pair, strategy, **batch, do_sample=True, output_scores=True, return_dict_in_generate=True, **options)
    call(pair, strategy, **batch, **options)


def test_arguments_of_the_call_are_not_written_to(pair, batch, unchanged):
    config = GenerationConfig(
        max_new_tokens=NEW, stop_strings=None, eos_token_id=[63, 5], pad_token_id=0, repetition_penalty=1.2
    )
    processors, criteria = [FailsAtToken(99, 7)], [CriterionFails(99)]
    given = {name: x.clone() for name, x in batch.items()}
    before = copy.deepcopy(config.__dict__)
    kept = (list(processors), list(criteria), *(copy.copy(vars(x[0])) for x in (processors, criteria)))
    pair[0].generate(
        **given, assistant_model=pair[1], spec_strategy="block", generation_config=config, logits_processor=processors,
        stopping_criteria=criteria, num_assistant_tokens=5,
    )  # fmt: skip
    assert config.__dict__ == before
    assert (processors, criteria, vars(processors[0]), vars(criteria[0])) == kept
    assert all(torch.equal(given[name], batch[name]) for name in batch)


def test_the_second_of_two_equal_calls_is_equal(pair, batch, unchanged):
    """Also under the heuristic schedule, which in transformers lives on in the draft."""
    options = {"num_assistant_tokens_schedule": "heuristic", "num_assistant_tokens": 6, "do_sample": True, "top_k": 0}
    options |= {"return_dict_in_generate": True}
    runs = []
    for _ in range(2):
        torch.manual_seed(11)
        out = call(pair, **batch, **options)
        runs.append((out.sequences.tolist(), [row.trace for row in out.spec_stats.rows]))
        torch.manual_seed(5)
        call(pair, "coupled", **row_alone(batch, 1), do_sample=True)  # an unrelated call between
    assert runs[0] == runs[1]


def test_training_flags_gradients_and_grad_mode_survive(pair, prompt, unchanged):
    target, draft = pair
    draft.train()  # no dropout in it: allowed, and it has to stay so
    was = torch.is_grad_enabled()
    call(pair, **prompt)
    assert draft.training and not target.training and torch.is_grad_enabled() == was
    draft.eval()
    out = target(prompt["input_ids"], labels=prompt["input_ids"])
    out.loss.backward()
    assert target.lm_head.weight.grad is not None
    target.zero_grad(set_to_none=True)


def test_weights_changed_between_calls_count_at_once(pair, prompt):
    """RL rollouts: nothing of the target is remembered from call to call."""
    target, _ = pair
    first = call(pair, **prompt).tolist()
    with torch.no_grad():
        for p in target.parameters():
            if p.dim() >= 2:
                p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(9)) * p.std() * 0.5)
    want = plain(target, **prompt, max_new_tokens=NEW, do_sample=False).tolist()
    assert want != first
    assert call(pair, **prompt).tolist() == want


# ---- calls that fail ----------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("rows", [1, 3])
def test_exception_in_a_processor_at_token_five(pair, batch, unchanged, error, rows):
    inputs = batch if rows == 3 else row_alone(batch, 0)
    want = plain(pair[0], **inputs, max_new_tokens=NEW, do_sample=False).tolist()
    with pytest.raises(error, match="on purpose"):
        call(pair, **inputs, logits_processor=[FailsAtToken(5, 7, error)])
    assert plain(pair[0], **inputs, max_new_tokens=NEW, do_sample=False).tolist() == want
    assert (
        call(pair, **row_alone(batch, 0)).tolist()
        == plain(pair[0], **row_alone(batch, 0), max_new_tokens=NEW, do_sample=False).tolist()
    )


def test_exception_in_a_stopping_criterion(pair, prompt, unchanged):
    with pytest.raises(Broken):
        call(pair, **prompt, stopping_criteria=[CriterionFails(11)])


@pytest.mark.parametrize("who", [0, 1], ids=["target", "draft"])
@pytest.mark.parametrize("at", [1, 2, 5])
@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_exception_in_a_forward(pair, batch, who, at, error):
    before = [state(model) for model in pair]
    cache_free = call(pair, **batch).tolist()
    forwards = []

    def fail(*_):
        forwards.append(1)
        if len(forwards) == at:
            raise error("on purpose")

    hook = pair[who].register_forward_pre_hook(fail)
    try:
        with pytest.raises(error, match="on purpose"):
            call(pair, **batch)
    finally:
        hook.remove()
    for was, model in zip(before, pair, strict=True):
        now = state(model)
        for what in ("parameters", "buffers", "config", "generation_config"):
            assert now[what] == was[what]
        assert {n: set(m[2]) for n, m in now["modules"].items()} == {n: set(m[2]) for n, m in was["modules"].items()}
    assert call(pair, **batch).tolist() == cache_free


@pytest.mark.parametrize("where", ["processor", "draft's forward", "refusal"])
def test_a_cache_handed_in_is_put_back_if_the_call_raises(pair, prompt, unchanged, where):
    target, draft = pair
    cache = DynamicCache(config=target.config)
    with torch.no_grad():
        target(prompt["input_ids"][:, :4], **{compat.CACHE_NAME: cache}, use_cache=True)
    held = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    options = {compat.CACHE_NAME: cache}
    hook = None
    if where == "processor":
        options["logits_processor"] = [FailsAtToken(5, 7)]
    elif where == "refusal":
        options["guidance_scale"] = 2.0
    else:
        hook = draft.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(KeyboardInterrupt("on purpose")))
    try:
        with pytest.raises((Broken, KeyboardInterrupt, hf_specgen.SpecUnsupportedError)):
            call(pair, **prompt, **options)
    finally:
        if hook is not None:
            hook.remove()
    assert cache.get_seq_length() == 4
    for layer, (keys, values) in zip(cache.layers, held, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def test_a_refused_call_changes_nothing_and_draws_nothing(pair, prompt, unchanged):
    torch.manual_seed(0)
    before = torch.get_rng_state()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="num_beams"):
        call(pair, **prompt, num_beams=3, do_sample=True)
    assert torch.equal(torch.get_rng_state(), before)


def test_spec_fallback_decodes_as_plain_with_one_warning_and_leaves_no_trace(pair, prompt, unchanged):
    want = plain(pair[0], **prompt, max_new_tokens=NEW, num_beams=3, do_sample=False).tolist()
    with pytest.warns(UserWarning, match="Decoding without the draft.*num_beams") as caught:
        out = call(pair, **prompt, num_beams=3, spec_fallback="plain", return_dict_in_generate=True)
    assert len([w for w in caught if "Decoding without the draft" in str(w.message)]) == 1
    assert out.sequences.tolist() == want
    assert "num_beams" in out.spec_stats.fallback_reason


def test_stop_strings_of_the_models_config_are_back_after_an_error(pair, prompt):
    target, _ = pair
    target.generation_config.stop_strings = ["x"]
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="tokenizer"):
        call(pair, **prompt)
    assert target.generation_config.stop_strings == ["x"]


# ---- registries ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_outside_our_forwards_attention_is_stock_bit_for_bit(batch, attention):
    """Our sdpa stands in front of the registered one for good; outside our forwards it only passes calls on."""
    target = tiny(attn_implementation=attention)
    draft = noisy(target)
    names = set(ALL_ATTENTION_FUNCTIONS.valid_keys())
    with torch.no_grad():
        before = target(**batch).logits
        wide = target(
            batch["input_ids"], attention_mask=batch["attention_mask"], output_attentions=attention == "eager"
        )
    hf_specgen.enable(target)
    call((target, draft), **batch)
    hf_specgen.disable(target)
    assert set(ALL_ATTENTION_FUNCTIONS.valid_keys()) == names
    with torch.no_grad():
        assert torch.equal(target(**batch).logits, before)
        after = target(
            batch["input_ids"], attention_mask=batch["attention_mask"], output_attentions=attention == "eager"
        )
    assert torch.equal(after.logits, wide.logits)
    if attention == "eager":
        assert all(torch.equal(a, b) for a, b in zip(after.attentions, wide.attentions, strict=True))


def test_folding_is_over_after_an_exception_in_the_middle_of_a_forward(pair, batch):
    from hf_specgen.cache import attention

    hook = (
        pair[0]
        .model.layers[1]
        .register_forward_pre_hook(
            lambda module, args: (
                (_ for _ in ()).throw(Broken("on purpose")) if attention._folded_masks.get() is not None else None
            )
        )
    )
    try:
        with pytest.raises(Broken):
            call(pair, **batch)
    finally:
        hook.remove()
    assert attention._folded_masks.get() is None


def test_many_calls_do_not_stack_up_wrappers(pair, prompt):
    call(pair, **prompt)
    once = ALL_ATTENTION_FUNCTIONS["sdpa"]
    for _ in range(3):
        call(pair, **prompt)
        hf_specgen.enable(pair[0])
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is once


# ---- random states ------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("new", [1, NEW])
def test_a_sampled_call_draws_one_number_from_the_global_generator(pair, batch, strategy, rows, new):
    """Whatever the strategy, the batch and the length: one 64-bit integer, from which all rows' noise is keyed."""
    inputs = batch if rows == 3 else row_alone(batch, 0)
    torch.manual_seed(21)
    call(pair, strategy, **inputs, max_new_tokens=new, do_sample=True)
    after = torch.get_rng_state()
    torch.manual_seed(21)
    torch.randint(-(2**63), 2**63 - 1, ())
    assert torch.equal(after, torch.get_rng_state())


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
def test_a_greedy_call_draws_nothing_as_plain_draws_nothing(pair, batch, strategy):
    torch.manual_seed(21)
    before = torch.get_rng_state()
    plain(pair[0], **batch, max_new_tokens=NEW, do_sample=False)
    assert torch.equal(torch.get_rng_state(), before)
    call(pair, strategy, **batch)
    assert torch.equal(torch.get_rng_state(), before)


def test_with_a_generator_the_global_state_is_untouched_and_the_generator_moves_by_one_draw(pair, batch):
    torch.manual_seed(21)
    before = torch.get_rng_state()
    own = torch.Generator().manual_seed(4)
    call(pair, **batch, do_sample=True, generator=own)
    assert torch.equal(torch.get_rng_state(), before)
    reference = torch.Generator().manual_seed(4)
    torch.randint(-(2**63), 2**63 - 1, (), generator=reference)
    assert torch.equal(own.get_state(), reference.get_state())


def test_python_and_numpy_random_states_are_untouched(pair, batch):
    import random

    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()[1].tolist()
    call(pair, **batch, do_sample=True)
    assert random.getstate() == before and np.random.get_state()[1].tolist() == numpy_before


# ---- threads ------------------------------------------------------------------------------------------
THREADS, CALLS = 4, 10


def jobs():
    """40 different calls: strategies, draft lengths, prompts, batches, seeds; every fourth one plain."""
    strategies = ("rejection", "block", "coupled", None)
    for i in range(THREADS * CALLS):
        strategy = strategies[i % 4]
        lengths = [3 + i % 7] if i % 3 else [3 + i % 7, 9, 2 + i % 5]
        options = {"max_new_tokens": 6 + i % 5, "do_sample": strategy is not None and i % 2 == 1, "top_k": 0}
        options |= {"repetition_penalty": 1.3} if i % 5 == 0 else {}
        if strategy is not None:
            schedule = ("constant", "heuristic")[i % 2]
            options |= {
                "spec_strategy": strategy,
                "num_assistant_tokens": 1 + i % 6,
                "num_assistant_tokens_schedule": schedule,
            }
        yield i, prompts(lengths, seed=i), options


def run_job(target, draft, i, inputs, options):
    """Seeds are given per call: the global generator is shared by threads by nature."""
    if "spec_strategy" in options:
        options = options | {"assistant_model": draft, "generator": torch.Generator().manual_seed(i)}
    return target.generate(**inputs, **options).tolist()


def test_four_threads_on_the_same_two_models_each_get_their_serial_result(pair, unchanged):
    target, draft = pair
    todo = list(jobs())
    serial = [run_job(target, draft, *job) for job in todo]
    results, errors = [None] * len(todo), []
    start = threading.Barrier(THREADS)

    def work(thread):
        torch.set_num_threads(1)
        try:
            start.wait(30)
            # neighbours run different kinds of calls at any moment
            for n in range(CALLS):
                index = (n * THREADS + (thread + n) % THREADS) % len(todo)
                results[index] = run_job(target, draft, *todo[index])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not errors
    assert results == serial


def test_statistics_of_threads_do_not_mix(pair, prompt):
    counted = {}

    def work(n):
        with hf_specgen.collect_stats() as stats:
            for _ in range(n):
                call(pair, **prompt, max_new_tokens=5)
        counted[n] = stats.calls

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counted == {1: 1, 2: 2, 3: 3}
