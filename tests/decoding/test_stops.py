"""Stops and streams: every way in which a row can end is judged token by token inside an accepted block, nothing comes
after it, and a streamer sees exactly the calls of plain decoding."""

import threading
import warnings

import pytest
import torch
from toys import EOS, VOCAB, noisy, plain, prompts, row_alone, spec, tiny, toy_tokenizer
from transformers import GenerationConfig, StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

import hf_specgen

NEW = 10
PROMPT = 7


@pytest.fixture(scope="module")
def target():
    return tiny()


@pytest.fixture(scope="module", params=[0, 0.05], ids=["exact copy", "noisy copy"])
def draft(target, request):
    return noisy(target, request.param)


@pytest.fixture(scope="module")
def copied(target):
    return noisy(target, 0)


def many_answers(target, length):
    """400 prompts and what the target says to each: to choose from."""
    ids = prompts([length] * 400, seed=1)["input_ids"]
    answers = plain(
        target,
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        eos_token_id=None,
        do_sample=False,
    )
    return ids, answers[:, length:].tolist()


@pytest.fixture(scope="module")
def prompt(target):
    """A prompt after which the target says `NEW` different tokens, none of them special."""
    ids, said = many_answers(target, PROMPT)
    row = next(b for b, row in enumerate(said) if len(set(row)) == NEW and not {0, 1, EOS} & set(row))
    return {"input_ids": ids[row : row + 1], "attention_mask": torch.ones(1, PROMPT, dtype=torch.long)}


@pytest.fixture(scope="module")
def said(target, prompt):
    return plain(target, **prompt, max_new_tokens=NEW, do_sample=False)[0, PROMPT:].tolist()


@pytest.fixture(scope="module")
def tokenizer():
    return toy_tokenizer()


def drafted_and_plain(target, draft, prompt, k=6, **options):
    """Ids of both, and that they are equal."""
    got = spec(target, draft, **prompt, num_assistant_tokens=k, **{"max_new_tokens": NEW} | options)
    want = plain(target, **prompt, do_sample=False, **{"max_new_tokens": NEW} | options)
    assert got.sequences.tolist() == want.tolist()
    return got


# ---- EOS ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("slot", range(9))
@pytest.mark.parametrize("form", ["int", "list", "tensor"])
def test_eos_at_each_slot_of_a_block_ends_the_row_there(target, draft, prompt, said, slot, form):
    """K = 6: slot 0 is the prefill's token, 1 to 6 are drafted in one block, 7 is its bonus, 8 opens the next."""
    eos = {"int": said[slot], "list": [said[-1], said[slot]], "tensor": torch.tensor([said[slot], said[-1]])}[form]
    got = drafted_and_plain(target, draft, prompt, eos_token_id=eos)
    assert got.sequences[0, PROMPT:].tolist() == said[: slot + 1]
    assert got.spec_stats.emitted == slot + 1
    assert got.draft_mask.shape == (1, slot + 1)


def test_the_first_of_several_eos_ids_ends_the_row(target, draft, prompt, said):
    got = drafted_and_plain(target, draft, prompt, eos_token_id=[said[6], said[3], said[5]])
    assert got.sequences[0, -1] == said[3]


def test_eos_in_the_models_own_config_and_in_a_given_one(target, draft, prompt, said):
    config = GenerationConfig(eos_token_id=[said[2], EOS], pad_token_id=0, max_new_tokens=NEW)
    assert spec(target, draft, **prompt, generation_config=config).sequences[0, PROMPT:].tolist() == said[:3]
    kept = target.generation_config
    try:
        target.generation_config = GenerationConfig(eos_token_id=said[4], pad_token_id=0)
        assert spec(target, draft, **prompt, max_new_tokens=NEW).sequences[0, PROMPT:].tolist() == said[:5]
    finally:
        target.generation_config = kept


def test_without_any_eos_the_row_runs_to_its_length(target, prompt, said):
    no_end, draft = tiny(eos_token_id=None), noisy(tiny(eos_token_id=None))
    for options in ({}, {"eos_token_id": None}):
        got = spec(no_end, draft, **prompt, max_new_tokens=40, **options).sequences
        assert got.tolist() == plain(no_end, **prompt, do_sample=False, max_new_tokens=40).tolist()
        assert got.shape[1] == PROMPT + 40


@pytest.mark.parametrize("k", [1, 6])
@pytest.mark.parametrize("own", [None, 5], ids=["shared eos", "draft's own eos"])
def test_a_draft_that_wants_to_end_never_ends_the_row(target, prompt, said, k, own):
    """Its head is biased to its EOS: every round drafts nothing but that."""
    eager = noisy(target, 0)
    end = EOS if own is None else own
    eager.generation_config.eos_token_id = end
    eager.lm_head.bias = torch.nn.Parameter(torch.nn.functional.one_hot(torch.tensor(end), VOCAB) * 1e4)
    got = drafted_and_plain(target, eager, prompt, k=k)
    assert got.sequences[0, PROMPT:].tolist() == said
    assert got.spec_stats.accepted == 0
    assert got.spec_stats.drafted == NEW - 2, "one token a round (none in the last): drafting ends at the draft's EOS"


def test_a_draft_token_after_its_own_eos_is_not_drafted_but_the_eos_itself_is(target, copied, prompt, said):
    """The draft's EOS is a token the target says: it is proposed, accepted, and the row goes on."""
    other = noisy(target, 0)
    other.generation_config.eos_token_id = said[3]
    got = drafted_and_plain(target, other, prompt)
    assert got.sequences[0, PROMPT:].tolist() == said
    assert got.spec_stats.acceptance_rate == 1.0
    assert got.spec_stats.rows[0].trace[1] == (3, 3)


# ---- lengths ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("new", range(1, 10))
def test_never_a_token_more_than_max_new_tokens(target, draft, prompt, said, new):
    got = drafted_and_plain(target, draft, prompt, max_new_tokens=new)
    assert got.sequences[0, PROMPT:].tolist() == said[:new]
    assert got.spec_stats.trimmed == 0, "nothing is drafted beyond the cap"


def test_max_length_counts_the_prompt_and_in_a_batch_the_padded_columns(target, draft, prompt):
    assert (
        drafted_and_plain(target, draft, prompt, max_new_tokens=None, max_length=PROMPT + 5).sequences.shape[1]
        == PROMPT + 5
    )
    batch = prompts([12, 4])
    got = spec(target, draft, **batch, max_length=20, eos_token_id=None)
    assert got.sequences.shape[1] == 20
    assert [row.emitted for row in got.spec_stats.rows] == [8, 8]


@pytest.mark.parametrize("cap", [1, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("kind", ["eos", "stop string", "criterion"])
def test_a_stop_and_the_length_cap_in_the_same_block(target, copied, prompt, said, tokenizer, cap, kind):
    """The stop is the sixth token. Beyond the cap it is a length end; on it or before it, nothing follows the stop."""
    options = {
        "eos": {"eos_token_id": said[5]},
        "stop string": {"stop_strings": [tokenizer.decode(said[4:6])], "tokenizer": tokenizer},
        "criterion": {"stopping_criteria": StoppingCriteriaList([LastTokenIs(said[5])])},
    }[kind]
    got = drafted_and_plain(target, copied, prompt, k=12, max_new_tokens=cap, **options)
    assert got.sequences[0, PROMPT:].tolist() == said[: min(cap, 6)]


def test_max_time_zero_gives_one_token_as_plain(target, draft, prompt, said):
    got = drafted_and_plain(target, draft, prompt, max_time=0.0)
    assert got.sequences[0, PROMPT:].tolist() == said[:1]
    batch = prompts([6, 3])
    assert spec(target, draft, **batch, max_new_tokens=NEW, max_time=0.0).sequences.shape[1] == 7


def test_max_time_cuts_inside_an_accepted_block(target, copied, prompt, said, monkeypatch):
    """A clock that moves on by one second whenever it is asked: plain and we ask once per token."""
    from transformers.generation import stopping_criteria

    class Time:
        def __init__(self):
            self.now = 0.0

        def time(self):
            self.now += 1.0
            return self.now

    lengths = []
    for call in (
        lambda **o: spec(target, copied, num_assistant_tokens=12, **o).sequences,
        lambda **o: plain(target, do_sample=False, **o),
    ):
        monkeypatch.setattr(stopping_criteria, "time", Time())
        lengths.append(call(**prompt, max_new_tokens=NEW, max_time=4.5).shape[1] - PROMPT)
    assert lengths[0] == lengths[1] == 5


# ---- stop strings -------------------------------------------------------------------------------------
@pytest.mark.parametrize("end", range(1, 10))
@pytest.mark.parametrize("span", [1, 2, 3])
def test_stop_string_ends_at_the_token_that_completes_it(target, draft, prompt, said, tokenizer, end, span):
    """Inside a block, across two blocks, across prompt and answer are all the same text."""
    text = tokenizer.decode(said[max(0, end - span + 1) : end + 1])
    got = drafted_and_plain(target, draft, prompt, k=4, stop_strings=[text], tokenizer=tokenizer)
    assert got.sequences.shape[1] <= PROMPT + end + 1
    assert text in tokenizer.decode(got.sequences[0, PROMPT:]) or span > 1
    assert got.spec_stats.emitted == got.sequences.shape[1] - PROMPT


@pytest.mark.parametrize("end", [1, 2])
def test_stop_string_near_the_start_of_a_long_accepted_block(target, copied, prompt, said, tokenizer, end):
    got = drafted_and_plain(
        target, copied, prompt, k=12, max_new_tokens=40, stop_strings=tokenizer.decode(said[end]), tokenizer=tokenizer
    )
    assert got.sequences[0, PROMPT:].tolist() == said[: end + 1]
    assert got.spec_stats.rows[0].trace == [(0, 0), (12, 12)]
    assert got.spec_stats.trimmed == 13 - end


@pytest.mark.parametrize("text", ["ing", "in", "ng", " the", "ca", "abc"])
def test_stop_string_that_is_part_of_a_longer_token(target, tokenizer, text):
    """Forced text of multi-letter tokens: the string may begin or end inside one."""
    pieces = [
        tokenizer.convert_tokens_to_ids(p)
        for p in ["k", "ab", "cab", "Ġthe", "i", "n", "ing", "z", "b", "c", "ab", "z"]
    ]

    def forced(_, sent):
        return [pieces[min(len(sent) - 5, len(pieces) - 1)]]

    batch = prompts([5], seed=2)
    copied = noisy(target, 0)
    options = {
        "max_new_tokens": len(pieces),
        "prefix_allowed_tokens_fn": forced,
        "stop_strings": [text, "never"],
        "tokenizer": tokenizer,
    }
    want = plain(target, **batch, do_sample=False, **options)
    got = spec(target, copied, **batch, num_assistant_tokens=6, **options).sequences
    assert got.tolist() == want.tolist()
    assert got.shape[1] < 5 + len(pieces)


@pytest.mark.parametrize(
    "where", ["kwarg", "given config", "model's config", "given config over model's", "kwarg over both"]
)
def test_stop_strings_are_read_wherever_transformers_reads_them(target, copied, prompt, said, tokenizer, where):
    stop, other = tokenizer.decode(said[4]), tokenizer.decode(said[8])
    options = {"tokenizer": tokenizer, "max_new_tokens": NEW, "do_sample": False}
    kept = target.generation_config.stop_strings
    if where in ("given config", "given config over model's"):
        options["generation_config"] = GenerationConfig(
            stop_strings=[stop], max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=0
        )
    if where in ("kwarg", "kwarg over both"):
        options["stop_strings"] = [stop]
    if where == "kwarg over both":
        options["generation_config"] = GenerationConfig(
            stop_strings=[other], max_new_tokens=NEW, eos_token_id=EOS, pad_token_id=0
        )
    try:
        if where == "model's config":
            target.generation_config.stop_strings = [stop]
        elif "over" in where:
            target.generation_config.stop_strings = [other]
        model_before = target.generation_config.to_dict()
        given_before = options["generation_config"].to_dict() if "generation_config" in options else None
        want = plain(target, **prompt, **options)
        got = spec(target, copied, **prompt, **options).sequences
        assert got.tolist() == want.tolist()
        assert got[0, PROMPT:].tolist() == said[:5]
        assert target.generation_config.to_dict() == model_before
        assert given_before is None or options["generation_config"].to_dict() == given_before
    finally:
        target.generation_config.stop_strings = kept


@pytest.mark.parametrize("where", ["kwarg", "given config", "model's config"])
def test_stop_strings_without_a_tokenizer_ask_for_it_before_the_first_token(target, copied, prompt, where):
    options = {
        "kwarg": {"stop_strings": ["a"]},
        "given config": {"generation_config": GenerationConfig(stop_strings=["a"])},
        "model's config": {},
    }[where]
    forwards = []
    hook = target.register_forward_hook(lambda *_: forwards.append(1))
    try:
        if where == "model's config":
            target.generation_config.stop_strings = ["a"]
        with pytest.raises(hf_specgen.SpecUnsupportedError, match="tokenizer="):
            spec(target, copied, **prompt, max_length=30, **options)
    finally:
        hook.remove()
        target.generation_config.stop_strings = None
    assert not forwards


def test_stop_strings_in_a_ragged_batch_end_each_row_alone(target, draft, tokenizer):
    batch = prompts([9, 4, 6])
    alone = [
        plain(target, **row_alone(batch, b), max_new_tokens=NEW, do_sample=False)[0, n:].tolist()
        for b, n in enumerate([9, 4, 6])
    ]
    options = {"stop_strings": [tokenizer.decode(alone[0][3]), tokenizer.decode(alone[1][6:8])], "tokenizer": tokenizer}
    rows = spec(target, draft, **batch, max_new_tokens=NEW, **options).sequences[:, 9:].tolist()
    ended = 0
    for b, n in enumerate([9, 4, 6]):
        want = plain(target, **row_alone(batch, b), max_new_tokens=NEW, do_sample=False, **options)[0, n:].tolist()
        assert rows[b] == want + [0] * (len(rows[b]) - len(want))
        ended += len(want) < NEW
    assert ended >= 1


# ---- custom criteria ----------------------------------------------------------------------------------
class LastTokenIs(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


class AfterCalls(StoppingCriteria):
    def __init__(self, calls):
        self.left, self.lengths = calls, []

    def __call__(self, input_ids, scores, **kwargs):
        self.left -= 1
        self.lengths.append(input_ids.shape[1])
        return torch.full((input_ids.shape[0],), self.left <= 0)


class ScoreBelow(StoppingCriteria):
    """Ends once the best processed score of the newest step falls below a bound; notes what it was shown."""

    def __init__(self, bound):
        self.bound, self.seen = bound, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(None if scores is None else (len(scores), tuple(scores[-1].shape)))
        if scores is None:
            return torch.zeros(input_ids.shape[0], dtype=torch.bool)
        return scores[-1].amax(-1) < self.bound


def answers_with_a_bool(input_ids, scores, **kwargs):
    return input_ids.shape[1] >= PROMPT + 5


@pytest.mark.parametrize("slot", range(8))
def test_stateless_criterion_ends_the_row_at_its_token(target, draft, prompt, said, slot):
    got = drafted_and_plain(target, draft, prompt, stopping_criteria=[LastTokenIs(said[slot])])
    assert got.sequences[0, PROMPT:].tolist() == said[: slot + 1]


@pytest.mark.parametrize("calls", [1, 4, 8, 99])
def test_stateful_criterion_is_asked_once_per_token_and_ends_as_plain_leaves_it(target, draft, prompt, calls):
    theirs, ours = AfterCalls(calls), AfterCalls(calls)
    want = plain(target, **prompt, do_sample=False, max_new_tokens=NEW, stopping_criteria=[theirs])
    got = spec(target, draft, **prompt, max_new_tokens=NEW, stopping_criteria=[ours], num_assistant_tokens=6).sequences
    assert got.tolist() == want.tolist()
    assert vars(ours) == vars(theirs)


def test_two_stateful_criteria_are_both_asked_at_the_last_token(target, copied, prompt):
    theirs, ours = [AfterCalls(4), AfterCalls(9)], [AfterCalls(4), AfterCalls(9)]
    plain(target, **prompt, do_sample=False, max_new_tokens=NEW, stopping_criteria=theirs)
    spec(target, copied, **prompt, max_new_tokens=NEW, stopping_criteria=ours, num_assistant_tokens=6)
    assert [vars(c) for c in ours] == [vars(c) for c in theirs]


@pytest.mark.parametrize("kept", [True, False], ids=["scores kept", "scores not asked for"])
def test_criterion_that_reads_scores_sees_plains(target, draft, prompt, kept):
    options = {"max_new_tokens": NEW, "output_scores": kept, "repetition_penalty": 1.2}
    dicts = {"do_sample": False, "return_dict_in_generate": True}
    best = torch.cat(plain(target, **prompt, **dicts, **options | {"output_scores": True}).scores).amax(-1)
    bound = best[1:].sort().values[2].item() + 1e-3
    theirs, ours = ScoreBelow(bound), ScoreBelow(bound)
    want = plain(target, **prompt, stopping_criteria=[theirs], **dicts, **options)
    got = spec(target, draft, **prompt, stopping_criteria=[ours], **options)
    assert got.sequences.tolist() == want.sequences.tolist()
    assert ours.seen == theirs.seen
    assert (got.sequences.shape[1] < PROMPT + NEW) == kept


def test_criterion_may_be_a_function_that_answers_with_one_bool(target, copied, prompt):
    out = spec(target, copied, **prompt, max_new_tokens=NEW, stopping_criteria=[answers_with_a_bool])
    assert out.sequences.shape[1] == PROMPT + 5


def test_stateful_criterion_in_a_batch_belongs_to_each_row_and_the_callers_object_is_untouched(target, draft):
    batch = prompts([9, 4, 6])
    ours = AfterCalls(5)
    out = spec(target, draft, **batch, max_new_tokens=NEW, eos_token_id=None, stopping_criteria=[ours])
    assert [row.emitted for row in out.spec_stats.rows] == [5, 5, 5]
    assert ours.left == 5 and ours.lengths == []


class Watching(StoppingCriteria):
    """Notes what it is shown; ends row b once the batch has `ends[b]` columns."""

    def __init__(self, ends):
        self.ends, self.seen = ends, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.tolist())
        return torch.tensor([input_ids.shape[1] >= end for end in self.ends])

    def __deepcopy__(self, memo):
        return self  # one notebook for all rows


@pytest.mark.parametrize("side", ["left", "right"])
def test_criteria_see_plains_batch_with_the_judged_row_in_every_place(target, draft, side):
    batch = prompts([9, 4, 6], side=side)
    ours = Watching([13, 11, 15])
    out = spec(target, draft, **batch, max_new_tokens=9, eos_token_id=None, stopping_criteria=[ours])
    assert [row.emitted for row in out.spec_stats.rows] == [4, 2, 6], "each row by the answer in its own place"
    shown = [[] for _ in range(3)]
    for text in ours.seen:
        assert len(text) == 3 and text[0] == text[1] == text[2]
        where = [row[: len(text[0])] for row in out.sequences.tolist()]
        shown[where.index(text[0])].append(len(text[0]))
    assert shown == [list(range(10, 14)), [10, 11], list(range(10, 16))], "once per token, padding columns included"


def test_criteria_of_a_left_padded_batch_are_shown_each_row_as_plain_shows_it(target, draft):
    batch = prompts([9, 4])
    theirs, ours = Watching([13, 13]), Watching([13, 13])
    options = batch | {"max_new_tokens": 9, "eos_token_id": None}
    plain(target, **options, do_sample=False, stopping_criteria=[theirs])
    spec(target, draft, **options, stopping_criteria=[ours])
    by_row = {tuple(text) for seen in theirs.seen for text in seen}
    assert {tuple(seen[0]) for seen in ours.seen} == by_row and len(ours.seen) == len(by_row) == 8


def test_built_in_criteria_see_the_unpadded_row(target, draft, tokenizer):
    """A stop string that the padding spells out ends nothing."""
    batch = prompts([9, 4])
    batch["input_ids"][1, :5] = tokenizer.convert_tokens_to_ids("z")
    options = {"stop_strings": ["zz"], "tokenizer": tokenizer, "max_new_tokens": 6, "eos_token_id": None}
    alone = plain(target, **row_alone(batch, 1), do_sample=False, **options)[0, 4:].tolist()
    got = spec(target, draft, **batch, **options).sequences[1, 9:].tolist()
    assert got[: len(alone)] == alone


def test_criteria_list_of_the_caller_is_not_added_to(target, copied, prompt, tokenizer, said):
    given = StoppingCriteriaList([LastTokenIs(said[9])])
    spec(
        target, copied, **prompt, max_new_tokens=NEW, stopping_criteria=given, stop_strings=["zz"], tokenizer=tokenizer
    )
    assert len(given) == 1


# ---- stops inside a span that was copied from the text -----------------------------------------------
COPIED = [[5, 9, 14, 33, 8, 20], [7, 41, 12, 30, 6, 11]]


def copying(rows: list[int]):
    """Prompts that repeat themselves, and a call in which they go on to."""
    texts = [COPIED[b] * (3 + b) for b in rows]
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])

    def allowed(row, sent):
        return [COPIED[rows[row]][len(sent) % 6]]

    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    return {"input_ids": ids, "attention_mask": mask, "prefix_allowed_tokens_fn": allowed}


@pytest.mark.parametrize("rows", [[0], [0, 1]], ids=["one row", "ragged"])
@pytest.mark.parametrize("end", range(1, 6))
@pytest.mark.parametrize("kind", ["stop string", "criterion", "criterion that counts"])
@pytest.mark.parametrize("source", ["lookup", "hybrid"])
def test_a_stop_inside_a_copied_span(target, tokenizer, source, kind, end, rows):
    options = {
        "stop string": {"stop_strings": [tokenizer.decode(COPIED[b][end]) for b in rows], "tokenizer": tokenizer},
        "criterion": {"stopping_criteria": [LastTokenIs(COPIED[b][end]) for b in rows]},
        "criterion that counts": {"stopping_criteria": [AfterCalls(end + 1)]},
    }[kind] | {"max_new_tokens": 12, "eos_token_id": None}
    draft = noisy(target) if source == "hybrid" else None
    out = spec(target, draft, **copying(rows), **options, spec_source=source, num_assistant_tokens=6)
    for place, b in enumerate(rows):
        if kind == "criterion that counts":
            options["stopping_criteria"] = [AfterCalls(end + 1)]
        want = plain(target, **copying([b]), **options, do_sample=False)[0].tolist()
        assert out.sequences[place, -end - 1 :].tolist() == want[-end - 1 :] == COPIED[b][: end + 1]
        row = out.spec_stats.rows[place]
        assert row.by_source.keys() == {"lookup"} and row.emitted == end + 1 and row.trimmed == 7 - end


# ---- rows that end at different times -----------------------------------------------------------------
@pytest.fixture(scope="module")
def ragged(target):
    """Three prompts and two EOS ids: the rows end at their third token, at their ninth, and never."""
    chosen, said, ends = [], [], set()
    for length, end in ((5, 3), (9, 9), (4, NEW)):
        ids, answers = many_answers(target, length)
        for prompt, answer in zip(ids, answers, strict=True):
            ends_there = end == NEW or answer[end - 1] not in answer[: end - 1]
            if 0 not in answer and ends_there and not ends & set(answer):
                chosen.append(prompt)
                said.append(answer[:end])
                ends |= {answer[end - 1]} if end < NEW else set()
                break
    ids, mask = torch.zeros(2, 3, 9, dtype=torch.long)
    for b, prompt in enumerate(chosen):
        ids[b, 9 - len(prompt) :], mask[b, 9 - len(prompt) :] = prompt, 1
    assert list(map(len, said)) == [3, 9, NEW] and not ends & set(said[2])
    return {"input_ids": ids, "attention_mask": mask}, sorted(ends), said


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0], [1, 2, 0]], ids=str)
@pytest.mark.parametrize("k", [1, 6])
def test_rows_that_end_at_3_at_9_and_never(target, draft, ragged, order, k):
    batch, ends, said = ragged
    batch = {name: x[order] for name, x in batch.items()}
    said = [said[b] for b in order]
    options = {
        "max_new_tokens": NEW,
        "eos_token_id": ends,
        "pad_token_id": 61,
        "output_scores": True,
        "output_logits": True,
    }
    out = spec(target, draft, **batch, num_assistant_tokens=k, **options)
    assert out.sequences[:, 9:].tolist() == [row + [61] * (NEW - len(row)) for row in said]
    assert out.sequences[:, :9].tolist() == batch["input_ids"].tolist(), "the input stays as it was given"
    for name in ("scores", "logits"):
        steps = torch.stack(out[name], dim=1)
        assert steps.shape == (3, NEW, VOCAB)
        for b, row in enumerate(said):
            assert (steps[b, len(row) :] == 0).all() and (steps[b, : len(row)] != 0).any(-1).all()
    assert [row.emitted for row in out.spec_stats.rows] == [len(row) for row in said], "the dead are not counted"
    for b, row in enumerate(said):
        assert not out.draft_mask[b, len(row) :].any() and out.draft_mask[b].any(), "no draft token behind an end"


def test_decoding_ends_with_the_last_row_not_at_the_length(target, draft, ragged):
    batch, ends, _ = ragged
    two = {name: x[:2] for name, x in batch.items()}
    out = spec(target, draft, **two, max_new_tokens=60, eos_token_id=ends)
    assert out.sequences.shape[1] == 9 + 9
    plain_too = plain(target, **two, max_new_tokens=60, eos_token_id=ends, do_sample=False)
    assert out.sequences.tolist() == plain_too.tolist()


# ---- streams ------------------------------------------------------------------------------------------
class Recorder(BaseStreamer):
    def __init__(self):
        self.calls = []

    def put(self, value):
        self.calls.append(("put", tuple(value.shape), value.dtype, value.device.type, value.tolist()))

    def end(self):
        self.calls.append(("end",))


class Collector(TextStreamer):
    def __init__(self, tokenizer, **options):
        super().__init__(tokenizer, **options)
        self.pieces = []

    def on_finalized_text(self, text, stream_end=False):
        self.pieces.append((text, stream_end))


@pytest.mark.parametrize(
    "stop", [None, 0, 3, 6], ids=["to the length", "eos at once", "eos in a block", "eos at its end"]
)
@pytest.mark.parametrize("do_sample", [False, True])
def test_streamer_gets_plains_calls_one_token_at_a_time(target, draft, prompt, said, stop, do_sample):
    options = {"max_new_tokens": NEW, "eos_token_id": None if stop is None else said[stop]}
    options |= {"do_sample": True, "top_k": 1} if do_sample else {"do_sample": False}
    theirs, ours = Recorder(), Recorder()
    plain(target, **prompt, streamer=theirs, **options)
    out = spec(target, draft, **prompt, streamer=ours, num_assistant_tokens=6, **options)
    assert ours.calls == theirs.calls
    assert ours.calls[0][1] == (1, PROMPT) and ours.calls[-1] == ("end",)
    assert [call[4][0] for call in ours.calls[1:-1]] == out.sequences[0, PROMPT:].tolist()


def test_streamer_sees_nothing_behind_a_stop_string(target, copied, prompt, said, tokenizer):
    ours = Recorder()
    spec(
        target,
        copied,
        **prompt,
        max_new_tokens=NEW,
        streamer=ours,
        stop_strings=[tokenizer.decode(said[4])],
        tokenizer=tokenizer,
    )
    assert [call[4] for call in ours.calls[1:-1]] == [[token] for token in said[:5]]


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_text_streamer_prints_plains_text_in_plains_pieces(target, tokenizer, skip_prompt):
    """The text holds an "é" whose two bytes are two tokens, and line breaks."""
    text = ["h", "i", "Ġthe", "Ã", "©", "Ã", "©", "Ċ", "a", "b", "Ġa", "Ã", "©", "<eos>"]
    pieces = tokenizer.convert_tokens_to_ids(text)

    def forced(_, sent):
        return [pieces[min(len(sent) - 4, len(pieces) - 1)]]

    batch = prompts([4])
    options = {"max_new_tokens": 30, "prefix_allowed_tokens_fn": forced, "do_sample": False}
    theirs, ours = (Collector(tokenizer, skip_prompt=skip_prompt) for _ in range(2))
    plain(target, **batch, streamer=theirs, **options)
    out = spec(target, noisy(target, 0), **batch, streamer=ours, num_assistant_tokens=6, **options)
    assert ours.pieces == theirs.pieces
    whole = "".join(piece for piece, _ in ours.pieces)
    assert whole.count("é") >= 3 and "\ufffd" not in whole.replace(tokenizer.decode(batch["input_ids"][0]), "")
    assert whole == tokenizer.decode(out.sequences[0, 4 if skip_prompt else 0 :])


def test_text_iterator_streamer_from_a_thread(target, draft, prompt, tokenizer):
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=30)
    done = {}

    def work():
        done["out"] = spec(target, draft, **prompt, max_new_tokens=NEW, streamer=streamer)

    thread = threading.Thread(target=work)
    thread.start()
    text = "".join(streamer)
    thread.join(30)
    assert text == tokenizer.decode(done["out"].sequences[0, PROMPT:])


def test_streamer_with_several_rows_is_refused_before_anything_is_put(target, draft):
    ours = Recorder()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="shows one row, and this call has 2"):
        spec(target, draft, **prompts([4, 4]), max_new_tokens=4, streamer=ours)
    assert ours.calls == [("end",)]


def test_stops_and_streams_warn_about_nothing(target, copied, prompt, said, tokenizer):
    options = {"max_new_tokens": NEW, "eos_token_id": [said[9], EOS], "streamer": Recorder(), "stop_strings": ["qq"]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spec(target, copied, **prompt, tokenizer=tokenizer, **options)
