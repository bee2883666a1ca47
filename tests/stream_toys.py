"""What the stream tests share: streamers that take notes, texts that a model is made to say, consumers in threads."""

import functools
import threading

import torch
from toys import Scripted, noisy, tiny
from transformers import AutoTokenizer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from hf_specgen.demo import PAIR

BYTES = 2048
PATIENCE = 20.0  # seconds after which a consumer counts as hanging


class Broken(RuntimeError):
    """Raised on purpose."""


class FailsAt:
    """Raises at its `at`-th call (0 is the first); gives back its last argument before, as a processor does."""

    def __init__(self, at, error=Broken):
        self.left, self.error = at, error

    def __call__(self, *args):
        if self.left == 0:
            raise self.error("on purpose")
        self.left -= 1
        return args[-1]


class Recorder(BaseStreamer):
    """Notes each call; raises in its `fails_at`-th put."""

    def __init__(self, fails_at=None, error=Broken):
        self.puts, self.ends, self.late = [], 0, 0
        self.fails_at, self.error = fails_at, error

    def put(self, value):
        self.late += bool(self.ends)
        if len(self.puts) == self.fails_at:
            raise self.error("on purpose")
        self.puts.append(value)

    def end(self):
        self.ends += 1

    def shown(self):
        return [(tuple(x.shape), x.dtype, x.device.type, x.tolist()) for x in self.puts]


class RowRecorder:
    """The protocol of several rows: a log of (row, ids), (row, None) at a row's end, "end"."""

    def __init__(self, fails_at=None):
        self.log, self.fails_at = [], fails_at

    def put_row(self, row, ids):
        if len(self.log) == self.fails_at:
            raise Broken("on purpose")
        self.log.append((row, ids))

    def end_row(self, row):
        self.log.append((row, None))

    def end(self):
        self.log.append("end")

    def of(self, row):
        """What row `row` was given: its prompt, and its tokens."""
        puts = [entry[1].tolist() for entry in self.log if entry[0] == row and entry[1] is not None]
        return puts[0], [token for put in puts[1:] for token in put]


class Pieces(TextStreamer):
    """A TextStreamer that keeps what it would print."""

    def __init__(self, tokenizer, **options):
        super().__init__(tokenizer, **options)
        self.pieces, self.ends = [], 0

    def on_finalized_text(self, text, stream_end=False):
        self.pieces.append(text)
        self.ends += stream_end

    @property
    def text(self):
        return "".join(self.pieces)


@functools.cache
def byte_tokenizer():
    """Byte-level, 2048 ids: an emoji is four tokens, an accent two."""
    return AutoTokenizer.from_pretrained(PAIR / "target", local_files_only=True)


@functools.cache
def byte_pair():
    """A toy target and draft of that vocabulary. Leave them as they are."""
    target = tiny(vocab_size=BYTES, eos_token_id=0, num_hidden_layers=2)
    return target, noisy(target)


def says(*texts):
    """A `prefix_allowed_tokens_fn` that makes row b answer `texts[b]`, whatever its prompt, and then end (id 0).

    Rows are told apart by their batch id, so that each may be asked with padding or without.
    """
    starts = {}

    def allowed(row, sent):
        start = starts.setdefault(row, len(sent))
        done = len(sent) - start
        return [texts[row][done]] if done < len(texts[row]) else [0]

    return allowed


def half_right(prompts, answers):
    """A draft that knows what will be said and is wrong now and then: blocks of all lengths are accepted."""
    texts = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    return Scripted(texts, [[0, 3, 1, 5, 2, 4] * len(text) for text in texts], BYTES)


def consumed(iterator_streamer, call):
    """What an iterator streamer gives while `call` runs in a thread, and that call's errors. Fails if either hangs."""
    thread, errors = in_thread(call)
    pieces = list(iterator_streamer)  # raises queue.Empty after the streamer's timeout
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return pieces, errors


def in_thread(call):
    """`call` in a started thread, and the list its error will be in."""
    errors = []

    def work():
        torch.set_num_threads(1)
        try:
            call()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, errors
