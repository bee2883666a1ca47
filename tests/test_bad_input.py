"""Fail closed: what cannot be decoded exactly is refused by name, before either model has run and with nothing changed.

Every refusal is checked for all of it: the error's type, the cause and the way out in its message, no forward of target
or draft, configs / cache / streamer / processors untouched. `spec_fallback="plain"` turns refusals, and only them, into
one warning and plain decoding.
"""

import contextlib
import copy
import warnings
from pathlib import Path

import pytest
import torch
import transformers as tf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from toys import noisy, plain, prompts, tiny
from transformers import DynamicCache, GenerationConfig, LogitsProcessor, StaticCache
from transformers.generation import PromptLookupCandidateGenerator, UnbatchedClassifierFreeGuidanceLogitsProcessor

import hf_specgen
from hf_specgen import SpecDraftError, SpecNumericsError, SpecUnsupportedError

SETTINGS = {"do_sample": False, "max_new_tokens": 6, "spec_strategy": "rejection"}
DRAFTING = SETTINGS | {"num_assistant_tokens": 5}  # by itself, a draft as large as its target rests


@pytest.fixture(scope="module")
def target():
    return hf_specgen.enable(tiny(num_hidden_layers=1, hidden_size=16, intermediate_size=16, eos_token_id=None))


@pytest.fixture(scope="module")
def draft(target):
    return noisy(tiny(num_hidden_layers=1, hidden_size=16, intermediate_size=16, eos_token_id=None), 0.1)


class Streamer:
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(value.tolist())

    def end(self):
        self.calls.append("end")


class Counting(LogitsProcessor):
    """A custom processor with state."""

    def __init__(self):
        self.seen = 0

    def __call__(self, input_ids, scores):
        self.seen += 1
        return scores


class Uncopyable(Counting):
    def __init__(self):
        super().__init__()
        self.source = (line for line in ["a"])  # nobody can copy what a generator has still to give


def configs_of(models):
    return [
        config.to_dict()
        for model in models
        if isinstance(model, tf.PreTrainedModel)
        for config in (model.config, getattr(model, "generation_config", None))
        if config is not None
    ]


@contextlib.contextmanager
def nothing_happens(*models):
    """No forward of any of the models, nothing drawn from torch's generator, and their configs stay."""
    ran, before = [], configs_of(models)
    torch.manual_seed(7)
    state = torch.get_rng_state()
    modules = [model for model in models if isinstance(model, torch.nn.Module)]
    hooks = [m.register_forward_pre_hook(lambda module, _: ran.append(type(module).__name__)) for m in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    assert not ran
    assert configs_of(models) == before
    assert torch.equal(torch.get_rng_state(), state)


def refused(target, draft, complaint, error=SpecUnsupportedError, **kwargs):
    """The call raises, and nothing has happened. Returns the message."""
    settings = prompts([5]) | SETTINGS | kwargs
    with nothing_happens(target, draft), pytest.raises(error, match=complaint) as caught:
        target.generate(assistant_model=draft, **settings)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# -- knobs: invalid values, which no fallback forgives -----------------------------------------------------------------

INVALID = {
    "unknown strategy": ({"spec_strategy": "speculative"}, "spec_strategy='speculative'.*rejection, block, coupled"),
    "strategy of another type": ({"spec_strategy": 3}, "spec_strategy=3.*rejection, block, coupled"),
    "K zero": ({"num_assistant_tokens": 0}, "num_assistant_tokens=0.*at least 1"),
    "K negative": ({"num_assistant_tokens": -2}, "num_assistant_tokens=-2.*at least 1"),
    "K bool": ({"num_assistant_tokens": True}, "num_assistant_tokens=True.*integer"),
    "K float": ({"num_assistant_tokens": 2.0}, r"num_assistant_tokens=2\.0.*integer"),
    "K string": ({"num_assistant_tokens": "5"}, "num_assistant_tokens='5'.*integer"),
    "unknown schedule": (
        {"num_assistant_tokens_schedule": "maybe"},
        "schedule='maybe'.*goodput, constant, heuristic, .*target-rate.*Length",
    ),
    "schedule of another type": ({"num_assistant_tokens_schedule": 5}, "schedule=5.*goodput, constant"),
    "K beyond the schedule's greatest": (
        {"num_assistant_tokens_schedule": "target-rate", "num_assistant_tokens": 40},
        "initial=40, maximum=16",
    ),
    "unknown source": ({"spec_source": "suffix"}, "spec_source='suffix'.*hybrid, draft, lookup"),
    "source of another type": ({"spec_source": 1}, "spec_source=1.*hybrid, draft, lookup"),
    "source in a list": ({"spec_source": ["lookup"]}, r"spec_source=\['lookup'\].*hybrid, draft, lookup"),
    "lookup of nothing": ({"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens=0.*at least 1"),
    "lookup float": ({"prompt_lookup_num_tokens": 2.5}, r"prompt_lookup_num_tokens=2\.5.*integer"),
    "lookup bool": ({"prompt_lookup_num_tokens": True}, "prompt_lookup_num_tokens=True.*integer"),
    "n-gram of nothing": ({"max_matching_ngram_size": 0}, "max_matching_ngram_size=0.*at least 1"),
    "n-gram string": ({"max_matching_ngram_size": "2"}, "max_matching_ngram_size='2'.*integer"),
    "draft vocabulary of nothing": ({"draft_vocab_size": 0}, "draft_vocab_size=0"),
    "draft vocabulary bool": ({"draft_vocab_size": True}, "draft_vocab_size=True"),
    "draft vocabulary float": ({"draft_vocab_size": 32.0}, r"draft_vocab_size=32\.0"),
    "draft vocabulary string": ({"draft_vocab_size": "32k"}, "draft_vocab_size='32k'"),
    "draft vocabulary list of nothing": ({"draft_vocab_size": []}, r"draft_vocab_size=\[\]"),
    "draft vocabulary list of strings": ({"draft_vocab_size": [1, "2"]}, r"draft_vocab_size=\[1, '2'\]"),
    "threshold negative": ({"assistant_confidence_threshold": -0.1}, r"threshold=-0\.1.*between 0 and 1"),
    "threshold above one": ({"assistant_confidence_threshold": 1.5}, r"threshold=1\.5.*between 0 and 1"),
    "threshold string": ({"assistant_confidence_threshold": "0.4"}, "threshold='0.4'.*between 0 and 1"),
    "threshold nan": ({"assistant_confidence_threshold": float("nan")}, "threshold=nan.*between 0 and 1"),
    "threshold bool": ({"assistant_confidence_threshold": True}, "threshold=True.*between 0 and 1"),
    "unknown fallback": ({"spec_fallback": "quiet"}, "spec_fallback='quiet'.*plain"),
    "schedule of a given config": (
        {"generation_config": GenerationConfig(num_assistant_tokens_schedule="maybe", max_new_tokens=3)},
        "schedule='maybe'",
    ),
}


@pytest.mark.parametrize("kwargs, complaint", INVALID.values(), ids=INVALID)
def test_an_invalid_knob_is_refused(target, draft, kwargs, complaint):
    refused(target, draft, complaint, **kwargs)


@pytest.mark.parametrize("kwargs, complaint", INVALID.values(), ids=INVALID)
def test_an_invalid_knob_is_not_forgiven_by_the_fallback(target, draft, kwargs, complaint):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(target, draft, complaint, **{"spec_fallback": "plain"} | kwargs)


@pytest.mark.parametrize("of", ["target", "draft"])
def test_an_invalid_knob_in_a_models_own_config_is_refused(target, draft, of):
    model = {"target": target, "draft": draft}[of]
    saved, model.generation_config = model.generation_config, GenerationConfig(num_assistant_tokens=0)
    try:
        refused(target, draft, "num_assistant_tokens=0")
    finally:
        model.generation_config = saved


# -- calls that have no exact speculative form -------------------------------------------------------------------------


def static_cache(target):
    return StaticCache(config=target.config, max_cache_len=32)


def empty_row(model):
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[1] = 0
    return {"input_ids": prompts([5, 5])["input_ids"], "attention_mask": mask}


def embeddings(columns, width, **kwargs):
    return {"inputs_embeds": torch.zeros(1, columns, width), **kwargs}


def without_mask(columns):
    return {"input_ids": prompts([columns])["input_ids"], "attention_mask": None}


def cache_with(model, columns, rows=1):
    """A cache that has read so many columns, as `generate` takes it."""
    name = hf_specgen.compat.CACHE_NAME
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(**prompts([columns] * rows), **{name: cache})
    return {name: cache}


def cache_of_a_deeper_model(model):
    return cache_with(tiny(num_hidden_layers=2, hidden_size=16, intermediate_size=16), 3)


def session():
    return {"spec_session": hf_specgen.SpecSession()}


OTHER_DRAFTS = {
    "assistant_early_exit": 1,
    "use_mtp": True,
    "speculation_type": "dflash",
    "assistant_ensemble_weight": 0.5,
}
OTHER_DRAFTS = [{k: v} for k, v in OTHER_DRAFTS.items() if hasattr(GenerationConfig(), k)]  # by transformers' version

# name: (kwargs or model -> kwargs, message, whether stock plain decoding can do the call)
UNSUPPORTED = {
    "beams": ({"num_beams": 2}, "num_beams=2.*num_beams=1", True),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha=0.6", False),
    "guidance_scale": ({"guidance_scale": 1.5}, "guidance_scale.*spec_strategy", True),
    "dola": ({"dola_layers": "low"}, "dola_layers='low'", False),
    "synced_gpus": ({"synced_gpus": True}, "synced_gpus=True.*spec_strategy", False),
    "use_cache": ({"use_cache": False}, "use_cache=False.*Drop it", True),
    "use_cache of a given config": (
        {"generation_config": GenerationConfig(use_cache=False, max_new_tokens=6, pad_token_id=0)},
        "use_cache=False.*Drop it",
        True,
    ),
    "static cache": ({"cache_implementation": "static"}, 'cache_implementation="static".*Drop it', True),
    "offloaded cache": ({"cache_implementation": "offloaded"}, 'cache_implementation="offloaded"', False),
    "offloaded static cache": ({"cache_implementation": "offloaded_static"}, "offloaded_static", False),
    "quantized cache": ({"cache_implementation": "quantized"}, 'cache_implementation="quantized"', False),
    "paged cache": ({"cache_implementation": "paged"}, 'cache_implementation="paged".*Drop it', False),
    "embeddings of another width": (embeddings(5, 8, input_ids=None), r"\(1, 5, 8\).*16 wide.*16\]", False),
    "embeddings for other columns than the ids": (
        embeddings(4, 16),
        "inputs_embeds has 4 columns and input_ids 5.*or no ids",
        False,
    ),
    "a cache longer than the prompt": (
        lambda model: cache_with(model, 8),
        "cache holds 8 columns, the text has 5.*longer than the prompt.*SpecSession",
        False,
    ),
    "a cache of other rows": (lambda model: cache_with(model, 3, rows=2), r"cache holds 2 row\(s\).* has 1\.", False),
    "a cache of more layers": (cache_of_a_deeper_model, "cache has 2 layers, the target 1", False),
    "embeddings without ids that go on from a cache": (
        lambda model: embeddings(5, 16, input_ids=None, attention_mask=None) | cache_with(model, 3),
        "filled cache and no input_ids.*input_ids as well",
        False,
    ),
    "a mask of another length": (
        {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1, 1]])},
        r"\(1, 7\), input_ids \(1, 5\)\.",
        False,
    ),
    "a session and a cache": (lambda model: session() | cache_with(model, 3), "spec_session and a cache", False),
    "a session and hidden states": (
        lambda model: session() | {"output_hidden_states": True, "return_dict_in_generate": True},
        "spec_session with output_attentions / output_hidden_states",
        False,
    ),
    "a session and embeddings": (lambda model: session() | embeddings(5, 16), r"\['inputs_embeds'\]", False),
    "a session and positions": (
        lambda model: session() | {"position_ids": torch.arange(5)[None] + 3},
        "spec_session with position_ids",
        False,
    ),
    "a session that is none": ({"spec_session": {}}, r"spec_session=\{\}.*SpecSession\(\)", False),
    **{
        str(asked): (asked, f"{next(iter(asked))}=.*another source of drafts.*Drop it", False) for asked in OTHER_DRAFTS
    },
    "token healing without a tokenizer": ({"token_healing": True}, "token_healing=True needs tokenizer=", False),
    "custom_generate": ({"custom_generate": lambda model, **kwargs: None}, "custom_generate=.*Drop one", False),
    "negative prompt": (lambda model: {"negative_prompt_ids": prompts([3])["input_ids"]}, "negative_prompt_ids", False),
    "stop strings without tokenizer": ({"stop_strings": ["x"]}, "stop_strings.*tokenizer=", False),
    "empty row": (empty_row, "Row 1 of the attention mask is all zero.*Drop the row", True),
    "empty prompt": (
        {"input_ids": torch.zeros(1, 0, dtype=torch.long), "attention_mask": None},
        "prompt is empty.*at least one token",
        False,
    ),
    "generator list": ({"generator": [None, None]}, "list of 2, but there are 1 rows", False),
    "uncopyable processor, one row": (
        lambda model: {"logits_processor": [Uncopyable()]},
        "Uncopyable cannot be copied.*__deepcopy__",
        True,
    ),
    "uncopyable processor, two rows": (
        lambda model: {"logits_processor": [Uncopyable()], **prompts([5, 4])},
        "Uncopyable cannot be copied.*__deepcopy__",
        True,
    ),
}


def built(kwargs, model):
    """This call's own arguments: some are changed by use."""
    return kwargs(model) if callable(kwargs) else {k: v if callable(v) else copy.deepcopy(v) for k, v in kwargs.items()}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kwargs, complaint, _", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_an_unsupported_call_is_refused(target, draft, kwargs, complaint, _, do_sample):
    given = built(kwargs, target)
    processor = Counting()
    given["logits_processor"] = [*given.get("logits_processor", []), processor]
    one_row = given.get("input_ids") is None or len(given["input_ids"]) == 1
    streamer = Streamer() if one_row and given.get("num_beams", 1) == 1 else None
    refused(target, draft, complaint, streamer=streamer, do_sample=do_sample, **given)
    assert [p.seen for p in given["logits_processor"]] == [0] * len(given["logits_processor"])
    assert streamer is None or streamer.calls == ["end"], "nothing is shown, and nobody waits for ever"


# name: (draft, target -> draft or None for the usual, target -> kwargs, message)
REFUSED_LATE = {
    "a candidate generator and two rows": (
        lambda target: PromptLookupCandidateGenerator(num_output_tokens=3, max_matching_ngram_size=2, max_length=20),
        lambda target: prompts([5, 4]),
        "PromptLookupCandidateGenerator proposes for one row, and this call has 2",
    ),
    "guidance": (
        None,
        lambda target: {"logits_processor": [UnbatchedClassifierFreeGuidanceLogitsProcessor(1.5, target)]},
        "UnbatchedClassifierFreeGuidanceLogitsProcessor.*second prompt",
    ),
    "a vocabulary that the draft does not have": (None, lambda _: {"draft_vocab_size": [3, 64]}, "holds the id 64"),
    "a vocabulary of no draft": (
        lambda target: None,
        lambda _: {"draft_vocab_size": 8, "spec_source": "lookup"},
        "draft_vocab_size trims.*there is no draft",
    ),
    "a session of another target": (
        None,
        lambda _: session_of_another(),
        r"another target \(LlamaForCausalLM\).*reset\(\)",
    ),
}


def session_of_another():
    other, held = hf_specgen.enable(tiny(num_hidden_layers=1, eos_token_id=None)), session()
    other.generate(**prompts([5]), spec_source="lookup", **SETTINGS, **held)
    return held


@pytest.mark.parametrize("other, kwargs, complaint", REFUSED_LATE.values(), ids=REFUSED_LATE)
def test_what_is_refused_late_has_drawn_nothing(target, draft, other, kwargs, complaint):
    own = torch.Generator().manual_seed(3)
    before = own.get_state()
    given = kwargs(target)
    for generator in (None, own):
        other_draft = other(target) if other else draft
        refused(target, other_draft, complaint, do_sample=True, generator=generator, **given)
    assert torch.equal(own.get_state(), before)


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    "kwargs, complaint",
    [(k, c) for k, c, ok in UNSUPPORTED.values() if ok],
    ids=[n for n, c in UNSUPPORTED.items() if c[2]],
)
def test_the_fallback_decodes_plainly_with_one_warning(target, draft, kwargs, complaint, do_sample):
    """Sampled: what plain decoding draws from the same seed."""
    settings = prompts([5]) | {"do_sample": do_sample, "max_new_tokens": 6}
    torch.manual_seed(3)
    wanted = plain(target, **settings | built(kwargs, target))
    torch.manual_seed(3)
    with hf_specgen.collect_stats() as stats, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = target.generate(
            assistant_model=draft, **DRAFTING | {"spec_fallback": "plain"} | settings | built(kwargs, target)
        )
    told = [str(w.message) for w in caught if "without the draft" in str(w.message)]
    assert len(told) == 1
    assert torch.equal(sequences(got), sequences(wanted))
    assert stats.fallback_reason and stats.fallback_reason in told[0]
    assert stats.draft_forwards == stats.drafted == 0


def sequences(out):
    return out if isinstance(out, torch.Tensor) else out.sequences


@pytest.mark.parametrize("generator", [torch.Generator(), [None]], ids=["one", "a list"])
def test_the_fallback_does_not_leave_out_a_generator(target, draft, generator):
    complaint = 'generator= and spec_fallback="plain": .*torch.manual_seed.*num_beams=2'
    call = {"num_beams": 2, "generator": generator, "spec_fallback": "plain"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(target, draft, complaint, do_sample=True, **call)
    with pytest.warns(UserWarning, match="without the draft"):  # nothing is drawn
        got = target.generate(assistant_model=draft, **prompts([5]), **DRAFTING | call)
    assert torch.equal(got, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6, num_beams=2))


def test_the_fallback_keeps_the_streamer(target, draft):
    streamer, wanted = Streamer(), Streamer()
    settings = prompts([5]) | {"do_sample": False, "max_new_tokens": 6, "use_cache": False}
    plain(target, **settings, streamer=wanted)
    with pytest.warns(UserWarning, match="without the draft"):
        target.generate(assistant_model=draft, spec_fallback="plain", streamer=streamer, **DRAFTING | settings)
    assert streamer.calls == wanted.calls and streamer.calls[-1] == "end"


def test_the_fallback_tells_its_reason_in_the_dict(target, draft):
    settings = DRAFTING | {"spec_fallback": "plain", "return_dict_in_generate": True, "output_scores": True}
    with pytest.warns(UserWarning, match="without the draft"):
        out = target.generate(assistant_model=draft, **prompts([5]), num_beams=2, **settings)
    assert "num_beams=2" in out.spec_stats.fallback_reason
    assert out.spec_stats.acceptance_rate is None


def test_the_fallback_says_nothing_where_nothing_is_refused(target, draft):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = target.generate(
            assistant_model=draft, spec_fallback="plain", return_dict_in_generate=True, **prompts([5]), **DRAFTING
        )
    assert out.spec_stats.fallback_reason is None and out.spec_stats.drafted > 0


def test_a_static_cache_object_is_refused_and_stays(target, draft):
    cache = static_cache(target)
    refused(target, draft, "cache is StaticCache.*DynamicCache", **{hf_specgen.compat.CACHE_NAME: cache})
    assert cache.get_seq_length() == 0


def test_a_cache_handed_in_is_untouched_by_a_refusal(target, draft):
    given = cache_with(target, 5)
    cache = given[hf_specgen.compat.CACHE_NAME]
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    ids = prompts([9])
    refused(target, draft, "num_beams=2", **ids, num_beams=2, **given)
    assert cache.get_seq_length() == 5
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def test_a_streamer_with_two_rows_is_refused_unused(target, draft):
    streamer = Streamer()
    refused(target, draft, "shows one row, and this call has 2.*RowStreamers", streamer=streamer, **prompts([5, 4]))
    assert streamer.calls == ["end"]


def test_a_batch_without_pad_token_is_refused(draft):
    model = hf_specgen.enable(tiny(num_hidden_layers=1, pad_token_id=None, eos_token_id=None))
    refused(model, draft, "pad token.*pad_token_id=", **prompts([5, 4]))
    model.generate(**prompts([5]), assistant_model=draft, **DRAFTING)  # one row needs none
    model.generate(**prompts([5, 4]), assistant_model=draft, pad_token_id=0, **DRAFTING)


def holes():
    mask = torch.ones(2, 5, dtype=torch.long)
    mask[1, 2] = 0
    return {"input_ids": prompts([5, 5])["input_ids"], "attention_mask": mask}


COUNTS_COLUMNS = {
    "sliding windows": lambda: tiny(tf.MistralConfig, sliding_window=4, eos_token_id=None),
    "no position_ids": lambda: tiny(
        tf.TrOCRConfig,
        scale=3.0,
        eos_token_id=None,
        tie_word_embeddings=False,
        d_model=32,
        decoder_layers=1,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
    ),
    "ALiBi": lambda: tiny(tf.MptConfig, eos_token_id=None, d_model=32, n_heads=4, n_layers=1, use_cache=True),
}


@pytest.mark.parametrize("why", COUNTS_COLUMNS)
def test_a_hole_is_refused_where_the_answer_depends_on_it(draft, why):
    """How a model takes padding may have to be found out, once: the second refusal runs nothing."""
    model = hf_specgen.enable(COUNTS_COLUMNS[why]())
    with pytest.raises(SpecUnsupportedError):
        model.generate(assistant_model=draft, **holes(), **DRAFTING)
    refused(model, draft, r"Row 1 of the attention mask has a hole.*counts columns.*left or on the right", **holes())
    settings = holes() | {"do_sample": False, "max_new_tokens": 6}
    with pytest.warns(UserWarning, match="without the draft"):
        got = model.generate(assistant_model=draft, spec_fallback="plain", **DRAFTING | settings)
    assert torch.equal(got, plain(model, **settings))


def test_token_types_are_refused_with_a_session(draft):
    extra = session() | {"token_type_ids": torch.ones(1, 5, dtype=torch.long)}
    refused(hf_specgen.enable(gpt2()), draft, r"spec_session with \['token_type_ids'\]", **extra)


def test_a_session_of_another_target_is_refused(target, draft):
    other, mine = hf_specgen.enable(tiny(num_hidden_layers=1, eos_token_id=None)), session()
    other.generate(**prompts([5]), assistant_model=draft, **DRAFTING, **mine)
    refused(target, draft, r"another target \(LlamaForCausalLM\).*reset\(\)", **mine)
    mine["spec_session"].reset()
    out = target.generate(**prompts([5]), assistant_model=draft, **DRAFTING, **mine)
    assert torch.equal(out, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))


def test_a_cache_that_has_read_it_all_is_refused_where_a_layer_cannot_give_the_last_token_back(draft):
    model = hf_specgen.enable(tiny(tf.MistralConfig, sliding_window=4, eos_token_id=None))
    refused(model, draft, "read the whole text.*without its last token", **cache_with(model, 5))


@pytest.mark.parametrize("implementation", ["static", "offloaded_static"])
def test_a_refused_cache_implementation_leaves_nothing_on_the_model(target, draft, implementation):
    before = set(vars(target))
    refused(target, draft, implementation, cache_implementation=implementation)
    assert set(vars(target)) == before


# -- drafts that are none ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_a_strategy_without_a_draft_is_refused(target, strategy):
    refused(target, None, f'spec_strategy="{strategy}" needs a draft.*assistant_model=', spec_strategy=strategy)


def test_coupled_needs_no_draft(target):
    out = target.generate(**prompts([5]), **DRAFTING | {"spec_strategy": "coupled"})
    assert torch.equal(out, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))


@pytest.mark.parametrize("path", ["gpt2", Path("models/gpt2"), b"gpt2"], ids=repr)
def test_a_path_is_refused(target, path):
    refused(target, path, "is a path.*from_pretrained")


@pytest.mark.parametrize(
    "thing",
    [
        object(),
        torch.nn.Linear(2, 2),
        lambda ids: ids,
        tf.LlamaModel(
            tf.LlamaConfig(
                vocab_size=64, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
            )
        ),
        7,
    ],
    ids=["object", "module", "function", "headless model", "number"],
)
def test_what_is_no_causal_lm_is_refused(target, thing):
    refused(target, thing, f"assistant_model is a {type(thing).__name__}.*causal language model")


@pytest.mark.parametrize("wrap", ["itself", "enabled", "peft around", "peft beneath"])
def test_the_target_itself_is_refused_as_draft(wrap):
    peft = pytest.importorskip("peft") if "peft" in wrap else None
    target = tiny(num_hidden_layers=1)
    draft = target
    if peft:
        draft = peft.get_peft_model(target, peft.LoraConfig(target_modules=["q_proj"], r=2)).eval()
    if wrap == "peft beneath":
        target, draft = draft, target
    hf_specgen.enable(target)
    if wrap == "enabled":
        hf_specgen.enable(draft)
    refused(target, draft, "target object itself.*smaller model")


def test_an_enabled_draft_is_a_draft_like_any_other(target, draft):
    other = hf_specgen.enable(copy.deepcopy(draft))
    out = target.generate(**prompts([5]), assistant_model=other, **DRAFTING)
    assert torch.equal(out, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))


@pytest.mark.parametrize(
    "mark, kind",
    [
        ({"speculators_model_type": "eagle3"}, "EAGLE-3 head"),
        ({"medusa_num_heads": 3}, "Medusa head"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "EAGLE head"),
        ({"architectures": ["Eagle3LlamaForCausalLM"], "draft_vocab_size": 32}, "EAGLE-3 head"),
        ({"dflash_config": {"block_size": 8}}, "DFlash"),
    ],
    ids=str,
)
def test_a_head_checkpoint_is_refused_as_draft(target, draft, mark, kind):
    head = copy.deepcopy(draft)
    for name, value in mark.items():
        setattr(head.config, name, value)
    refused(target, head, f"{kind}.*not a causal LM.*Pass a whole causal LM")


def tokenizer(words):
    table = {word: i for i, word in enumerate(words)}
    return tf.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(table, unk_token=words[0])))


def test_tokenizers_that_disagree_are_refused_with_examples(target, draft):
    words = [f"w{i}" for i in range(64)]
    ours, theirs = tokenizer(words), tokenizer([f"v{i}" for i in range(64)])
    message = refused(target, draft, "cannot draft for", tokenizer=ours, assistant_tokenizer=theirs)
    assert "'w0'" in message and "'v0'" in message
    out = target.generate(
        **prompts([5]), assistant_model=draft, tokenizer=ours, assistant_tokenizer=tokenizer(words), **DRAFTING
    )
    assert torch.equal(out, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))


# -- architectures -----------------------------------------------------------------------------------------------------

RECURRENT = {
    "Rwkv": {"attention_hidden_size": 32},
    "xLSTM": {"num_heads": 2},
    "MiniMax": {
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 8,
        "num_local_experts": 2,
        "num_experts_per_tok": 1,
    },
}
BLOCKS_DIFFER = {
    "Mamba": {"state_size": 4},
    "FalconMamba": {"state_size": 4},
    "RecurrentGemma": {"lru_width": 32, "head_dim": 8, "attention_window_size": 16},
}


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("family", BLOCKS_DIFFER)
def test_models_that_cannot_go_on_with_several_tokens_are_refused(target, draft, family, whose):
    """A probe finds that out, once: the second refusal runs nothing."""
    odd = tiny(getattr(tf, f"{family}Config"), scale=1.0, **BLOCKS_DIFFER[family])
    pair = (hf_specgen.enable(odd), draft) if whose == "target" else (target, odd)
    with pytest.raises(SpecUnsupportedError):
        pair[0].generate(assistant_model=pair[1], **prompts([5]), **DRAFTING)
    refused(*pair, rf"The {whose} .{family}ForCausalLM. cannot check several tokens at once: .*spec_strategy")


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("family", RECURRENT)
def test_recurrent_and_hybrid_models_are_refused(target, draft, family, whose):
    odd = tiny(getattr(tf, f"{family}Config"), scale=1.0, **RECURRENT[family])
    pair = (hf_specgen.enable(odd), draft) if whose == "target" else (target, odd)
    refused(*pair, rf"{whose}\b.*(recurrent|rolled back).*spec_strategy")


def t5():
    torch.manual_seed(0)
    config = tf.T5Config(
        vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0, pad_token_id=0
    )
    return tf.T5ForConditionalGeneration(config).eval()


def test_an_encoder_decoder_is_refused_as_draft_of_a_decoder(target):
    refused(target, t5(), "draft T5ForConditionalGeneration is an encoder-decoder and the target is not.*causal")


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize(
    "config, sizes",
    [
        (tf.OpenAIGPTConfig, {"n_embd": 32, "n_layer": 1, "n_head": 2}),
        (tf.XLMConfig, {"emb_dim": 32, "n_layers": 1, "n_heads": 2, "max_position_embeddings": 64}),
    ],
    ids=["OpenAI GPT", "XLM"],
)
def test_models_without_any_cache_are_refused(target, draft, config, sizes, whose):
    torch.manual_seed(0)
    odd = tf.AutoModelForCausalLM.from_config(config(vocab_size=64, pad_token_id=0, **sizes)).eval()
    pair = (hf_specgen.enable(odd), draft) if whose == "target" else (target, odd)
    refused(*pair, rf"{whose}\b.*cache.*")


@pytest.mark.parametrize("family", ["Mamba", "MiniMax"])
def test_the_fallback_decodes_a_target_that_cannot_be_rolled_back(draft, family):
    odd = tiny(getattr(tf, f"{family}Config"), scale=1.0, **(RECURRENT | BLOCKS_DIFFER)[family])
    settings = prompts([5]) | {"do_sample": False, "max_new_tokens": 6, "return_dict_in_generate": True}
    wanted = plain(odd, **settings)
    hf_specgen.enable(odd)
    with pytest.warns(UserWarning, match="without the draft") as caught:
        got = odd.generate(assistant_model=draft, spec_fallback="plain", **DRAFTING | settings)
    assert sum("without the draft" in str(w.message) for w in caught) == 1
    assert torch.equal(got.sequences, wanted.sequences)
    assert "target" in got.spec_stats.fallback_reason


UNUSABLE = {
    "none": lambda target: None,
    "path": lambda target: "gpt2",
    "the target": lambda target: target,
    "recurrent": lambda target: tiny(tf.MambaConfig, scale=1.0, state_size=4),
    "training": lambda target: DROPOUTS["GPT-2's residual"]().train(),
    "far larger vocabulary": lambda target: tiny(num_hidden_layers=1, vocab_size=5000),
}


@pytest.mark.parametrize("build", UNUSABLE.values(), ids=UNUSABLE)
def test_the_fallback_decodes_without_an_unusable_draft(target, build):
    unusable = build(target)
    with pytest.raises(SpecUnsupportedError):
        target.generate(**prompts([5]), assistant_model=unusable, **DRAFTING)
    with pytest.warns(UserWarning, match="without the draft"):
        got = target.generate(**prompts([5]), assistant_model=unusable, spec_fallback="plain", **DRAFTING)
    assert torch.equal(got, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))


@pytest.mark.parametrize(
    "setting", [{"use_cache": False}, {"num_beams": 3}, {"cache_implementation": "static"}, *OTHER_DRAFTS], ids=str
)
def test_settings_of_the_targets_own_config_are_seen(target, draft, setting):
    saved, target.generation_config = target.generation_config, GenerationConfig(pad_token_id=0, **setting)
    try:
        refused(target, draft, "|".join(setting))
    finally:
        target.generation_config = saved


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_model_config_without_cache_does_not_matter(target, draft, whose):
    """Neither to plain decoding: it goes by the generation_config, and by the target's alone."""
    odd = copy.deepcopy(hf_specgen.disable(target) if whose == "target" else draft)
    hf_specgen.enable(target)
    odd.config.use_cache = False
    if whose == "draft":
        odd.generation_config.use_cache = False
    pair = (hf_specgen.enable(odd), draft) if whose == "target" else (target, odd)
    out = pair[0].generate(assistant_model=pair[1], **prompts([5, 4]), **DRAFTING, return_dict_in_generate=True)
    assert torch.equal(out.sequences, plain(pair[0], **prompts([5, 4]), do_sample=False, max_new_tokens=6))
    assert out.spec_stats.drafted > 0 and odd.config.use_cache is False


# -- training mode -----------------------------------------------------------------------------------------------------


def gpt2(**dropout):
    rates = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) | dropout
    return tiny(tf.GPT2Config, scale=3.0, n_embd=32, n_layer=1, n_head=2, eos_token_id=None, **rates)


DROPOUTS = {
    "Llama's attention": lambda: tiny(num_hidden_layers=1, attention_dropout=0.1, eos_token_id=None),
    "GPT-2's residual": lambda: gpt2(resid_pdrop=0.1),
    "GPT-2's attention": lambda: gpt2(attn_pdrop=0.1),
}


@pytest.mark.parametrize("whose", ["target", "draft"])
@pytest.mark.parametrize("build", DROPOUTS.values(), ids=DROPOUTS)
def test_training_mode_with_dropout_is_refused(target, draft, build, whose):
    odd = build().train()
    pair = (hf_specgen.enable(odd), draft) if whose == "target" else (target, odd)
    refused(*pair, f"{whose} is in training mode.*{whose}.eval()")
    assert odd.training


@pytest.mark.parametrize("build", [lambda: tiny(num_hidden_layers=1, eos_token_id=None), gpt2], ids=["llama", "gpt2"])
def test_training_mode_without_dropout_is_fine(build):
    target, draft = hf_specgen.enable(build().train()), build().train()
    out = target.generate(**prompts([5]), assistant_model=draft, **DRAFTING)
    assert torch.equal(out, plain(target, **prompts([5]), do_sample=False, max_new_tokens=6))
    assert target.training and draft.training


# -- failures on the way -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spoiled(model, spoil, after: int):
    """From its `after`-th forward on (0: the first), the model's output goes through `spoil(logits)`."""
    calls = []

    def hook(module, inputs, output):
        calls.append(1)
        if len(calls) > after:
            spoil(output.logits)

    handle = model.register_forward_hook(hook)
    try:
        yield calls
    finally:
        handle.remove()


def nan_in_row(row):
    def spoil(logits):
        logits[row, :, 7] = float("nan")

    return spoil


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("row, after", [(0, 0), (1, 0), (1, 2)])
@pytest.mark.parametrize("whose", ["target", "draft"])
def test_nan_logits_name_model_row_and_position(target, draft, whose, row, after, do_sample):
    model = {"target": target, "draft": draft}[whose]
    settings = DRAFTING | {"do_sample": do_sample, "max_new_tokens": 20, "eos_token_id": None}
    with (
        spoiled(model, nan_in_row(row), after),
        pytest.raises(SpecNumericsError, match=rf"(?i){whose} returned NaN logits for row {row} .*position \d+.*dtype"),
    ):
        target.generate(**prompts([5, 4]), assistant_model=draft, **settings | {"num_assistant_tokens": 2})
    out = target.generate(**prompts([5, 4]), assistant_model=draft, **DRAFTING)  # nothing is left behind
    assert torch.equal(out, plain(target, **prompts([5, 4]), do_sample=False, max_new_tokens=6))


@pytest.mark.parametrize("do_sample", [False, True])
def test_nan_weights_in_the_target_are_named_at_once(draft, do_sample):
    broken = hf_specgen.enable(tiny(num_hidden_layers=1))
    with torch.no_grad():
        broken.get_output_embeddings().weight[3].fill_(float("nan"))
    with pytest.raises(SpecNumericsError, match="target returned NaN logits for row 0 at position 5"):
        broken.generate(**prompts([5]), assistant_model=draft, **DRAFTING | {"do_sample": do_sample})


def test_invalid_values_can_be_removed_as_the_message_says(target, draft):
    settings = {"do_sample": False, "max_new_tokens": 6, "remove_invalid_values": True}
    with spoiled(target, nan_in_row(0), 0):
        wanted = plain(target, **prompts([5]), **settings)
        got = target.generate(**prompts([5]), assistant_model=draft, **DRAFTING | settings)
    assert torch.equal(got, wanted)


@pytest.mark.parametrize("whose", ["target", "draft"])
def test_a_cache_handed_in_is_restored_after_nan_logits(target, draft, whose):
    given = cache_with(target, 5)
    cache = given[hf_specgen.compat.CACHE_NAME]
    before = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
    ids = torch.cat([prompts([5])["input_ids"], prompts([3], seed=4)["input_ids"]], 1)
    call = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given}
    model = {"target": target, "draft": draft}[whose]
    with spoiled(model, nan_in_row(0), 1), pytest.raises(SpecNumericsError):
        target.generate(assistant_model=draft, **call, **DRAFTING)
    assert cache.get_seq_length() == 5
    for layer, (keys, values) in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys) and torch.equal(layer.values, values)


def out_of_memory(logits):
    raise torch.OutOfMemoryError("tried to allocate 3 GiB")


@pytest.mark.parametrize("after", [0, 1, 3, 5])
def test_a_draft_out_of_memory_is_named_as_the_draft(target, draft, after):
    with (
        spoiled(draft, out_of_memory, after),
        pytest.raises(SpecDraftError, match=r'draft ran out of memory.*3 GiB.*spec_fallback="plain"'),
    ):
        target.generate(**prompts([5, 4]), assistant_model=draft, **DRAFTING | {"max_new_tokens": 24})


@pytest.mark.parametrize("after", [0, 1, 3, 5])
@pytest.mark.parametrize("lengths", [[5], [5, 4, 7]], ids=["alone", "batch"])
def test_the_fallback_goes_on_without_a_draft_out_of_memory(target, draft, lengths, after):
    batch, settings = prompts(lengths), DRAFTING | {"max_new_tokens": 24}
    with spoiled(draft, out_of_memory, after) as calls, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        out = target.generate(
            **batch, assistant_model=draft, spec_fallback="plain", return_dict_in_generate=True, **settings
        )
    assert [str(w.message) for w in caught if "out of memory" in str(w.message)] == [
        f"{out.spec_stats.fallback_reason}; decoding goes on without it."
    ]
    assert torch.equal(out.sequences, plain(target, **batch, do_sample=False, max_new_tokens=24))
    assert "3 GiB" in out.spec_stats.fallback_reason and "3 GiB" in str(out.spec_stats)
    assert len(calls) == after + 1  # it is not tried again
    for row in out.spec_stats.rows:
        assert row.emitted == row.accepted + row.rounds - row.trimmed == 24


def test_out_of_memory_in_the_target_is_the_targets_own(target, draft):
    with spoiled(target, out_of_memory, 2), pytest.raises(torch.OutOfMemoryError):
        target.generate(
            **prompts([5]), assistant_model=draft, spec_fallback="plain", **DRAFTING | {"max_new_tokens": 24}
        )


def test_a_coupled_text_survives_the_draft(target, draft):
    """Sampled: with the seed's own text as oracle."""
    settings = DRAFTING | {
        "spec_strategy": "coupled",
        "do_sample": True,
        "max_new_tokens": 24,
        "spec_fallback": "plain",
    }

    def generator():
        return torch.Generator().manual_seed(3)

    wanted = target.generate(**prompts([5, 7]), **settings, generator=generator())
    with spoiled(draft, out_of_memory, 4), pytest.warns(UserWarning, match="out of memory"):
        got = target.generate(**prompts([5, 7]), assistant_model=draft, **settings, generator=generator())
    assert torch.equal(got, wanted)
