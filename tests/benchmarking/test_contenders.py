"""Each contender decodes what plain decoding decodes, counts right, and leaves the models alone."""

import copy

import pytest
import torch
from bench_toys import call

from hf_specgen.benchmarking.bare import Ideal
from hf_specgen.benchmarking.calls import settings_of
from hf_specgen.benchmarking.comparing import Reference
from hf_specgen.benchmarking.contenders import Compiled, Plain, Stock
from hf_specgen.benchmarking.ours import Draft, Lookup, Ours

OURS = [
    (Ours, {"strategy": "rejection"}),
    (Ours, {"strategy": "rejection", "k": 3}),
    (Draft, {"strategy": "rejection"}),
    (Lookup, {"strategy": "rejection"}),
]


def test_rows_are_decoded_to_their_eos(models):
    text = Plain(models).decode(call()).ids
    stop = text[0][4]
    cut = Plain(models).decode(call(eos=(stop,))).ids
    assert cut[0] == text[0][: text[0].index(stop) + 1] and len(cut[0]) < len(text[0])
    assert cut[1] == (text[1][: text[1].index(stop) + 1] if stop in text[1] else text[1])


@pytest.mark.parametrize("kind, options", [(Stock, {}), (Stock, {"k": 3}), *OURS])
def test_greedy_answers_are_plains(models, kind, options):
    answer = kind(models, **options).decode(call())
    assert answer.ids == Plain(models).decode(call()).ids
    stats = answer.stats
    trimmed = stats.accepted + stats.rounds - sum(map(len, answer.ids))
    assert stats.rounds and 0 <= trimmed <= stats.drafted
    assert sum(of.drafted for of in stats.by_source.values()) == stats.drafted
    assert answer.decode_seconds > 0
    if options.get("k"):
        assert max(drafted for drafted, _ in stats.history) == 3


def test_time_to_first_token(models):
    one = call(rows=((5, 9, 11, 7),))
    for contender in (Plain(models), Stock(models), Ours(models, 3, "rejection")):
        answer = contender.decode(one)
        assert 0 < answer.first_token_seconds < 5
    batch = Ours(models, 3, "rejection").decode(call())
    assert batch.first_token_seconds > 0 and sum(batch.split) == pytest.approx(batch.decode_seconds)


def test_stock_counts_what_its_target_reads(models):
    widths = []
    hook = models.target.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    answer = Stock(models, k=3).decode(call(rows=((5, 9, 11, 7),)))
    hook.remove()
    assert sum(widths) == 4 + answer.stats.drafted + answer.stats.rounds - 1
    assert answer.stats.accepted + answer.stats.rounds == len(answer.ids[0])


def test_a_batch_of_stock_is_its_rows_one_by_one(models):
    both = Stock(models).decode(call())
    apart = [Stock(models).decode(row) for row in call().rows()]
    assert both.ids == [answer.ids[0] for answer in apart]
    assert both.stats.history == [entry for answer in apart for entry in answer.stats.history]
    assert both.first_token_seconds is None


def test_sampling_follows_the_seed(models):
    def drawn(contender, seed):
        torch.manual_seed(seed)
        return contender.decode(call(temperature=2.0)).ids

    for contender in (Plain(models), Stock(models), Ours(models, 3, "block")):
        assert drawn(contender, 1) == drawn(contender, 1) != drawn(contender, 2)


def test_compiled_decodes_through_torch_compile(models, monkeypatch):
    used = []

    def compile_(function, **_):
        return lambda *args, **kwargs: used.append(1) or function(*args, **kwargs)

    monkeypatch.setattr(torch, "compile", compile_)
    before = set(vars(models.target))
    contender = Compiled(models)
    assert contender.decode(call()).ids == Plain(models).decode(call()).ids
    assert len(used) >= 11  # every step but the prefill
    contender.close()
    assert set(vars(models.target)) == before


def test_compiled_says_when_transformers_does_not_compile(models):
    models.target.hf_device_map = {"model": "cpu", "lm_head": "disk"}
    with pytest.raises(RuntimeError, match="does not compile LlamaForCausalLM as it is loaded here"):
        Compiled(models).decode(call())


def test_settings_of_a_model_are_put_back(models):
    own = models.target.generation_config
    own.repetition_penalty, own.eos_token_id = 1.3, [63, 7]
    wanted = copy.deepcopy(own)
    with pytest.raises(KeyError), settings_of(models.target, num_assistant_tokens=4):
        inside = models.target.generation_config
        assert inside.repetition_penalty is None and inside.eos_token_id == [63, 7] and inside.num_assistant_tokens == 4
        raise KeyError
    assert models.target.generation_config is own and own == wanted


def test_stock_leaves_the_drafts_settings(models):
    before = models.draft.generation_config.to_dict()
    models.draft.generation_config.num_assistant_tokens_schedule = "heuristic"
    Stock(models, k=2).decode(call())
    assert models.draft.generation_config.to_dict() == before | {"num_assistant_tokens_schedule": "heuristic"}


def test_a_difference_is_found_with_its_gap(models):
    plain = Plain(models)
    answer = plain.decode(call())
    logits = (
        type(models.target)
        .generate(models.target, **call().options(), output_logits=True, return_dict_in_generate=True)
        .logits
    )
    reference = Reference(plain, call())
    assert reference.compare(answer) == (True, None, None) and reference.ids == answer.ids
    answer.ids = [list(row) for row in answer.ids]
    own = answer.ids[1][6]
    answer.ids[0][9] = answer.ids[1][6] = other = (own + 1) % 60
    same, at, gap = reference.compare(answer)
    assert (same, at) == (False, 6) and gap == float(logits[6][1, own] - logits[6][1, other]) > 0
    answer.ids = [reference.ids[0][:5], reference.ids[1]]
    assert reference.compare(answer) == (False, 5, None)


def test_ideal_is_the_sum_of_bare_forwards(models):
    one = call(rows=((5, 9, 11, 7, 5, 9, 11, 7),))
    ideal = Ideal(models, one.input_ids)
    answer = Ours(models, 3, "rejection").decode(one)
    total = ideal.seconds(answer)
    widths = [drafted + 1 for drafted, _ in answer.stats.history[1:]]
    steps = sum(ideal.steps["target", width] for width in widths)
    drafting = answer.draft_forwards * ideal.steps["draft", 1]
    assert answer.draft_forwards >= answer.stats.drafted - answer.stats.rounds
    assert total == pytest.approx(steps + drafting + sum(ideal.prefills.values()))
    plain = Plain(models).decode(one)
    total = ideal.seconds(plain)
    assert total == pytest.approx(ideal.prefills["target"] + (len(plain.ids[0]) - 1) * ideal.steps["target", 1])
