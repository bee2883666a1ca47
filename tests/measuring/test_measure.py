"""What measure_pair expects, against what decoding then does."""

import copy
import itertools
import json
import statistics
import time

import pytest
import torch
from pairing_toys import make_tokenizer
from text_toys import OTHER, byte_level, fast, renumbered, sentencepiece
from tokenizers import Tokenizer, models, pre_tokenizers
from toys import contrary, noisy, plain, tiny, toy_tokenizer
from transformers import AutoModelForCausalLM

import hf_specgen
from hf_specgen import SpecUnsupportedError, collect_stats
from hf_specgen.api import SpecGenerationMixin
from hf_specgen.compat import text_config
from hf_specgen.measuring.forecast import break_even, total
from hf_specgen.measuring.measure import Pair, measure_pair
from hf_specgen.measuring.prompts import encode
from hf_specgen.pairing import pair_up

PROMPTS = ["abcab", "the cab sings", "Zorro", "a"]
NEW = 30


@pytest.fixture(scope="module")
def target():
    return tiny(num_hidden_layers=2)


@pytest.fixture(scope="module")
def draft(target):
    return noisy(target, 0.1)


def measured(target, draft, prompts=PROMPTS, **options):
    return measure_pair(
        target,
        draft,
        prompts,
        tokenizer=toy_tokenizer(),
        **{"max_new_tokens": NEW, "max_assistant_tokens": 4} | options,
    )


def decoded(target, draft, k: int, prompts=PROMPTS, new: int = NEW, tokenizers=None, **options):
    """The statistics of the same prompts, decoded one at a time."""
    tokenizer = tokenizers["tokenizer"] if tokenizers else toy_tokenizer()
    with collect_stats() as stats:
        for prompt in prompts:
            SpecGenerationMixin.generate(
                target,
                **encode(tokenizer, prompt),
                **tokenizers or {},
                assistant_model=draft,
                spec_strategy="rejection",
                num_assistant_tokens=k,
                max_new_tokens=new,
                **{"do_sample": False} | options,
            )
    return stats


def assert_as_decoded(expected, stats):
    forecast = expected.forecast
    assert (forecast.emitted, forecast.rounds, forecast.accepted) == (stats.emitted, stats.rounds, stats.accepted)
    assert forecast.acceptance_by_position.conditional == stats.acceptance_by_position.conditional
    assert forecast.tokens_per_target_forward == stats.tokens_per_target_forward


@pytest.mark.parity
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eos_token_id": [63, 17, 40]},
        {"repetition_penalty": 1.3, "min_new_tokens": 6},
        {"no_repeat_ngram_size": 2},
        {"stop_strings": ["the"]},
    ],
    ids=["plain", "several-eos", "penalty", "ngrams", "stop-strings"],
)
def test_greedy_counts_are_those_of_decoding(target, draft, options):
    found = measured(target, draft, **options)
    assert [e.k for e in found.lengths] == [1, 2, 3, 4]
    for expected in found.lengths:
        stats = decoded(target, draft, expected.k, tokenizers={"tokenizer": toy_tokenizer()}, **options)
        assert 0 < stats.accepted < stats.drafted
        assert_as_decoded(expected, stats)
        if "eos_token_id" not in options:  # what the draft writes after a mistake may end its round
            assert expected.forecast.drafted == pytest.approx(stats.drafted, rel=0.03)
            assert expected.forecast.acceptance_rate == pytest.approx(stats.acceptance_rate, rel=0.03)
    assert found.new_tokens == found.lengths[0].forecast.emitted


def test_without_an_eos_all_counts_are_exact(target):
    target = tiny(num_hidden_layers=2, eos_token_id=None)
    draft = noisy(target, 0.1)
    for expected in measured(target, draft).lengths:
        stats = decoded(target, draft, expected.k)
        assert_as_decoded(expected, stats)
        assert expected.forecast.drafted == stats.drafted
        assert expected.forecast.acceptance_by_position == stats.acceptance_by_position


@pytest.mark.filterwarnings("ignore:.*beyond the draft's context")
def test_a_draft_with_a_short_context_and_fewer_rows(target):
    draft = noisy(target, 0.1)
    draft.resize_token_embeddings(60)
    text_config(draft).max_position_embeddings = 20
    for expected in measured(target, draft, PROMPTS[1:]).lengths:
        with pytest.warns(UserWarning, match="beyond the draft's context"):
            stats = decoded(target, draft, expected.k, PROMPTS[1:])
        assert_as_decoded(expected, stats)


def test_a_draft_with_two_ids_swapped(target, draft):
    """Mapped by their strings: the counts are those of the draft with the target's ids."""
    words, order = [f"w{i}" for i in range(64)], [*range(30), 31, 30, *range(32, 64)]
    swapped = copy.deepcopy(draft)
    for table in (swapped.get_input_embeddings(), swapped.get_output_embeddings()):
        table.weight.data = table.weight.data[order]
    ours, theirs = make_tokenizer(words), make_tokenizer([words[i] for i in order])
    options = {"max_new_tokens": NEW, "max_assistant_tokens": 3, "tokenizer": ours}
    prompts = ["w5", "w30", "w44"]
    same = measure_pair(target, draft, prompts, assistant_tokenizer=ours, **options)
    found = measure_pair(target, swapped, prompts, assistant_tokenizer=theirs, **options)
    assert [e.forecast for e in found.lengths] == [e.forecast for e in same.lengths]
    unmapped = measure_pair(target, swapped, prompts, assistant_tokenizer=ours, **options)
    assert 0.2 < found.acceptance < 1 and unmapped.lengths[0].forecast != same.lengths[0].forecast


def test_sampled_counts_are_those_of_decoding_in_the_mean(target, draft):
    """Means over many texts and over many decodings (rows of one batch), within three standard errors."""
    options = {"do_sample": True, "temperature": 1.5, "top_k": 20, "eos_token_id": 40}
    k, prompt, new, seeds = 3, PROMPTS[1], 12, 200
    pair = Pair(target, draft, (toy_tokenizer(), None), k, options)
    torch.manual_seed(0)
    texts = [pair.decode(encode(toy_tokenizer(), prompt), new)[0] for _ in range(seeds)]
    torch.manual_seed(1)
    runs = decoded(target, draft, k, [prompt], new, num_return_sequences=seeds, **options).rows
    expected = [text.forecasts[k - 1] for text in texts]
    for name in ("rounds", "accepted", "emitted", "drafted"):
        ours, theirs = ([getattr(x, name) for x in several] for several in (expected, runs))
        error = ((statistics.variance(ours) + statistics.variance(theirs)) / seeds) ** 0.5
        assert error < 0.1 * statistics.mean(theirs)
        assert statistics.mean(ours) == pytest.approx(statistics.mean(theirs), abs=3 * error), name
    first = total(expected).acceptance_by_position.conditional[0]
    overlaps = [x for text in texts for x in text.overlap]
    assert 0.3 < first < 0.9 and first == pytest.approx(statistics.mean(overlaps), rel=0.1)  # E[min(1, q/p)] = 1 − TV


def slowed(model, seconds: float):
    """Every forward takes at least so much longer, per call: like a model that reads its weights."""
    model.register_forward_pre_hook(lambda *_: time.sleep(seconds))
    return model


def test_expected_speed_up_is_the_real_one():
    """Sleeping models: their step times are what a busy machine cannot hide."""
    target = slowed(tiny(num_hidden_layers=2, eos_token_id=None), 0.03)
    draft = slowed(noisy(tiny(num_hidden_layers=2, eos_token_id=None), 0.1), 0.006)
    found = measured(target, draft, PROMPTS[1:2], max_assistant_tokens=3)
    assert found.best_k == found.fastest.k > 0 and f"K = {found.best_k} is best" in found.verdict
    seconds = {0: 0.0, found.best_k: 0.0}
    for _, k in itertools.product(range(2), seconds):
        start = time.perf_counter()
        if k:
            decoded(target, draft, k, PROMPTS[1:2])
        else:
            inputs = encode(toy_tokenizer(), PROMPTS[1])
            plain(target, **inputs, max_new_tokens=NEW, do_sample=False)
        seconds[k] += time.perf_counter() - start
    assert found.fastest.call_speedup == pytest.approx(seconds[0] / seconds[found.best_k], rel=0.2)
    assert found.fastest.forecast.tokens_per_round > 1.3 * found.fastest.decode_speedup  # drafting is not free


def test_cannot_win_is_said_with_its_reason():
    target = slowed(tiny(num_hidden_layers=1, eos_token_id=None), 0.005)
    found = measured(target, slowed(contrary(tiny(num_hidden_layers=1)), 0.005), PROMPTS[:1], max_assistant_tokens=2)
    assert found.best_k == 0 and found.fastest.decode_speedup < 0.7
    assert found.acceptance < 0.1 and found.break_even == break_even(found.fastest.k, found.fastest.round_cost)
    assert "cannot win: a draft step costs" in found.verdict
    assert "no acceptance would" in found.verdict or f"and it is {found.acceptance:.0%}" in found.verdict


@pytest.mark.filterwarnings("ignore:.*beyond the draft's context")
def test_what_could_not_be_measured_is_none(target, draft):
    draft = copy.deepcopy(draft)
    text_config(draft).max_position_embeddings = 4
    found = measured(target, draft, PROMPTS[:1], max_assistant_tokens=2)
    assert (found.acceptance, found.cost_ratio, found.draft_step_seconds, found.best_k) == (None,) * 4
    assert found.target_step_seconds > 0 and found.lengths[0].forecast.rounds == found.new_tokens
    assert "within the draft's context" in str(found) and json.dumps(found.to_dict())


def test_shown_and_as_json(target, draft):
    told = []
    found = measured(target, draft, PROMPTS[:1], max_assistant_tokens=8, listener=lambda *step: told.append(step))
    assert told == [("measuring", 0, 1)]
    lines = str(found).splitlines()
    assert len(lines) <= 15 and "greedy" in lines[0] and found.verdict in lines[-1] and max(map(len, lines[:-1])) <= 80
    plain_values = json.loads(json.dumps(found.to_dict()))
    assert plain_values["lengths"][3]["num_assistant_tokens"] == 4
    assert plain_values["lengths"][3]["acceptance_rate"] == found.lengths[3].forecast.acceptance_rate
    assert plain_values["best_num_assistant_tokens"] == found.best_k


def test_the_models_are_left_as_they_were(target, draft):
    hf_specgen.enable(target, assistant_model=draft, spec_strategy="rejection")  # plain decoding is still plain
    try:
        before = target.generate, target.generation_config.to_dict(), draft.generation_config.to_dict()
        found = measured(target, draft, PROMPTS[:1])
        assert_as_decoded(found.lengths[3], decoded(target, draft, 4, PROMPTS[:1]))
        assert before == (target.generate, target.generation_config.to_dict(), draft.generation_config.to_dict())
    finally:
        hf_specgen.disable(target)


def test_refusals(target, draft):
    with pytest.raises(ValueError, match="no prompts"):
        measured(target, draft, [])
    with pytest.raises(ValueError, match=r"max_new_tokens=2.*nothing to draft"):
        measured(target, draft, max_new_tokens=2)
    with pytest.raises(ValueError, match="no chat template"):
        measured(target, draft, [[{"role": "user", "content": "a"}]])
    with pytest.raises(SpecUnsupportedError, match="num_beams"):
        measured(target, draft, num_beams=2)
    with pytest.raises(ValueError, match="ended with its first token"):
        measured(target, draft, PROMPTS[:1], eos_token_id=list(range(64)))
    with pytest.raises(SpecUnsupportedError, match="is a path"):
        measured(target, "draft")


# -- another vocabulary ------------------------------------------------------------------------------------------------

WORDS = [f"w{i}" for i in range(64)]
MOVED = {i: (5 * i + 7) % 64 for i in range(64)}  # another numbering of the same words
STARTS = ["w5", "w30 w8", "w44", "w2 w60 w17"]


def word_tokenizers(known: int = 64):
    """The target's, and the draft's: other ids, and other words from `known` on."""
    names = {MOVED[i]: WORDS[i] if i < known else f"v{i}" for i in range(64)}
    ours = fast(Tokenizer(models.WordLevel({name: i for i, name in enumerate(WORDS)}, unk_token="w0")))
    ours.backend_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    theirs = fast(Tokenizer(models.WordLevel({name: i for i, name in names.items()}, unk_token=names[0])))
    return {"tokenizer": ours, "assistant_tokenizer": theirs}


@pytest.fixture(scope="module")
def endless():
    return tiny(num_hidden_layers=2, eos_token_id=None)


def measured_across(target, draft, prompts, tokenizers, **options):
    options = {"max_new_tokens": NEW, "max_assistant_tokens": 4} | options
    return measure_pair(target, draft, prompts, **tokenizers, **options)


def test_a_perfect_draft_under_other_ids(endless, how):
    tokenizers = word_tokenizers()
    found = measured_across(endless, renumbered(endless, MOVED, 64), STARTS[:2], tokenizers)
    assert found.acceptance == 1.0 and found.teacher_forced == (how == "token by token")
    assert all(e.forecast.acceptance_rate == 1.0 for e in found.lengths)
    assert found.cost_ratio > 0 and all(e.round_cost > 0 for e in found.lengths)


@pytest.mark.parity
@pytest.mark.parametrize("known", [64, 40])
def test_greedy_counts_under_other_ids_are_those_of_decoding(endless, how, known):
    draft, tokenizers = renumbered(noisy(endless, 0.1), MOVED, 64), word_tokenizers(known)
    found = measured_across(endless, draft, STARTS, tokenizers)
    for expected in found.lengths:
        stats = decoded(endless, draft, expected.k, STARTS, tokenizers=tokenizers)
        assert 0 < stats.accepted < stats.drafted
        assert_as_decoded(expected, stats)
        assert expected.forecast.drafted == stats.drafted
    assert 0.1 < found.acceptance < 1


SPELLINGS = {
    "bytes to bytes": lambda: (byte_level(340), byte_level(300, OTHER)),
    "bytes to pieces": lambda: (byte_level(340), sentencepiece(150)),
}


@pytest.mark.parity
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_counts_across_spellings_are_those_of_decoding(spelling, how):
    """A draft that often writes what its target writes: a noisy copy of the rows of shared tokens. Without the special
    token that it has no counterpart for, which it reads in one way alone and in another behind accepted tokens."""
    ours, theirs = (fast(t) for t in SPELLINGS[spelling]())
    target = tiny(vocab_size=len(ours), num_hidden_layers=2, eos_token_id=None)
    shared = pair_up(target, tiny(vocab_size=len(theirs), eos_token_id=None), ours, theirs).pairs
    draft = renumbered(noisy(target, 0.02), {t: d for d, t in shared.items()}, len(theirs))
    tokenizers = {"tokenizer": ours, "assistant_tokenizer": theirs}
    prompts = ["def merge(a, b):\n    return", "Übermäßig 😀 schöne", "x"]
    options = {"tokenizers": tokenizers, "suppress_tokens": [ours.convert_tokens_to_ids("<end>")]}
    found = measured_across(target, draft, prompts, **options)
    assert 0.02 < found.acceptance < 1
    for expected in found.lengths:
        assert_as_decoded(expected, decoded(target, draft, expected.k, prompts, **options))


def test_sampled_counts_under_other_ids_are_those_of_the_same_ids(endless):
    """The same texts, drawn from the same generator."""
    draft, tokenizers = noisy(endless, 0.1), word_tokenizers()
    options = {"do_sample": True, "temperature": 1.5}
    same = {"tokenizer": tokenizers["tokenizer"], "assistant_tokenizer": tokenizers["tokenizer"]}
    seen = []
    for model, names in ((draft, same), (renumbered(draft, MOVED, 64), tokenizers)):
        pair = Pair(endless, model, (names["tokenizer"], names["assistant_tokenizer"]), 3, options)
        torch.manual_seed(0)
        seen.append(pair.decode(encode(names["tokenizer"], STARTS[1]), NEW)[0])
    assert seen[1].teacher_forced and seen[1].overlap == pytest.approx(seen[0].overlap, abs=1e-5)
    for a, b in zip(*(one.forecasts for one in seen), strict=True):
        assert (b.rounds, b.accepted) == (pytest.approx(a.rounds), pytest.approx(a.accepted))


@pytest.mark.filterwarnings("ignore:.*beyond the draft's context")
def test_a_short_context_under_other_ids(endless, how):
    draft, tokenizers = renumbered(noisy(endless, 0.1), MOVED, 64), word_tokenizers()
    text_config(draft).max_position_embeddings = 20
    for expected in measured_across(endless, draft, STARTS, tokenizers).lengths:
        with pytest.warns(UserWarning, match="beyond the draft's context"):
            stats = decoded(endless, draft, expected.k, STARTS, tokenizers=tokenizers)
        assert_as_decoded(expected, stats)


def test_the_drafts_tokenizer_is_found_beside_it(folder):
    """And a pair whose tokenizers have no text in common is refused."""
    tokenizers = word_tokenizers()
    draft = AutoModelForCausalLM.from_pretrained(folder("draft", tokenizer=tokenizers["assistant_tokenizer"])).eval()
    options = {"tokenizer": tokenizers["tokenizer"], "max_new_tokens": 6, "max_assistant_tokens": 1}
    target = copy.deepcopy(draft)
    assert measure_pair(target, draft, ["w1"], **options).new_tokens > 0
    strangers = make_tokenizer([f"x{i}" for i in range(64)])
    with pytest.raises(SpecUnsupportedError, match="No token stands for the same text"):
        measure_pair(target, draft, ["w1"], **options, assistant_tokenizer=strangers)
