"""Every figure against a trace written by hand: a drafter that is right as often as the script says."""

import threading

import pytest
import torch
from toys import Scripted, noisy, plain, prompts, tiny
from transformers import GenerationConfig

import hf_specgen
from hf_specgen import RowStats, SpecStats, collect_stats

K = 4
NEW = 10  # 1 + (0 + 1) + (2 + 1) + (4 + 1)
PATTERN = (0, 2, K)


@pytest.fixture(scope="module")
def target():
    return hf_specgen.enable(tiny(num_hidden_layers=2, eos_token_id=None))


@pytest.fixture(scope="module")
def twin(target):
    return noisy(tiny(num_hidden_layers=2, eos_token_id=None), 0.0)


def texts_of(target, batch, new: int = 40) -> list[list[int]]:
    """Each row's unpadded text with its greedy continuation."""
    out = plain(target, **batch, max_new_tokens=new, do_sample=False)
    pads = (batch["attention_mask"] == 0).sum(1).tolist()
    return [row[pad:] for row, pad in zip(out.tolist(), pads, strict=True)]


def run(target, draft, batch, **kwargs):
    settings = {"max_new_tokens": NEW, "do_sample": False, "spec_strategy": "rejection", "num_assistant_tokens": K}
    return target.generate(**batch, assistant_model=draft, return_dict_in_generate=True, **settings | kwargs)


@pytest.fixture
def scripted(target):
    batch = prompts([5])
    return run(target, Scripted(texts_of(target, batch), [PATTERN]), batch)


# -- one row, accepting 0, 2, K ----------------------------------------------------------------------------------------


def test_the_trace_is_the_script(scripted):
    (row,) = scripted.spec_stats.rows
    assert row.trace == [(0, 0), (K, 0), (K, 2), (K, K)]


@pytest.mark.parametrize("of", ["call", "row"])
def test_figures_of_the_scripted_trace(scripted, of):
    stats = scripted.spec_stats
    figures = stats if of == "call" else stats.rows[0]
    assert figures.rounds == 4
    assert figures.drafted == 12
    assert figures.accepted == 6
    assert figures.emitted == NEW
    assert figures.trimmed == 0
    assert figures.acceptance_rate == 0.5
    assert figures.mean_accepted_tokens == 2.0
    assert figures.tokens_per_target_forward == 2.5
    assert figures.target_forwards == 4
    assert figures.acceptance_by_position.unconditional == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert figures.acceptance_by_position.conditional == pytest.approx([2 / 3, 1, 1 / 2, 1])


def test_call_attributes(scripted):
    stats = scripted.spec_stats
    assert (stats.strategy, stats.lossless, stats.fallback_reason, stats.calls) == ("rejection", True, None, 1)
    assert stats.draft_forwards == 3
    assert stats.rows[0].draft_forwards == 3


def test_draft_mask_marks_the_accepted_tokens(scripted):
    mask = [False] + [False] + [True] * 2 + [False] + [True] * K + [False]
    assert scripted.draft_mask.tolist() == [mask]
    assert scripted.draft_mask.sum() == scripted.spec_stats.accepted


def test_a_short_round_counts_only_where_it_drafted(target):
    """Rounds of 4, 4 and 1 drafted tokens: position 1 of the last is no rejection."""
    batch = prompts([5])
    stats = run(target, Scripted(texts_of(target, batch), [(1, 4, 1)]), batch).spec_stats
    assert stats.rows[0].trace == [(0, 0), (4, 1), (4, 4), (1, 1)]
    assert stats.acceptance_by_position.unconditional == pytest.approx([1, 1 / 2, 1 / 2, 1 / 2])
    assert stats.acceptance_by_position.conditional == pytest.approx([1, 1 / 2, 1, 1])


@pytest.mark.parametrize("cut", range(1, 6))
def test_a_stop_inside_an_accepted_block_is_trimmed(target, cut):
    """A criterion ends the row after `cut` of the five tokens of the round that accepts K = 4."""
    batch = prompts([5])
    length = 5 + 5 + cut

    def enough(ids, scores):
        return torch.tensor([ids.shape[1] >= length])

    out = run(
        target, Scripted(texts_of(target, batch), [PATTERN]), batch, stopping_criteria=[enough], max_new_tokens=30
    )
    stats, (row,) = out.spec_stats, out.spec_stats.rows
    assert row.trace == [(0, 0), (K, 0), (K, 2), (K, K)]
    assert row.emitted == 5 + cut == out.sequences.shape[1] - 5
    assert row.trimmed == stats.trimmed == K + 1 - cut
    assert row.emitted == row.accepted + row.rounds - row.trimmed
    assert out.draft_mask.tolist() == [[False, False, True, True, False, *[True] * min(cut, K), *[False] * (cut - K)]]


# -- batches -----------------------------------------------------------------------------------------------------------


def test_rows_of_a_batch_are_counted_apart_and_dead_rows_not_at_all(target):
    batch = prompts([3, 6, 5])
    texts = texts_of(target, batch)
    patterns = [(0, 0, 0, 0, 0, 0, 0, 0, 0), (K, K), (2, 2, 2)]
    out = run(target, Scripted(texts, patterns), batch)
    stats = out.spec_stats
    slow, fast, middle = stats.rows
    assert fast.trace == [(0, 0), (4, 4), (3, 3)]  # 1 + 5 + 4 tokens, then it has left
    assert middle.trace == [(0, 0), (4, 2), (4, 2), (2, 2)]
    assert slow.trace == [(0, 0), (4, 0), (4, 0), (4, 0), (4, 0), (4, 0), (3, 0), (2, 0), (1, 0), (0, 0)]
    assert [row.emitted for row in stats.rows] == [NEW] * 3
    assert stats.target_forwards == 10  # as often as the slowest row
    assert [row.target_forwards for row in stats.rows] == [10, 3, 4]
    assert stats.rounds == 17
    assert stats.drafted == 26 + 7 + 10 and stats.accepted == 0 + 7 + 6
    assert stats.emitted == stats.accepted + stats.rounds - stats.trimmed == 3 * NEW
    assert [row.draft_forwards for row in stats.rows] == [8, 2, 3]


def test_draft_mask_agrees_with_each_rows_trace(target):
    batch = prompts([3, 6, 5])
    texts = texts_of(target, batch)
    lengths = [11, 3, 6]  # rows end at different lengths, inside blocks

    def enough(ids, scores):
        return torch.tensor([ids.shape[1] - 6 >= length for length in lengths])

    out = run(target, Scripted(texts, [(1, 4), (2,), (0, 3)]), batch, stopping_criteria=[enough], max_new_tokens=30)
    assert [row.emitted for row in out.spec_stats.rows] == lengths
    for mask, row, length in zip(out.draft_mask.tolist(), out.spec_stats.rows, lengths, strict=True):
        told = [taken for _, accepted in row.trace for taken in [True] * accepted + [False]]
        assert mask == told[:length] + [False] * (len(mask) - length)
        assert row.emitted == row.accepted + row.rounds - row.trimmed


@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("do_sample", [False, True])
def test_identities_hold_with_a_model_as_draft(target, strategy, do_sample):
    draft = noisy(tiny(num_hidden_layers=2, eos_token_id=None), 0.1)
    out = run(
        target,
        draft,
        prompts([3, 6, 5, 4]),
        spec_strategy=strategy,
        do_sample=do_sample,
        max_new_tokens=20,
        eos_token_id=list(range(0, 64, 9)),
        generator=torch.Generator().manual_seed(0),
    )
    stats = out.spec_stats
    for row, mask in zip(stats.rows, out.draft_mask, strict=True):
        assert row.trace[0] == (0, 0)
        assert all(0 <= accepted <= drafted <= K for drafted, accepted in row.trace)
        assert row.emitted == row.accepted + row.rounds - row.trimmed
        assert row.accepted - row.trimmed <= mask.sum() <= row.accepted
    assert stats.emitted == sum(row.emitted for row in stats.rows)
    ends = {row.emitted for row in stats.rows}  # rows that end before others are read to their end for the cache
    assert stats.target_forwards == max(row.rounds for row in stats.rows) + (len(ends) > 1)
    assert stats.accepted > 0


def test_draft_forwards_of_a_model_are_counted_with_its_prefill(target, twin):
    calls = []
    hook = twin.register_forward_pre_hook(lambda *_: calls.append(1))
    try:
        stats = run(target, twin, prompts([5])).spec_stats
    finally:
        hook.remove()
    # The prefill gives the first token; every other drafted token takes one forward.
    assert stats.draft_forwards == len(calls) == stats.drafted
    assert stats.drafting_forwards == stats.rows[0].draft_forwards == stats.drafted - 1


def test_a_drafter_used_for_two_calls_is_counted_for_each(target):
    batch = prompts([5])
    drafter = Scripted(texts_of(target, batch), [PATTERN * 2])
    first, second = (run(target, drafter, batch).spec_stats for _ in range(2))
    assert (first.draft_forwards, second.draft_forwards) == (3, 3)
    assert drafter.begun == 2


# -- collect_stats -----------------------------------------------------------------------------------------------------


def test_collectors_nest_and_sum(target):
    batch = prompts([5])
    texts = texts_of(target, batch)
    with collect_stats() as outer:
        assert (outer.calls, outer.rows, outer.strategy, outer.acceptance_rate) == (0, [], None, None)
        first = run(target, Scripted(texts, [PATTERN]), batch).spec_stats
        with collect_stats() as inner:
            run(target, Scripted(texts, [(1, 1, 1)]), batch, spec_strategy="block")
        assert (inner.calls, inner.accepted, inner.strategy) == (1, 1 + 1 + 1 + 2, "block")
        last = run(target, Scripted(texts, [PATTERN]), batch).spec_stats
    run(target, Scripted(texts, [PATTERN]), batch)  # outside: counted by nobody
    assert outer.calls == 3
    assert outer.accepted == 6 + 5 + 6
    assert outer.emitted == outer.accepted + outer.rounds - outer.trimmed == 3 * NEW
    assert outer.target_forwards == first.target_forwards + inner.target_forwards + last.target_forwards
    assert outer.verify_seconds == pytest.approx(first.verify_seconds + inner.verify_seconds + last.verify_seconds)
    assert len(outer.rows) == 3 and outer.strategy == "rejection"


def test_a_call_without_a_dict_is_collected(target, twin):
    with collect_stats() as stats:
        target.generate(
            **prompts([5]),
            assistant_model=twin,
            spec_strategy="rejection",
            num_assistant_tokens=K,
            max_new_tokens=NEW,
            do_sample=False,
        )
    assert (stats.calls, stats.emitted) == (1, NEW) and stats.accepted > 0


def test_plain_calls_are_not_collected(target):
    with collect_stats() as stats:
        target.generate(**prompts([5]), max_new_tokens=4, do_sample=False)
    assert stats.calls == 0


def test_a_collector_closes_when_its_block_raises(target, twin):
    with pytest.raises(KeyError), collect_stats() as stats:
        raise KeyError
    run(target, twin, prompts([5]))
    assert stats.calls == 0


def test_threads_do_not_mix(target):
    batch = prompts([5])
    texts = texts_of(target, batch)
    found, barrier = {}, threading.Barrier(3)

    def work(name, calls):
        with collect_stats() as stats:
            for _ in range(calls):
                barrier.wait()
                run(target, Scripted(texts, [PATTERN]), batch)
        found[name] = (stats.calls, stats.accepted)

    threads = [threading.Thread(target=work, args=(name, 3)) for name in "abc"]
    with collect_stats() as here:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    assert found == {name: (3, 18) for name in "abc"}
    assert here.calls == 0


# -- settings: what was asked for is what was done ---------------------------------------------------------------------


def test_k_of_the_call_counts(target, twin):
    """19 new tokens from a perfect draft: 1 + 9 rounds of two, or 1 + 2 rounds of nine."""
    forwards = {}
    for k in (1, 8):
        seen = []
        hook = target.register_forward_pre_hook(lambda *_, seen=seen: seen.append(1))
        try:
            stats = run(target, twin, prompts([5]), num_assistant_tokens=k, max_new_tokens=19).spec_stats
        finally:
            hook.remove()
        forwards[k] = len(seen)
        assert stats.target_forwards == len(seen)
    assert forwards == {1: 10, 8: 3}


def test_a_k_beyond_the_end_of_the_text_costs_no_cache(target, twin, monkeypatch):
    """ "As many as there are": the caches are no larger than the text can get."""
    from hf_specgen.cache import reader, stock

    rooms, real = [], stock.adopt
    monkeypatch.setattr(reader, "adopt", lambda filled, room: rooms.append(room) or real(filled, min(room, 99)))
    stats = run(target, twin, prompts([5]), num_assistant_tokens=10**9).spec_stats
    assert stats.rows[0].trace[1][0] == NEW - 2
    assert max(rooms) <= 512


@pytest.fixture
def configs_restored(target, twin):
    saved = [model.generation_config for model in (target, twin)]
    yield
    target.generation_config, twin.generation_config = saved


LAYERS = ["call", "given", "target", "draft"]


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4], ids=[*LAYERS, "default"])
def test_precedence(target, twin, configs_restored, first):
    """A setting is taken from the first layer that has it: call, given config, target's, draft's, our default."""
    value = {name: 6 - i for i, name in enumerate(LAYERS) if i >= first}  # call 6, given 5, target 4, draft 3
    base = {"pad_token_id": 0, "do_sample": False, "max_new_tokens": 20}
    target.generation_config = GenerationConfig(**base, num_assistant_tokens=value.get("target"))
    twin.generation_config = GenerationConfig(**base, num_assistant_tokens=value.get("draft"))
    kwargs = {"num_assistant_tokens": value["call"]} if "call" in value else {}
    if "given" in value:
        kwargs["generation_config"] = GenerationConfig(**base, num_assistant_tokens=value["given"])
    out = target.generate(
        **prompts([5]), assistant_model=twin, spec_strategy="rejection", return_dict_in_generate=True, **kwargs
    )
    assert out.spec_stats.rows[0].trace[1][0] == [6, 5, 4, 3, 0][first]
    if first == 4:  # ours: as many as pay, and a draft as large as its target never does
        assert out.spec_stats.draft_forwards == 0 and "no acceptance makes it pay" in out.spec_stats.off_reason
    else:
        assert out.spec_stats.off_reason is None


@pytest.mark.parametrize("first", [0, 1, 2, 3, 4], ids=[*LAYERS, "default"])
def test_precedence_of_the_schedule(target, twin, configs_restored, first):
    """Alone it starts from five tokens. Growing by two is the heuristic's, staying is constant; 0 is goodput's."""
    value = {name: ["constant", "heuristic"][(i - first) % 2] for i, name in enumerate(LAYERS) if i >= first}
    base = {"pad_token_id": 0, "do_sample": False, "max_new_tokens": 20}
    target.generation_config = GenerationConfig(**base, num_assistant_tokens_schedule=value.get("target"))
    twin.generation_config = GenerationConfig(**base, num_assistant_tokens_schedule=value.get("draft"))
    kwargs = {"num_assistant_tokens_schedule": value["call"]} if "call" in value else {}
    if "given" in value:
        kwargs["generation_config"] = GenerationConfig(**base, num_assistant_tokens_schedule=value["given"])
    out = target.generate(
        **prompts([5]), assistant_model=twin, spec_strategy="rejection", return_dict_in_generate=True, **kwargs
    )
    assert [drafted for drafted, _ in out.spec_stats.rows[0].trace[1:3]] == ([5, 5] if first < 4 else [0, 0])


@pytest.mark.parametrize(
    "schedule, drafted",
    [(None, [3, 3]), ("constant", [3, 3]), ("heuristic", [3, 5]), ("target-rate", [3, 3]), ("goodput", [0, 0])],
)
def test_a_number_without_a_schedule_is_constant(target, twin, schedule, drafted):
    """With one it is the first number, or the greatest."""
    settings = {"num_assistant_tokens": 3, "num_assistant_tokens_schedule": schedule, "max_new_tokens": 20}
    stats = run(target, twin, prompts([5]), **settings).spec_stats
    assert [d for d, _ in stats.rows[0].trace[1:3]] == drafted


@pytest.mark.parametrize("off", [None, 0, 0.0])
def test_threshold_none_or_zero_in_the_call_is_off(target, twin, configs_restored, off):
    twin.generation_config = GenerationConfig(assistant_confidence_threshold=1.0)
    batch = prompts([5])
    soft = {"do_sample": True, "temperature": 3.0, "top_k": 0}  # no token is certain
    assert run(target, twin, batch, **soft).spec_stats.drafted == 0
    assert run(target, twin, batch, **soft, assistant_confidence_threshold=off).spec_stats.rows[0].trace[1][0] == K


def test_no_threshold_unless_asked_for(target, twin):
    soft = {"do_sample": True, "temperature": 3.0, "top_k": 0}
    assert run(target, twin, prompts([5]), **soft).spec_stats.rows[0].trace[1][0] == K


def test_threshold_between_shortens_drafts(target, twin):
    soft = {"do_sample": True, "temperature": 0.3, "top_k": 0, "max_new_tokens": 40}
    drafted = [
        run(
            target,
            twin,
            prompts([5, 7, 4]),
            **soft,
            assistant_confidence_threshold=t,
            generator=torch.Generator().manual_seed(0),
        ).spec_stats.mean_accepted_tokens
        for t in (0.5, None)
    ]
    assert 0 < drafted[0] < drafted[1]


@pytest.mark.parametrize("schedule", ["heuristic", "heuristic_transient"])
def test_heuristic_grows_by_two_and_shrinks_by_one_within_the_call(target, schedule):
    batch = prompts([5])
    settings = {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": schedule, "max_new_tokens": 30}
    for _ in range(2):  # the second call starts afresh
        stats = run(target, Scripted(texts_of(target, batch), [(2, 4, 0, 5, 1, 1)]), batch, **settings).spec_stats
        assert stats.rows[0].trace[1:7] == [(2, 2), (4, 4), (6, 0), (5, 5), (7, 1), (6, 1)]


def test_heuristic_never_goes_below_one(target):
    batch = prompts([5])
    settings = {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic", "max_new_tokens": 8}
    stats = run(target, Scripted(texts_of(target, batch), [(0,) * 9]), batch, **settings).spec_stats
    assert [drafted for drafted, _ in stats.rows[0].trace] == [0, 2, 1, 1, 1, 1, 1, 0]


def test_heuristic_keeps_rows_apart(target):
    batch = prompts([5, 4])
    settings = {"num_assistant_tokens": 2, "num_assistant_tokens_schedule": "heuristic", "max_new_tokens": 30}
    rows = run(target, Scripted(texts_of(target, batch), [(2, 4, 6), (0, 0, 0)]), batch, **settings).spec_stats.rows
    assert [drafted for drafted, _ in rows[0].trace[1:4]] == [2, 4, 6]
    assert [drafted for drafted, _ in rows[1].trace[1:4]] == [2, 1, 1]


def test_settings_are_not_written_back(target, twin):
    def everything():
        return [config.to_dict() for model in (target, twin) for config in (model.generation_config, model.config)]

    before, given = everything(), GenerationConfig(num_assistant_tokens_schedule="heuristic", num_assistant_tokens=3)
    told = given.to_dict()
    settings = {"max_new_tokens": 30, "do_sample": False, "spec_strategy": "rejection"}
    target.generate(**prompts([5]), assistant_model=twin, generation_config=given, **settings)
    target.generate(**prompts([5]), assistant_model=twin, **settings)
    target.generate(
        **prompts([5]),
        assistant_model=twin,
        num_assistant_tokens_schedule="heuristic",
        assistant_confidence_threshold=0.2,
        **settings,
    )
    assert everything() == before
    assert given.to_dict() == told


# -- not measured, derived, shown --------------------------------------------------------------------------------------


def test_without_a_draft_nothing_is_invented(target):
    stats = run(target, None, prompts([5]), spec_strategy="coupled", do_sample=True).spec_stats
    assert (stats.drafted, stats.draft_forwards, stats.accepted) == (0, 0, 0)
    assert stats.acceptance_rate is None
    assert stats.mean_accepted_tokens is None
    assert stats.theoretical_speedup is None
    assert stats.acceptance_by_position.conditional == stats.acceptance_by_position.unconditional == []
    assert stats.tokens_per_target_forward == 1
    assert stats.target_step_seconds > 0  # every round was a plain step


def test_empty_statistics_are_none_not_zero():
    stats = SpecStats()
    assert stats.acceptance_rate is stats.mean_accepted_tokens is stats.tokens_per_target_forward is None
    assert stats.theoretical_speedup is stats.actual_speedup is None
    assert str(stats) == "no speculative call"
    assert "not measured" in str(SpecStats(calls=1))


def test_a_position_never_reached_after_acceptance_is_none():
    row = RowStats(trace=[(0, 0), (3, 0), (3, 1)])
    assert row.acceptance_by_position.unconditional == [1 / 2, 0, 0]
    assert row.acceptance_by_position.conditional == [1 / 2, 0, None]


def test_actual_speedup_needs_the_time_of_a_plain_step(target):
    batch = prompts([5, 3])
    texts = texts_of(target, batch)
    stats = run(target, Scripted(texts, [PATTERN, PATTERN]), batch).spec_stats
    assert stats.target_step_seconds is None and stats.actual_speedup is None  # no round was a plain step
    stats.target_step_seconds = 0.25
    assert stats.actual_speedup == pytest.approx(0.25 * (NEW - 1) / stats.decode_seconds)
    assert stats.decode_seconds == stats.draft_seconds + stats.verify_seconds + stats.rest_seconds


def test_theoretical_speedup_by_hand():
    """E = 9 tokens / 3 rounds, k = 4 draft forwards per round, c = 0.1 / 0.4: 3 / (1 + 0.25 · 4) = 1.5."""
    row = RowStats(emitted=10, trace=[(0, 0), (4, 0), (4, 2), (4, 4)])
    stats = SpecStats(
        rows=[row], draft_seconds=1.2, verify_seconds=1.2, draft_forwards=13, drafting_forwards=12, verify_forwards=3
    )
    assert stats.theoretical_speedup == pytest.approx(1.5)


def test_seconds_add_up_to_no_more_than_the_call_took(target, twin):
    import time

    begin = time.perf_counter()
    stats = run(target, twin, prompts([5])).spec_stats
    took = time.perf_counter() - begin
    parts = [stats.prefill_seconds, stats.draft_seconds, stats.verify_seconds, stats.rest_seconds]
    assert all(part > 0 for part in parts)
    assert sum(parts) <= took


def test_draft_seconds_leave_the_drafts_prefill_out(target, twin):
    """By definition; a prefill that sleeps shows where it is counted."""
    import time

    slept = []

    def sleep_once(*_):
        if not slept:
            slept.append(1)
            time.sleep(0.5)

    hook = twin.register_forward_pre_hook(sleep_once)
    try:
        stats = run(target, twin, prompts([5])).spec_stats
    finally:
        hook.remove()
    assert stats.prefill_seconds > 0.5
    assert stats.draft_seconds + stats.verify_seconds + stats.rest_seconds < 0.5


def test_str_shows_the_figures(scripted):
    shown = str(scripted.spec_stats)
    for piece in (
        "10 tokens in 4 rounds over 1 row(s), strategy rejection (lossless)",
        "6 of 12 drafted (50%)",
        "67% 100% 50% 100%",
        "2.50",
        "4 target, 3 draft",
        "not measured (in theory ",
    ):
        assert piece in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_str_shows_the_reason_for_plain_decoding():
    assert "without drafts      out of memory" in str(SpecStats(calls=1, fallback_reason="out of memory"))


def test_str_says_lossy_aloud():
    assert "LOSSY" in str(SpecStats(calls=1, lossless=False))


def test_token_sources_are_the_draft_mask_with_names(target):
    batch = prompts([5, 9])
    draft = Scripted(texts_of(target, batch), [[0, 2, 4, 1], [3, 0, 4]])
    out = run(target, draft, batch, max_new_tokens=NEW)
    for row, mask in zip(out.spec_stats.rows, out.draft_mask.tolist(), strict=True):
        assert [source is not None for source in row.token_sources] == mask[: row.emitted]
        assert {*row.token_sources} == {"draft", None} and len(row.token_sources) == row.emitted


def test_a_streamer_that_wants_sources_gets_them_with_the_tokens(target):
    class Sources:
        def __init__(self):
            self.prompt, self.got = None, []

        def put(self, ids):
            self.prompt = ids

        def put_token(self, row, token, source):
            self.got.append((row, token, source))

        def end(self):
            self.got.append("end")

    batch, streamer = prompts([7]), Sources()
    out = run(target, Scripted(texts_of(target, batch), [PATTERN]), batch, streamer=streamer)
    sources = out.spec_stats.rows[0].token_sources
    assert torch.equal(streamer.prompt, batch["input_ids"])
    assert streamer.got == [
        *((0, id_, s) for id_, s in zip(out.sequences[0, 7:].tolist(), sources, strict=True)),
        "end",
    ]
