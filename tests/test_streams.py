"""One row's stream: the very calls of plain decoding, token by token as rounds go, and one `end()` whatever happens."""

import asyncio
import contextlib
import threading

import pytest
import torch
from stream_toys import (
    PATIENCE,
    Broken,
    FailsAt,
    Pieces,
    Recorder,
    byte_pair,
    byte_tokenizer,
    consumed,
    half_right,
    in_thread,
    says,
)
from toys import EOS, noisy, plain, prompts, spec, tiny
from transformers import AsyncTextIteratorStreamer, StoppingCriteria, TextIteratorStreamer, TextStreamer

import hf_specgen

NEW = 24
PROMPT = "héllo 🙂 "
TEXT = "Où ça? 🙂🙃 naïve façade\n日本語 text — “ok” ½\nçédille 👩‍👩‍👧 end"


@pytest.fixture(scope="module")
def pair():
    target = tiny()
    return target, noisy(target)


@pytest.fixture(scope="module")
def prompt():
    return prompts([6])


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


def both(pair, prompt, make=Recorder, strategy="rejection", draft=None, **options):
    """The same call plainly and speculatively, a streamer each: (theirs, ours, ids)."""
    options = {"max_new_tokens": NEW, "do_sample": False} | options
    theirs, ours = make(), make()
    want = plain(pair[0], **prompt, streamer=theirs, **options)
    out = spec(pair[0], draft or pair[1], strategy, **prompt, streamer=ours, **{"num_assistant_tokens": 5} | options)
    assert out.sequences.tolist() == want.tolist()
    return theirs, ours, out


# ---- what is put --------------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("k", [1, 2, 7])
def test_shapes_types_values_and_order_are_plains(pair, prompt, strategy, k):
    theirs, ours, out = both(pair, prompt, strategy=strategy, num_assistant_tokens=k)
    assert ours.shown() == theirs.shown() and (ours.ends, ours.late) == (theirs.ends, theirs.late) == (1, 0)
    assert ours.puts[0].shape == (1, 6) and all(x.shape == (1,) for x in ours.puts[1:])
    assert torch.cat([x.flatten() for x in ours.puts]).tolist() == out.sequences[0].tolist()
    assert out.spec_stats.accepted > 0


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_prompt_is_put_as_it_was_given(pair, side):
    wide = prompts([6, 9], side=side)
    one = {name: x[:1] for name, x in wide.items()}
    ours = Recorder()
    spec(*pair, **one, max_new_tokens=5, streamer=ours)
    assert ours.puts[0].tolist() == one["input_ids"].tolist()


def test_a_sampled_stream_is_its_ids(pair, prompt):
    ours = Recorder()
    out = spec(*pair, **prompt, max_new_tokens=NEW, do_sample=True, top_k=0, streamer=ours)
    assert torch.cat([x.flatten() for x in ours.puts]).tolist() == out.sequences[0].tolist()


def test_an_encoder_decoders_stream_is_plains():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    config = T5Config(vocab_size=64, pad_token_id=0, eos_token_id=EOS, decoder_start_token_id=2, **sizes)
    target = T5ForConditionalGeneration(config).eval()
    theirs, ours, _ = both((target, noisy(target)), prompts([6]))
    assert ours.shown() == theirs.shown() and ours.puts[0].tolist() == [[2]]


def test_a_prompt_of_embeddings_is_shown_as_plainly(pair, prompt):
    inputs = {"inputs_embeds": pair[0].get_input_embeddings()(prompt["input_ids"]).detach()}
    theirs, ours, out = both(pair, inputs)
    assert ours.shown() == theirs.shown() and ours.puts[0].shape == (1, 0)
    row = Pieces(byte_tokenizer(), skip_prompt=True)
    spec(*pair, **inputs, max_new_tokens=NEW, streamer=hf_specgen.RowStreamers([row]))
    assert row.text == byte_tokenizer().decode(out.sequences[0])


# ---- when it is put -----------------------------------------------------------------------------------
@pytest.mark.parametrize("k", [1, 4])
def test_tokens_are_put_as_their_round_ends(pair, prompt, k):
    """Between two target forwards just the tokens of one round are put: nothing waits for the end of the call."""
    forwards, at = [], []

    class Watch(Recorder):
        def put(self, value):
            at.append(len(forwards))
            super().put(value)

    hook = pair[0].register_forward_pre_hook(lambda *_: forwards.append(1))
    try:
        out = spec(*pair, **prompt, max_new_tokens=NEW, streamer=Watch(), num_assistant_tokens=k)
    finally:
        hook.remove()
    rounds = [accepted + 1 for _, accepted in out.spec_stats.rows[0].trace]
    rounds[-1] -= out.spec_stats.trimmed
    want = [n for n, tokens in enumerate(rounds, start=1) for _ in range(tokens)]
    assert at[1:] == want and len(forwards) == len(rounds) > 2


# ---- nothing after the stop ---------------------------------------------------------------------------
class LastIs(StoppingCriteria):
    def __init__(self, token):
        self.token = token

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("kind", ["eos", "stop_strings", "criterion", "length"])
@pytest.mark.parametrize("at", range(1, 9))
def test_nothing_after_a_stop_in_a_block_is_put(tokenizer, kind, at):
    """K = 6, all accepted: the stop falls on each slot of the first block, its bonus token and the next block."""
    target, draft = byte_pair()
    answer = [token for letter in "abcdefghijkl" for token in tokenizer.encode(letter)]
    options = {"prefix_allowed_tokens_fn": says(answer), "max_new_tokens": 12}
    options |= {
        "eos": {"eos_token_id": [0, answer[at]]},
        "stop_strings": {"stop_strings": ["abcdefghijkl"[at]], "tokenizer": tokenizer},
        "criterion": {"stopping_criteria": [LastIs(answer[at])]},
        "length": {"max_new_tokens": at + 1},
    }[kind]
    theirs, ours, out = both((target, draft), prompts([5]), num_assistant_tokens=6, **options)
    assert ours.shown() == theirs.shown() and (ours.ends, ours.late) == (1, 0)
    assert [x.tolist() for x in ours.puts[1:]] == [[token] for token in answer[: at + 1]]
    assert out.spec_stats.accepted >= min(at - 1, 6)


# ---- text ---------------------------------------------------------------------------------------------
def speaking(tokenizer, draft=None):
    """Inputs and options that make the byte pair say TEXT, and a draft: one that is right now and then, or that."""
    inputs = tokenizer(PROMPT, return_tensors="pt")
    answer = tokenizer.encode(TEXT)
    draft = draft or half_right(inputs["input_ids"].tolist(), [answer])
    return inputs, draft, {"prefix_allowed_tokens_fn": says(answer), "max_new_tokens": len(answer)}


def test_the_text_has_characters_of_two_to_four_tokens(tokenizer):
    assert [len(tokenizer.encode(x)) for x in "éâ日🙂"] == [2, 2, 3, 4]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT


@pytest.mark.parametrize("right", ["always", "now and then"])
@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("skip_prompt", [False, True])
def test_printed_text_equals_plains_piece_by_piece(tokenizer, right, k, skip_prompt):
    """Whatever blocks the characters are torn apart by."""
    inputs, draft, options = speaking(tokenizer, byte_pair()[1] if right == "always" else None)

    def make():
        return Pieces(tokenizer, skip_prompt=skip_prompt, skip_special_tokens=True)

    theirs, ours, out = both(byte_pair(), inputs, make, draft=draft, num_assistant_tokens=k, **options)
    assert ours.pieces == theirs.pieces and ours.ends == 1
    assert ours.text == ("" if skip_prompt else PROMPT) + TEXT
    assert (out.spec_stats.accepted < out.spec_stats.drafted) == (right != "always")


def test_text_streamer_prints_on_stdout_what_plain_prints(tokenizer, capsys):
    inputs, draft, options = speaking(tokenizer)
    plain(byte_pair()[0], **inputs, do_sample=False, streamer=TextStreamer(tokenizer), **options)
    want = capsys.readouterr().out
    spec(byte_pair()[0], draft, **inputs, streamer=TextStreamer(tokenizer), **options)
    assert capsys.readouterr().out == want == PROMPT + TEXT + "\n"


def test_text_iterator_streamer_in_a_thread(tokenizer):
    inputs, draft, options = speaking(tokenizer)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=PATIENCE)
    pieces, errors = consumed(streamer, lambda: spec(byte_pair()[0], draft, **inputs, streamer=streamer, **options))
    assert not errors and "".join(pieces) == TEXT and len(pieces) > 20


def test_async_text_iterator_streamer(tokenizer):
    inputs, draft, options = speaking(tokenizer)

    async def main():
        streamer = AsyncTextIteratorStreamer(tokenizer, skip_prompt=True, timeout=PATIENCE)
        thread, errors = in_thread(lambda: spec(byte_pair()[0], draft, **inputs, streamer=streamer, **options))
        pieces = [piece async for piece in streamer]
        await asyncio.to_thread(thread.join, PATIENCE)
        return pieces, errors

    pieces, errors = asyncio.run(main())
    assert not errors and "".join(pieces) == TEXT


# ---- end(), once --------------------------------------------------------------------------------------
def processor(at):
    return lambda: {"logits_processor": [FailsAt(at)]}


def criterion(at, error=Broken):
    def make():
        fails = FailsAt(at, error)
        return {"stopping_criteria": [lambda ids, scores, **_: fails(torch.zeros(len(ids), dtype=torch.bool))]}

    return make


def given(**options):
    return lambda: options


REFUSED = hf_specgen.SpecUnsupportedError
FAILURES = {
    "refused: beams": (given(num_beams=2), REFUSED),
    "refused: guidance": (given(guidance_scale=2.0), REFUSED),
    "refused: a stop string without a tokenizer": (given(stop_strings=["x"]), REFUSED),
    "refused: no such strategy": (given(strategy="greedily"), REFUSED),
    "refused: no draft": (given(draft="none"), REFUSED),
    "refused: not a draft": (given(draft=5), REFUSED),
    "an argument nobody knows": (given(no_such_argument=1), ValueError),
    "processor at once": (processor(0), Broken),
    "processor in a block": (processor(9), Broken),
    "criterion at once": (criterion(0), Broken),
    "criterion in a block": (criterion(4), Broken),
    "interrupt in a criterion": (criterion(4, KeyboardInterrupt), KeyboardInterrupt),
    "draft at its prefill": (given(hook=("draft", 0)), Broken),
    "draft later": (given(hook=("draft", 7)), Broken),
    "draft out of memory": (given(hook=("draft", 7, torch.OutOfMemoryError)), hf_specgen.SpecDraftError),
    "target at its prefill": (given(hook=("target", 0)), Broken),
    "target later": (given(hook=("target", 2)), Broken),
    "interrupt in the target": (given(hook=("target", 2, KeyboardInterrupt)), KeyboardInterrupt),
}
BEFORE_ANYTHING = [name for name in FAILURES if name.startswith(("refused", "an argument", "target at its"))]


def failing(pair, prompt, streamer, strategy="rejection", draft=None, hook=None, **options):
    """The failing call, as `FAILURES` describes it."""
    draft = {None: pair[1], "none": None}.get(draft, draft)
    handle = None
    if hook is not None:
        handle = dict(zip(("target", "draft"), pair, strict=True))[hook[0]].register_forward_pre_hook(
            FailsAt(*hook[1:])
        )
    try:
        return spec(
            pair[0], draft, strategy, **prompt, streamer=streamer, max_new_tokens=NEW, eos_token_id=None, **options
        )
    finally:
        if handle is not None:
            handle.remove()


@pytest.mark.parametrize("name", FAILURES)
def test_the_stream_ends_once_after_an_error_and_the_error_comes_out(pair, prompt, name):
    make, error = FAILURES[name]
    ours = Recorder()
    with pytest.raises(error):
        failing(pair, prompt, ours, **make())
    assert (ours.ends, ours.late) == (1, 0)
    assert (ours.puts == []) == (name in BEFORE_ANYTHING)


@pytest.mark.parametrize("name", FAILURES)
def test_a_consumer_never_hangs(pair, prompt, name):
    make, error = FAILURES[name]
    streamer = TextIteratorStreamer(byte_tokenizer(), skip_prompt=True, timeout=PATIENCE)
    _, errors = consumed(streamer, lambda: failing(pair, prompt, streamer, **make()))
    assert len(errors) == 1 and isinstance(errors[0], error)


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_an_error_of_the_streamers_own_comes_out_and_it_is_still_ended(pair, prompt, at, error):
    """A client that has gone away: at the prompt, at the first token, in a block."""
    ours = Recorder(fails_at=at, error=error)
    with pytest.raises(error, match="on purpose"):
        spec(*pair, **prompt, max_new_tokens=NEW, streamer=ours)
    assert (ours.ends, len(ours.puts)) == (1, at)


def test_an_error_in_end_comes_out_and_end_is_not_tried_again(pair, prompt):
    class EndFails(Recorder):
        def end(self):
            super().end()
            raise Broken("on purpose")

    ours = EndFails()
    with pytest.raises(Broken):
        spec(*pair, **prompt, max_new_tokens=NEW, streamer=ours)
    assert ours.ends == 1


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_an_error_in_end_does_not_hide_the_one_before_it(pair, prompt, error):
    """A Ctrl-C must not turn into the broken pipe of a client that has gone as well."""

    class Gone(Recorder):
        def end(self):
            super().end()
            raise BrokenPipeError("gone")

    with pytest.raises(error, match="on purpose"):
        spec(*pair, **prompt, max_new_tokens=NEW, streamer=Gone(fails_at=4, error=error))


@pytest.mark.parametrize("fallback", [None, "plain"])
@pytest.mark.filterwarnings("ignore")
def test_a_processor_that_can_no_longer_be_copied_does_not_stream_twice(pair, prompt, fallback):
    """It keeps a lock from its first call on: too late for a refusal before the first token."""

    class Locks:
        lock = None

        def __call__(self, input_ids, scores):
            self.lock = self.lock or threading.Lock()
            return scores

    ours, want = Recorder(), plain(pair[0], **prompt, max_new_tokens=NEW, do_sample=False)[0].tolist()
    options = {"max_new_tokens": NEW, "logits_processor": [Locks()], "spec_fallback": fallback}
    with contextlib.suppress(hf_specgen.SpecUnsupportedError, RuntimeError):
        assert spec(*pair, **prompt, streamer=ours, **options).sequences[0].tolist() == want
    shown = torch.cat([x.flatten() for x in ours.puts]).tolist() if ours.puts else []
    assert shown == want[: len(shown)] and ours.ends == 1


@pytest.mark.parametrize("fails", [False, True], ids=["goes well", "fails"])
def test_the_plain_fallback_streams_as_plain_and_ends_once(pair, prompt, fails):
    theirs, ours = Recorder(), Recorder(fails_at=4 if fails else None)
    options = {"max_new_tokens": NEW, "use_cache": False, "do_sample": False}
    plain(pair[0], **prompt, streamer=theirs, **options)
    drafting = {"spec_strategy": "rejection", "num_assistant_tokens": 5}
    hf_specgen.enable(pair[0], assistant_model=pair[1], **drafting, spec_fallback="plain")
    try:
        with pytest.warns(UserWarning, match="Decoding without the draft"):
            if fails:
                with pytest.raises(Broken):
                    pair[0].generate(**prompt, streamer=ours, **options)
            else:
                pair[0].generate(**prompt, streamer=ours, **options)
    finally:
        hf_specgen.disable(pair[0])
    assert (ours.ends, ours.late) == (1, 0)
    assert ours.shown() == theirs.shown()[: 4 if fails else None]


def test_one_streamer_serves_one_call_after_another(tokenizer):
    """As a chat program does: a TextStreamer starts anew after its end."""
    inputs, draft, options = speaking(tokenizer)
    ours = Pieces(tokenizer, skip_prompt=True)
    for _ in range(2):
        options["prefix_allowed_tokens_fn"] = says(tokenizer.encode(TEXT))
        spec(byte_pair()[0], draft, **inputs, streamer=ours, **options)
    assert ours.text == TEXT * 2 and ours.ends == 2
