"""Turns, repetitions, failures, interruptions: what a bench measures, and in which order."""

import pytest
import torch
from bench_toys import interrupt_after
from toys import noisy, tiny, toy_tokenizer

from hf_specgen.benchmarking import Bench, Settings, read_records, run_bench
from hf_specgen.benchmarking import contenders as contenders_module
from hf_specgen.benchmarking.contenders import Stock

SMALL = {"per_task": 2, "repeats": 2, "max_new_tokens": 4}


def bench(pair, out=None, draft=True, **settings) -> Bench:
    settings = Settings(**SMALL | settings)
    draft = pair / "draft" if draft else None
    return Bench(pair / "target", draft, settings, prompts=pair / "prompts.jsonl", out=out)


def told(record) -> tuple:
    return record.cell.task, record.cell.prompt, record.repeat, record.cell.contender


def test_everybody_takes_turns(pair):
    one = bench(pair, against=("plain", "stock-k2", "ours-k2"), tasks=("one",))
    seen = []
    assert one.missing() == 12 and one.run(seen.append) == seen == one.records and not one.missing()
    assert [told(record) for record in seen[:7]] == [
        ("one", 0, 0, "plain"),
        ("one", 0, 0, "stock-k2"),
        ("one", 0, 0, "ours-k2"),
        ("one", 0, 1, "stock-k2"),
        ("one", 0, 1, "ours-k2"),
        ("one", 0, 1, "plain"),
        ("one", 2, 0, "plain"),
    ]
    plain, stock, ours, *_ = seen
    assert (plain.same_ids, stock.same_ids, ours.same_ids) == (None, True, True)
    assert ours.prompt_tokens == plain.prompt_tokens > 0 and 0 < plain.new_tokens <= 4
    assert ours.cell.k == 2 and ours.cell.strategy == "rejection" and stock.cell.strategy is None
    assert ours.sources == {"draft": [ours.drafted, ours.accepted]} and len(ours.by_position) == 2
    assert ours.draft_seconds + ours.verify_seconds + ours.rest_seconds == pytest.approx(ours.decode_seconds)
    assert all(0 < record.first_token_seconds < record.seconds for record in seen)
    assert plain.drafted is plain.draft_seconds is plain.ideal_seconds is None


def test_warm_up_is_apart(pair, monkeypatch):
    calls = []
    decode = Stock.decode
    monkeypatch.setattr(Stock, "decode", lambda self, call: calls.append(call) or decode(self, call))
    asked = {"against": ("plain", "stock"), "temperatures": (0.0, 1.0), "repeats": 1, "max_new_tokens": 9}
    records = bench(pair, **asked).run()
    measured = [record for record in records if record.cell.contender == "stock"]
    warm = [call for call in calls if call.max_new_tokens == 8]
    assert len(warm) == 2 and len(calls) == len(measured) + 2 == 10  # one per temperature, of the longest prompt
    assert all(call.input_ids.shape[1] == max(c.input_ids.shape[1] for c in calls) for call in warm)


def test_batches_and_concurrency(pair):
    asked = {"against": ("plain", "stock", "ours-k2"), "repeats": 1}
    batch = bench(pair, batch_sizes=(2,), **asked).run()
    assert len(batch) == 6 and all(record.cell.batch == 2 and record.error is None for record in batch)
    assert [r.same_ids for r in batch] == [None, True, True] * 2 and all(r.new_tokens > 4 for r in batch)
    mixed = bench(pair, concurrency=5, **asked).run()
    assert [(r.cell.task, r.cell.batch, r.new_tokens > 8) for r in mixed] == [("mixed", 5, True)] * 3


def test_sampled_calls_repeat_themselves_and_leave_the_generator_alone(pair):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    records = bench(pair, against=("plain", "stock", "ours-k2"), temperatures=(1.3,), tasks=("one",)).run()
    assert torch.equal(before, torch.get_rng_state())
    shown = {}
    for record in records:
        shown.setdefault((record.cell.contender, record.cell.prompt), []).append(
            (record.new_tokens, record.drafted, record.accepted)
        )
        assert record.same_ids is None
    assert all(first == second for first, second in shown.values())


def test_strategies_when_sampling(pair):
    records = bench(
        pair,
        against=("plain", "ours-k2"),
        strategies=("block", "coupled"),
        temperatures=(0.0, 1.0),
        repeats=1,
        tasks=("two",),
    ).run()
    asked = {(record.cell.temperature, record.cell.strategy) for record in records}
    assert asked == {(0.0, None), (0.0, "block"), (1.0, None), (1.0, "block"), (1.0, "coupled")}


def test_a_contender_that_raises_makes_records_and_the_bench_goes_on(pair, tmp_path, monkeypatch):
    def broken(self, call):
        raise RuntimeError("no kernel\nfor this")

    monkeypatch.setattr(contenders_module.Stock, "decode", broken)
    records = bench(pair, tmp_path, against=("plain", "stock"), tasks=("two",)).run()
    assert [r.error for r in records] == [None, "RuntimeError: no kernel", "RuntimeError: no kernel", None] * 2
    assert records[1].seconds is None and records[1].prompt_tokens == records[0].prompt_tokens
    monkeypatch.undo()
    again = bench(pair, tmp_path, against=("plain", "stock"), tasks=("two",))
    assert again.missing() == 4 and all(record.error is None for record in again.run())


def test_an_interrupted_bench_keeps_what_it_has_and_goes_on(pair, tmp_path, monkeypatch):
    interrupt_after(4, monkeypatch)
    asked = {"against": ("plain", "ours-k2"), "tasks": ("one",)}
    one = bench(pair, tmp_path, **asked)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    kept = [told(record) for record in one.records]
    assert len(kept) == 6 and kept[-1] == ("one", 2, 0, "ours-k2")
    assert [told(record) for record in read_records(tmp_path)] == kept
    monkeypatch.undo()
    again = bench(pair, tmp_path, **asked)
    assert again.missing() == 8 - len(kept)
    new = []
    again.run(new.append)
    assert not {told(record) for record in new} & set(kept) and len(read_records(tmp_path)) == 8
    assert told(new[0]) == ("one", 2, 1, "ours-k2") and new[0].same_ids  # compared, though plain comes after it


def test_more_can_be_added_later(pair, tmp_path):
    bench(pair, tmp_path, against=("plain",), tasks=("one",), repeats=1).run()
    more = bench(pair, tmp_path, against=("plain", "stock"), temperatures=(0.0, 1.0), repeats=1)
    assert more.missing() == 14 and len(more.run()) == 16
    with pytest.raises(ValueError, match=r"settings\.max_new_tokens was 4, and is 7"):
        bench(pair, tmp_path, max_new_tokens=7)


def test_models_in_memory_stay_as_they_are(pair):
    target = tiny()
    draft = noisy(target)
    target.generation_config.repetition_penalty = 1.4
    before = dict(vars(target)), target.generation_config, draft.generation_config
    records = run_bench(
        target,
        draft,
        prompts=pair / "prompts.jsonl",
        tokenizer=toy_tokenizer(),
        **SMALL | {"against": ("plain", "stock", "ours-k3"), "repeats": 1, "ideal": True},
    )
    assert len(records) == 12 and all(record.error is None and record.ideal_seconds > 0 for record in records)
    assert (dict(vars(target)), target.generation_config, draft.generation_config) == before


def test_without_a_draft(pair):
    records = bench(pair, draft=False, repeats=1).run()
    assert {record.cell.contender for record in records} == {"plain", "lookup"}
    assert all(record.error is None for record in records)


def test_prompts_that_do_not_fit(pair):
    with pytest.raises(ValueError, match=r"of 'one' .* and 600 new ones do not fit into the target's 512 positions"):
        bench(pair, max_new_tokens=600)
    with pytest.raises(ValueError, match=r"A context of 99999999 tokens .* do not fit into the target's 512 positions"):
        bench(pair, contexts=(0, 99_999_999))


def test_arguments_that_would_do_nothing(pair):
    with pytest.raises(ValueError, match="would do nothing"):
        Bench(tiny(), noisy(tiny()), tokenizer=toy_tokenizer(), device="cpu")
    with pytest.raises(ValueError, match="there is no draft"):
        Bench(pair / "target", draft_quantization="nf4")
