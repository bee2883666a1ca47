"""Streams of several rows: every row is shown as if it were alone, ends when it ends, and nobody waits for ever."""

import asyncio
import threading

import pytest
import torch
from stream_toys import (
    PATIENCE,
    Broken,
    Pieces,
    Recorder,
    RowRecorder,
    byte_pair,
    byte_tokenizer,
    half_right,
    in_thread,
    says,
)
from toys import noisy, plain, prompts, row_alone, spec, tiny
from transformers import AsyncTextIteratorStreamer, TextIteratorStreamer, TextStreamer

import hf_specgen
from hf_specgen import RowStreamers

NEW = 24
ASKED = ["a", "Hello, wörld 🙂: ", "two\nlines "]
TEXTS = ["Où? 🙂", "naïve façade\n日本語 — “ok” ½ and so on, 👩‍👩‍👧 until the end", "çédille"]


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return target, noisy(target)


@pytest.fixture(scope="module")
def ends(pair):
    """An EOS list under which rows of `prompts([7, 4, 9, 5])` end at different times."""
    answers = plain(pair[0], **prompts([7, 4, 9, 5]), max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    return [answers[0, 9 + 4].item(), answers[2, 9 + 8].item()]


def alone(target, batch, b, **options):
    """Row b's prompt and its new tokens in a plain call of its own."""
    row = row_alone(batch, b)
    out = plain(target, **row, do_sample=False, **options)
    ids = row["input_ids"][0].tolist()
    return ids, out[0, len(ids) :].tolist()


# ---- the protocol -------------------------------------------------------------------------------------
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("strategy, k", [("rejection", 1), ("rejection", 6), ("block", 3), ("coupled", 4)])
def test_each_row_is_shown_its_prompt_without_padding_and_its_own_tokens(pair, ends, side, strategy, k):
    batch, options = prompts([7, 4, 9, 5], side=side), {"max_new_tokens": NEW, "eos_token_id": ends}
    ours = RowRecorder()
    spec(*pair, strategy, **batch, streamer=ours, num_assistant_tokens=k, **options)
    want = [alone(pair[0], batch, b, **options) for b in range(4)]
    assert [ours.of(b) for b in range(4)] == want
    assert len({len(new) for _, new in want}) >= 3, "rows end at different times"
    assert ours.log[-1] == "end" and ours.log.count("end") == 1
    for b in range(4):
        entries = [ids for row, ids in ours.log[:-1] if row == b]
        assert entries[-1] is None and entries[:-1].count(None) == 0, "a row ends once, after its last token"
        assert all(x.dtype == torch.int64 and x.device.type == "cpu" and x.dim() == 1 for x in entries[:-1])
        assert all(x.shape == (1,) for x in entries[1:-1])
    assert [row for row, ids in ours.log[:4]] == [0, 1, 2, 3], "prompts first"


def test_one_row_goes_by_the_same_protocol(pair):
    ours = RowRecorder()
    out = spec(*pair, **prompts([6]), streamer=ours, max_new_tokens=NEW)
    asked, new = ours.of(0)
    assert asked + new == out.sequences[0].tolist() and ours.log[-2:] == [(0, None), "end"]


@pytest.mark.parametrize("top_k", [0, 1])
def test_num_return_sequences_gives_a_row_each_in_the_results_order(pair, top_k):
    batch, ours = prompts([6, 3]), RowRecorder()
    options = {"num_return_sequences": 3, "max_new_tokens": 10, "do_sample": True, "top_k": top_k, "eos_token_id": None}
    generators = [torch.Generator().manual_seed(b) for b in range(6)]
    out = spec(*pair, "block", **batch, streamer=ours, generator=generators, **options)
    for b in range(6):
        ids, new = ours.of(b)
        assert ids == row_alone(batch, b // 3)["input_ids"][0].tolist()
        assert new == out.sequences[b, 6:].tolist()
    assert len({tuple(ours.of(b)[1]) for b in range(3)}) == (1 if top_k else 3)


def test_a_row_ends_in_the_round_of_its_last_token(pair, ends):
    rounds, log = [], []

    class Watch(RowRecorder):
        def put_row(self, row, ids):
            log.append((row, "put", len(rounds)))

        def end_row(self, row):
            log.append((row, "end", len(rounds)))

    hook = pair[0].register_forward_pre_hook(lambda *_: rounds.append(1))
    try:
        spec(*pair, **prompts([7, 4, 9, 5]), streamer=Watch(), max_new_tokens=NEW, eos_token_id=ends)
    finally:
        hook.remove()
    ended = {row: at for row, what, at in log if what == "end"}
    last = {row: at for row, what, at in log if what == "put"}
    assert ended == last and len(set(ended.values())) >= 3


def test_a_streamer_without_end_row_is_enough(pair, ends):
    class Bare:
        def __init__(self):
            self.rows, self.ends = {}, 0

        def put_row(self, row, ids):
            self.rows.setdefault(row, []).extend(ids.tolist())

        def end(self):
            self.ends += 1

    ours, batch = Bare(), prompts([7, 4, 9, 5])
    spec(*pair, **batch, streamer=ours, max_new_tokens=NEW, eos_token_id=ends)
    want = [alone(pair[0], batch, b, max_new_tokens=NEW, eos_token_id=ends) for b in range(4)]
    assert ours.rows == {b: asked + new for b, (asked, new) in enumerate(want)} and ours.ends == 1


def test_a_streamer_of_one_row_is_refused_with_several_before_anything_is_put(pair):
    ours = Recorder()
    with pytest.raises(hf_specgen.SpecUnsupportedError, match=r"Recorder shows one row.* has 2.*RowStreamers"):
        spec(*pair, **prompts([6, 3]), streamer=ours, max_new_tokens=NEW)
    with pytest.raises(hf_specgen.SpecUnsupportedError, match="one row"):
        spec(*pair, **prompts([6]), streamer=ours, num_return_sequences=2, do_sample=True, max_new_tokens=NEW)
    assert ours.puts == [] and ours.ends == 2


# ---- text streamers, one per row ----------------------------------------------------------------------
def speaking():
    """Inputs and options that make the byte pair say TEXTS, and a draft that is right now and then."""
    tokenizer = byte_tokenizer()
    inputs = tokenizer(ASKED, return_tensors="pt", padding=True, padding_side="left")
    answers = [tokenizer.encode(text) for text in TEXTS]
    draft = half_right([tokenizer.encode(asked) for asked in ASKED], answers)
    return inputs, draft, {"prefix_allowed_tokens_fn": says(*answers), "max_new_tokens": 90}


@pytest.mark.parametrize("kind", ["list", "factory"])
@pytest.mark.parametrize("skip_prompt", [False, True])
@pytest.mark.parametrize("k", [1, 4])
def test_text_streamers_show_what_each_row_alone_would(kind, skip_prompt, k):
    tokenizer, made = byte_tokenizer(), {}
    inputs, draft, options = speaking()

    def make(row):
        made[row] = Pieces(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
        return made[row]

    streamers = RowStreamers(make if kind == "factory" else [make(row) for row in range(3)])
    spec(byte_pair()[0], draft, **inputs, streamer=streamers, num_assistant_tokens=k, **options)
    for b, (asked, text) in enumerate(zip(ASKED, TEXTS, strict=True)):
        assert made[b].text == ("" if skip_prompt else asked) + text and made[b].ends == 1
        theirs = Pieces(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)
        options["prefix_allowed_tokens_fn"] = says(tokenizer.encode(text))
        plain(byte_pair()[0], **row_alone(inputs, b), do_sample=False, streamer=theirs, **options)
        assert made[b].pieces == theirs.pieces


def test_plain_text_streamers_print(capsys):
    inputs, draft, options = speaking()
    streamers = RowStreamers(lambda row: TextStreamer(byte_tokenizer(), skip_prompt=True, skip_special_tokens=True))
    spec(byte_pair()[0], draft, **inputs, streamer=streamers, **options)
    out = capsys.readouterr().out
    assert out.count("\n") == 3 + TEXTS[1].count("\n") and out.endswith("\n")


def test_iterators_of_short_rows_end_while_the_long_one_goes_on():
    """The long row's stream waits, in the middle, for the consumers of the short ones: with a late end, it would for
    ever."""
    inputs, draft, options = speaking()
    done = [threading.Event() for _ in TEXTS]

    class Waits(TextIteratorStreamer):
        puts = 0

        def put(self, value):
            self.puts += 1
            if self.puts == 60:
                assert done[0].wait(PATIENCE) and done[2].wait(PATIENCE)
            super().put(value)

    texts = [None] * 3
    streamers = [
        (Waits if b == 1 else TextIteratorStreamer)(
            byte_tokenizer(), skip_prompt=True, timeout=2 * PATIENCE, skip_special_tokens=True
        )
        for b in range(3)
    ]

    def consume(b):
        texts[b] = "".join(streamers[b])
        done[b].set()

    consumers = [in_thread(lambda b=b: consume(b)) for b in range(3)]
    spec(byte_pair()[0], draft, **inputs, streamer=RowStreamers(streamers), **options)
    for thread, errors in consumers:
        thread.join(PATIENCE)
        assert not thread.is_alive() and not errors
    assert texts == TEXTS


def test_async_iterators_one_task_per_row():
    inputs, draft, options = speaking()

    async def main():
        def make():
            return AsyncTextIteratorStreamer(byte_tokenizer(), True, PATIENCE, skip_special_tokens=True)

        async def text(streamer):
            return "".join([piece async for piece in streamer])

        each = [make() for _ in TEXTS]
        call = {"streamer": RowStreamers(each), **inputs, **options}
        thread, errors = in_thread(lambda: spec(byte_pair()[0], draft, **call))
        texts = await asyncio.gather(*map(text, each))
        await asyncio.to_thread(thread.join, PATIENCE)
        return texts, errors

    assert asyncio.run(main()) == (TEXTS, [])


def test_one_object_serves_one_call_after_another():
    """A pipeline gives its streamer to every batch."""
    each = [Pieces(byte_tokenizer(), skip_prompt=True, skip_special_tokens=True) for _ in TEXTS]
    streamers = RowStreamers(each)
    for turn in (1, 2):
        inputs, draft, options = speaking()
        spec(byte_pair()[0], draft, **inputs, streamer=streamers, **options)
        assert [x.text for x in each] == [text * turn for text in TEXTS]
        assert [x.ends for x in each] == [turn] * 3


def test_a_function_is_asked_for_new_streamers_in_every_call():
    made = []

    def make(row):
        made.append((row, Pieces(byte_tokenizer(), skip_prompt=True, skip_special_tokens=True)))
        return made[-1][1]

    streamers = RowStreamers(make)
    for _ in range(2):
        inputs, draft, options = speaking()
        spec(byte_pair()[0], draft, **inputs, streamer=streamers, **options)
    assert [(row, x.text, x.ends) for row, x in made] == [(b, TEXTS[b], 1) for b in (0, 1, 2, 0, 1, 2)]


# ---- errors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("at", [0, 2, 4, 11])
def test_after_an_error_of_the_streamers_own_it_is_ended(pair, at):
    ours = RowRecorder(fails_at=at)
    with pytest.raises(Broken):
        spec(*pair, **prompts([7, 4, 9]), streamer=ours, max_new_tokens=NEW, eos_token_id=None)
    assert ours.log[-1] == "end" and ours.log.count("end") == 1 and len(ours.log) == at + 1


@pytest.mark.parametrize("kind", ["refused", "in the middle", "one row's put", "one row's put and end"])
def test_no_row_waits_for_ever_after_an_error(pair, kind):
    class Breaks(Pieces):
        def put(self, value):
            raise Broken("on purpose")

        def end(self):
            self.ends += 1
            if kind.endswith("end"):
                raise Broken("gone")

    each = [Pieces(byte_tokenizer()), Pieces(byte_tokenizer()), Pieces(byte_tokenizer())]
    options = {"max_new_tokens": NEW, "eos_token_id": None}
    if kind.startswith("one row"):
        each[0] = Breaks(byte_tokenizer())
    elif kind == "refused":
        options["num_beams"] = 2
    else:
        left = iter(range(20))
        options["logits_processor"] = [lambda ids, scores: scores if len(ids[0]) < 14 or next(left) is None else 1 / 0]
    with pytest.raises((Broken, ZeroDivisionError, hf_specgen.SpecUnsupportedError)):
        spec(*pair, **prompts([7, 4, 9]), streamer=RowStreamers(each), **options)
    assert [x.ends for x in each] == [1, 1, 1]


def test_too_few_streamers_are_told_before_any_of_them_is_used(pair):
    each = [Pieces(byte_tokenizer()) for _ in range(2)]
    with pytest.raises(ValueError, match="2 were given"):
        spec(*pair, **prompts([7, 4, 9]), streamer=RowStreamers(each), max_new_tokens=NEW)
    assert [(x.text, x.ends) for x in each] == [("", 1)] * 2


def test_streamers_beyond_the_rows_are_ended(pair):
    each = [Pieces(byte_tokenizer()) for _ in range(3)]
    spec(*pair, **prompts([7, 4]), streamer=RowStreamers(each), max_new_tokens=NEW)
    assert [x.ends for x in each] == [1, 1, 1] and each[2].text == ""


# ---- decoded plainly ----------------------------------------------------------------------------------
@pytest.mark.parametrize("how", ["fallback", "switched off"])
@pytest.mark.filterwarnings("ignore:Decoding without the draft")
def test_row_streamers_show_plain_decoding_too(how):
    """Rows that are shorter are shown their padding then, as plain decoding has it: special tokens, skipped here."""
    each = [Pieces(byte_tokenizer(), skip_special_tokens=True) for _ in TEXTS]
    inputs, draft, options = speaking()
    if how == "fallback":
        options |= {"use_cache": False, "spec_fallback": "plain"}
        spec(byte_pair()[0], draft, **inputs, streamer=RowStreamers(each), **options)
    else:
        spec(byte_pair()[0], None, None, **inputs, streamer=RowStreamers(each), **options)
    assert [x.text for x in each] == [a + b for a, b in zip(ASKED, TEXTS, strict=True)]
    assert [x.ends for x in each] == [1, 1, 1]


def test_the_fallback_serves_a_streamer_that_knows_rows_only(pair):
    ours, batch = RowRecorder(), prompts([7, 4])
    with pytest.warns(UserWarning, match="Decoding without the draft"):
        out = spec(*pair, **batch, streamer=ours, max_new_tokens=8, use_cache=False, spec_fallback="plain")
    for b in range(2):
        assert ours.of(b)[1][:8] == out.sequences[b, 7:].tolist()
    assert ours.log[-1] == "end"
