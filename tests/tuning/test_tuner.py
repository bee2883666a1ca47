"""A pair is tuned: who runs when, what is checked before, and that the outcome is one that generate() takes."""

import io
import re
import time

import pytest
import torch
from bench_toys import WORDS
from rich.console import Console
from toys import noisy, plain, prompts, tiny, toy_tokenizer

import hf_specgen
from hf_specgen import SpecConfig
from hf_specgen.benchmarking import contenders
from hf_specgen.benchmarking.summary import call_of
from hf_specgen.tuning import Tuner, candidates, report, tune
from hf_specgen.tuning import tuner as tuner_module
from hf_specgen.tuning.choosing import EVERYTHING, LEAST
from hf_specgen.tuning.file import to_dict

SMALL = {"max_new_tokens": 10, "repeats": 2}


@pytest.fixture(scope="module")
def pair():
    target = tiny(eos_token_id=None)
    return target, noisy(target)


def tuner(pair, texts=WORDS[:2], **options) -> Tuner:
    return Tuner(*pair, texts, tokenizer=toy_tokenizer(), **SMALL | options)


def names(outcome) -> set[str]:
    return {record.cell.contender for record in outcome.records}


def test_a_tuned_pair_decodes_with_its_file(pair, tmp_path):
    one = tuner(pair, {"a": WORDS[:1], "b": WORDS[1:2]}, per_task=True)
    before = [dict(vars(model)) for model in pair]
    steps = []
    config = one.run(lambda *step: steps.append(step))
    assert [dict(vars(model)) for model in pair] == before
    greedy, sampled = one.outcomes
    assert {"plain", "hybrid", "draft", "lookup"} <= names(greedy) and greedy.default == "hybrid"
    assert any(name.endswith(", block") for name in names(sampled)) and all(r.error is None for r in greedy.records)
    assert [done for _, done, _ in steps] == [*range(1, len(steps) + 1)] and steps[-1][1] == steps[-1][2]
    assert config.tuned.tasks == ("a", "b") and {e.temperature for e in config.tuned.entries} == {0.0, 1.0}
    assert all(entry.why and entry.speedup > 0 for entry in config.tuned.entries)
    config.save_pretrained(tmp_path)
    assert to_dict(SpecConfig.from_pretrained(tmp_path)) == to_dict(config)
    hf_specgen.enable(pair[0])
    try:
        for batch in (prompts([5]), prompts([7, 4])):
            options = {**batch, "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
            out = pair[0].generate(**options, assistant_model=pair[1], spec_config=tmp_path)
            assert out.tolist() == plain(pair[0], **options).tolist()
    finally:
        hf_specgen.disable(pair[0])


def test_everybody_takes_turns_and_new_ones_join_after_the_first_round(pair, monkeypatch):
    monkeypatch.setattr(candidates, "VOCABULARIES", (32,))
    decode, asked = candidates.Tried.decode, []
    monkeypatch.setattr(candidates.Tried, "decode", lambda self, call: asked.append(call) or decode(self, call))
    one = tuner(pair, temperatures=(0.0,))
    config = one.run()
    (outcome,) = one.outcomes
    warm_ups = [call for call in asked if call.max_new_tokens < SMALL["max_new_tokens"]]
    assert len(warm_ups) == len(names(outcome) - {"plain"}) + 2, "once each, of the two surveys, too"
    first, second = ([r for r in outcome.records if r.repeat == number] for number in (0, 1))
    prompts_of = {}
    for record in outcome.records:
        prompts_of.setdefault((record.repeat, record.cell.contender), []).append(record.cell.prompt)
    assert all(sorted(asked) == [0, 1] for asked in prompts_of.values())
    trimmed = {r.cell.contender for r in second} - {r.cell.contender for r in first}
    assert len(trimmed) == 1 and not outcome.refused
    assert int(re.search(r"32\+(\d+) draft tokens", trimmed.pop())[1]) > 0, "ids that the target has written"
    assert {"plain", "hybrid"} <= {r.cell.contender for r in second}
    assert config.tuned.measured["prompts"] == {"prompts": 2}


def test_batch_sizes_are_tried_together_and_told_apart_where_they_differ(pair, monkeypatch):
    """Here, time is told: drafting is twice as fast as plain decoding alone, and half as fast in a batch."""
    monkeypatch.setattr(tuner_module, "rates_of", lambda records, scope=EVERYTHING: rates_as_told(records, scope))
    texts = {"a": WORDS[:2], "b": WORDS[3:4]}
    one = tuner(pair, texts, temperatures=(0.0, 1.0), batch_sizes=(1, 3), limit=2, max_new_tokens=8)
    assert [(job.task, job.batch) for job in one.groups[0][:4]] == [("a", 1), ("a", 3), ("b", 1), ("b", 3)]
    config = one.run()
    for outcome in one.outcomes:
        assert {r.cell.batch for r in outcome.records} == {1, 3} and not any(r.error for r in outcome.records)
    places = [(entry.temperature, entry.batch, entry.settings.spec_source) for entry in config.tuned.entries]
    assert places == [(0.0, None, "hybrid"), (0.0, 3, "none"), (1.0, None, "hybrid")]
    assert {rows for rows, *_ in config.knowledge.costs["target"]} >= {1, 3}, "tables of both"
    assert config.tuned.measured["prompts"] == {"a": 1, "b": 1} and config.tuned.batch_sizes == (1, 3)
    told = Console(width=200, file=io.StringIO())
    told.print(report.table(one.outcomes))
    printed = told.file.getvalue()
    assert "temperature 0, batch 3" in printed and "→ batch 3: plain decoding: nothing" in printed
    assert report.to_dict(one.outcomes[0])["winners"][1]["batch"] == 3


def rates_as_told(records, scope) -> dict:
    rates: dict = {}
    for record in filter(scope.holds, records):
        slow = {1: 2.0, 3: 0.5}[record.cell.batch] if record.cell.contender == "hybrid" else 1.0
        calls = {(call_of(record), i): slow for i in range(LEAST if record.cell.batch == 1 else 3)}
        rates.setdefault(record.cell.contender, {}).update(calls)
    return {name: rates[name] for name in ("plain", "hybrid") if name in rates}


def test_a_vocabulary_that_cannot_be_trimmed_is_told(pair, monkeypatch):
    monkeypatch.setattr(candidates, "VOCABULARIES", (32,))
    draft = noisy(pair[0])
    draft.lm_head.register_forward_hook(lambda *_: None)
    one = tuner((pair[0], draft), temperatures=(0.0,))
    one.run()
    (reason,) = one.outcomes[0].refused.values()
    assert "hooks on its output layer" in reason


def test_without_a_draft(pair):
    one = tuner((pair[0], None), temperatures=(0.0,))
    config = one.run()
    assert names(one.outcomes[0]) == {"plain", "lookup"} and config.tuned.draft is None
    assert config.spec_source in ("lookup", "none")


def test_the_time_is_kept(pair, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def tick(*_):
        now[0] += 20

    one = tuner(pair, WORDS[:3], temperatures=(0.0, 1.0), minutes=1)
    config = one.run(tick)
    for outcome in one.outcomes:
        assert {r.cell.prompt for r in outcome.records} == {0} and {r.repeat for r in outcome.records} == {0}
        assert len(names(outcome)) == len(outcome.records) >= 4, "one prompt, by everybody"
    assert [entry.settings.spec_source for entry in config.tuned.entries] == ["hybrid", "hybrid"]


def test_what_cannot_decode_is_raised(pair, monkeypatch):
    def broken(self, call):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(contenders.Plain, "decode", broken)
    with pytest.raises(ValueError, match="plain: RuntimeError: no kernel"):
        tuner(pair, temperatures=(0.0,)).run()
    other = tiny(vocab_size=32, bos_token_id=1, eos_token_id=2)
    with pytest.raises(ValueError):
        tuner((pair[0], other), temperatures=(0.0,)).run()


@pytest.mark.parametrize(
    "options, told",
    [
        ({"limit": 0}, "limit=0: pass a whole number"),
        ({"minutes": 0}, "minutes=0: pass a number above 0"),
        ({"repeats": 0}, "repeats=0"),
        ({"batch_sizes": (0,)}, "batch_sizes=0"),
        ({"max_new_tokens": 1}, "max_new_tokens=1"),
        ({"temperatures": ()}, "temperatures is empty"),
        ({"temperatures": (-1.0,)}, r"temperatures=-1\.0"),
        ({"tasks": ["sums"]}, "'sums' is no task here. There are prompts"),
        ({"texts": []}, "no prompts to tune with"),
        ({"texts": {"a": []}}, "a task without any"),
        ({"texts": ["", "a"]}, "A prompt is ''"),
        ({"texts": [3]}, "A prompt is 3"),
        ({"max_new_tokens": 600}, "and 600 new ones do not fit into the target's 512 positions"),
        ({"draft_quantization": "nf4"}, "is loaded already"),
    ],
)
def test_bad_input_is_told_before_anything_is_decoded(pair, options, told):
    with pytest.raises(ValueError, match=told):
        tuner(pair, **{"texts": WORDS[:2]} | options)


def test_tasks_take_turns():
    texts = {"a": WORDS[:3], "b": WORDS[3:4], "c": WORDS[4:6]}
    one = Tuner(tiny(), None, texts, tokenizer=toy_tokenizer(), limit=9, temperatures=(0.0,))
    assert [f"{job.task}{job.prompt}" for job in one.groups[0]] == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_tune_is_the_whole_of_it(pair):
    torch.manual_seed(1)
    state = torch.get_rng_state()
    config = tune(*pair, WORDS[:1], tokenizer=toy_tokenizer(), temperatures=(0.7,), max_new_tokens=6, repeats=1)
    assert isinstance(config, SpecConfig) and config.tuned.entries[0].temperature == 0.7
    assert torch.equal(state, torch.get_rng_state())
