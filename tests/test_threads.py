"""Threads on the same models: each call gives its serial result, whatever its neighbours do or suffer.

Four threads with fifty calls each, of all kinds; calls held in their middle while others run; calls cancelled in their
middle. The interpreter switches threads far more often than usual.
"""

import copy
import functools
import random
import sys
import threading

import pytest
import torch
from stream_toys import PATIENCE, Broken, FailsAt, Recorder, RowRecorder, in_thread
from test_side_effects import state
from toys import EOS, noisy, plain, prompts, row_alone, tiny, toy_tokenizer
from transformers import Qwen2Config, StoppingCriteria, T5Config, T5ForConditionalGeneration

import hf_specgen

THREADS, CALLS, NEW = 4, 50, 9
SLIDING = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}


class Models:
    """Everything the threads share. `defaults` has the draft in its `enable`; `draft` serves three targets."""

    def __init__(self):
        self.target, self.other = tiny(), tiny(Qwen2Config, seed=1, **SLIDING)
        self.draft, self.second = noisy(self.target), tiny(num_hidden_layers=1, seed=5)
        self.defaults = copy.deepcopy(self.target)
        sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        torch.manual_seed(0)
        config = T5Config(vocab_size=64, pad_token_id=0, eos_token_id=EOS, decoder_start_token_id=2, **sizes)
        self.seq2seq = T5ForConditionalGeneration(config).eval()
        with torch.no_grad():
            for p in self.seq2seq.parameters():
                p.mul_(4 if p.dim() >= 2 else 1)
        self.seq2seq_draft = noisy(self.seq2seq)
        self.tokenizer = toy_tokenizer()
        for model in (self.target, self.other, self.seq2seq):
            hf_specgen.enable(model)
        hf_specgen.enable(self.defaults, assistant_model=self.draft, spec_strategy="block", num_assistant_tokens=3)

    @property
    def all(self):
        return [v for v in vars(self).values() if isinstance(v, torch.nn.Module)]


@pytest.fixture(scope="module")
def models():
    return Models()


@pytest.fixture(autouse=True)
def often_switching():
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture(autouse=True)
def unchanged(models):
    before = [state(model) for model in models.all]
    yield
    for was, model in zip(before, models.all, strict=True):
        now = state(model)
        for what in was:
            assert now[what] == was[what], (type(model).__name__, what)


# ---- the calls ----------------------------------------------------------------------------------------
class Counts(StoppingCriteria):
    """Ends a row after `left` tokens. Keeps state, so that rows and threads must not share it."""

    def __init__(self, left):
        self.left = left

    def __call__(self, input_ids, scores, **kwargs):
        self.left -= 1
        return torch.full((len(input_ids),), self.left <= 0)


class Pushes:
    """A processor with state: favours another token at each call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        scores = scores.clone()
        scores[:, 5 + self.calls % 7] += 20
        return scores


def batch(i):
    return prompts([3 + i % 7, 9, 2 + i % 5], seed=i) if i % 2 else prompts([3 + i % 7], seed=i)


def seeded(i):
    return {"do_sample": True, "top_k": 0, "temperature": 2.0, "generator": torch.Generator().manual_seed(i)}


def found(out):
    """What is compared: ids, and how every row came to them."""
    return out.sequences.tolist(), [row.trace for row in out.spec_stats.rows]


def run(model, draft, i, strategy=("rejection", "block", "coupled"), inputs=None, **options):
    strategy = strategy if isinstance(strategy, str) else strategy[i % len(strategy)]
    call = {"assistant_model": draft, "spec_strategy": strategy, "num_assistant_tokens": 1 + i % 6, "do_sample": False}
    call |= {"max_new_tokens": NEW - i % 3, "return_dict_in_generate": True} | options
    return found(model.generate(**(inputs or batch(i)), **call))


def conversation(m, i):
    """Three turns, each with the answer to the last one, in a session of its own."""
    session, inputs, turns = hf_specgen.SpecSession(), batch(i), []
    for turn in range(3):
        turns.append(run(m.target, m.draft, i, inputs=inputs, spec_session=session, eos_token_id=None))
        ids = torch.tensor(turns[-1][0])
        ids = torch.cat([ids, prompts([2] * len(ids), seed=i + turn)["input_ids"]], 1)
        mask = torch.ones_like(ids)
        mask[:, : inputs["attention_mask"].shape[1]] = inputs["attention_mask"]
        inputs = {"input_ids": ids, "attention_mask": mask}
    return turns


def streamed(m, i):
    ours = RowRecorder()
    got = run(m.target, m.draft, i, streamer=ours)
    return got, [(row, None if ids is None else ids.tolist()) for row, ids in ours.log[:-1]], ours.log[-1]


def counted(m, i):
    """Statistics are of the thread's own calls."""
    with hf_specgen.collect_stats() as stats:
        got = [run(m.target, m.draft, i + n) for n in range(2)]
    return got, stats.calls, stats.emitted, stats.accepted


def seed_per_row(m, i):
    generators = [torch.Generator().manual_seed(i + n) for n in range(2)]
    return run(m.target, m.draft, i, inputs=prompts([4, 6], seed=i), **seeded(i) | {"generator": generators})


def without(model, i, **options):
    """A call that says nothing of speculation."""
    return model.generate(**batch(i), **{"max_new_tokens": NEW, "do_sample": False} | options).tolist()


PENALTIES = {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "assistant_confidence_threshold": 0.3}
KINDS = {
    "greedy": lambda m, i: run(m.target, m.draft, i),
    "sampled": lambda m, i: run(m.target, m.draft, i, **seeded(i)),
    "a seed per row": seed_per_row,
    "coupled without a draft": lambda m, i: run(m.target, None, i, "coupled", **seeded(i)),
    "another draft": lambda m, i: run(m.target, m.second, i, num_assistant_tokens_schedule="heuristic"),
    "another target": lambda m, i: run(m.other, m.draft, i, **seeded(i) if i % 3 else {}),
    "penalty and threshold": lambda m, i: run(m.other, m.second, i, **PENALTIES),
    "state of its own": lambda m, i: run(
        m.target, m.draft, i, logits_processor=[Pushes()], stopping_criteria=[Counts(3 + i % 5)], **seeded(i)
    ),
    "stop strings": lambda m, i: run(m.target, m.draft, i, stop_strings=["a", "ing"], tokenizer=m.tokenizer),
    "defaults": lambda m, i: without(m.defaults, i),
    "defaults, sampled": lambda m, i: without(m.defaults, i, **seeded(i)),
    "defaults off": lambda m, i: without(m.defaults, i, spec_strategy=None),
    "plain": lambda m, i: without(m.target, i),
    "plain, other": lambda m, i: without(m.other, i, num_beams=2),
    "plain draft": lambda m, i: without(m.draft, i),
    "encoder-decoder": lambda m, i: run(m.seq2seq, m.seq2seq_draft, i, **seeded(i) if i % 3 else {}),
    "plain encoder-decoder": lambda m, i: without(m.seq2seq, i),
    "session": conversation,
    "stream": streamed,
    "statistics": counted,
}


def job(models, number):
    """Call number so and so: every kind in turn, each time with other prompts, lengths and seeds."""
    kinds = list(KINDS.values())
    return kinds[number % len(kinds)](models, number)


@functools.cache
def serial(models, number):
    """Its result with no other thread at work."""
    return job(models, number)


def together(*workers):
    """Each of the functions in a thread of its own, started at one moment; the errors of each."""
    start = threading.Barrier(len(workers))

    def wait_and(work):
        start.wait(PATIENCE)
        work()

    running = [in_thread(functools.partial(wait_and, work)) for work in workers]
    for thread, _ in running:
        thread.join(120)
        assert not thread.is_alive()
    return [errors for _, errors in running]


def test_four_threads_with_fifty_calls_each_get_their_serial_results(models):
    want = [serial(models, n) for n in range(THREADS * CALLS)]
    assert sum(accepted for n in (0, 1, 4) for row in want[n][1] for _, accepted in row) > 5
    results = {}
    order = list(range(THREADS * CALLS))
    random.Random(0).shuffle(order)

    def work(mine):
        for n in mine:
            results[n] = job(models, n)

    errors = together(*(functools.partial(work, order[t::THREADS]) for t in range(THREADS)))
    assert errors == [[]] * THREADS
    assert [n for n, x in enumerate(want) if results[n] != x] == []


def test_enabling_and_disabling_meanwhile_changes_nothing(models):
    """`enable()` for all models, and another model's own, go on and off while calls run."""
    numbers = range(len(KINDS))
    want = [serial(models, n) for n in numbers]
    results, over = [], threading.Event()

    def work():
        try:
            results.extend(job(models, n) for n in numbers)
        finally:
            over.set()

    def toggle():
        spare = tiny()
        while not over.is_set():
            hf_specgen.enable()
            hf_specgen.enable(spare, assistant_model=models.draft, spec_strategy="rejection", num_assistant_tokens=2)
            spare.generate(**prompts([4]), max_new_tokens=3, do_sample=False)
            hf_specgen.disable(spare)
            hf_specgen.disable()

    try:
        assert together(work, toggle) == [[], []]
    finally:
        hf_specgen.disable()
    assert results == want


# ---- calls held in their middle -----------------------------------------------------------------------
class Gate:
    """Holds the thread of a call at its `at`-th passing until it is opened."""

    def __init__(self, at):
        self.left, self.reached, self.opened = at, threading.Event(), threading.Event()
        self.thread = None

    def __call__(self, *args):
        if threading.current_thread() is self.thread:
            self.left -= 1
            if self.left == 0:
                self.reached.set()
                assert self.opened.wait(3 * PATIENCE)
        return args[-1] if args else None

    def __deepcopy__(self, memo):
        return self


@pytest.mark.parametrize("where", ["stream", "processor", "criterion", "target", "draft"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_call_held_in_its_middle_goes_on_as_if_nothing_had_been(models, where, rows):
    """While it stands still, every kind of call runs from beginning to end on the same models."""
    numbers = range(len(KINDS))
    wanted = [serial(models, n) for n in numbers]
    inputs = prompts([5]) if rows == 1 else prompts([5, 8, 3])
    options = {"max_new_tokens": 14, "eos_token_id": None, "do_sample": False}
    want = plain(models.target, **inputs, **options).tolist()
    gate, hook = Gate(4), None
    if where == "stream":
        options["streamer"] = RowRecorder()
        options["streamer"].put_row = lambda row, ids: gate(ids)
    elif where == "processor":
        options["logits_processor"] = [lambda ids, scores: gate(scores)]
    elif where == "criterion":
        options["stopping_criteria"] = [lambda ids, scores, **_: gate(torch.zeros(len(ids), dtype=torch.bool))]
    else:
        layer = getattr(models, where).model.layers[0]
        hook = layer.register_forward_pre_hook(lambda *_: gate() and None)
        gate.left = 3
    results = []

    def call():
        gate.thread = threading.current_thread()
        options.update(assistant_model=models.draft, spec_strategy="rejection", num_assistant_tokens=5)
        results.append(models.target.generate(**inputs, **options).tolist())

    try:
        thread, errors = in_thread(call)
        assert gate.reached.wait(PATIENCE)
        assert [job(models, n) for n in numbers] == wanted
        assert results == []
        gate.opened.set()
        thread.join(PATIENCE)
    finally:
        gate.opened.set()
        if hook is not None:
            hook.remove()
    assert not errors and results == [want]


# ---- calls cancelled in their middle ------------------------------------------------------------------
def cancelled(models, how, i):
    """A call that ends in an error of its own thread's, in its middle."""
    options = {"eos_token_id": None, "max_new_tokens": 14, "inputs": row_alone(batch(i), 0)}
    if how == "stream":
        options["streamer"] = Recorder(fails_at=4)
    elif how == "interrupt in a stream":
        options["streamer"] = Recorder(fails_at=6, error=KeyboardInterrupt)
    elif how == "criterion":
        fails = FailsAt(5)
        options["stopping_criteria"] = [lambda ids, scores, **_: fails(torch.tensor([False]))]
    elif how == "session":
        options |= {"spec_session": hf_specgen.SpecSession(), "streamer": Recorder(fails_at=5)}
    with pytest.raises((Broken, KeyboardInterrupt)):
        run(models.target, models.draft, i, **options)


@pytest.mark.parametrize("how", ["stream", "interrupt in a stream", "criterion", "session", "interrupt in a forward"])
def test_cancelled_calls_leave_other_threads_and_the_models_alone(models, how):
    numbers = range(24)
    want = [serial(models, n) for n in numbers]
    results, me, forwards = {}, [], iter(range(10**6))

    def interrupt(*_):
        if threading.current_thread() in me and next(forwards) % 7 == 6:
            raise KeyboardInterrupt

    def cancel():
        me.append(threading.current_thread())
        for i in range(10):
            cancelled(models, how, i)

    def work(mine):
        for n in mine:
            results[n] = job(models, n)

    hook = models.draft.register_forward_pre_hook(interrupt) if how.endswith("forward") else None
    try:
        errors = together(cancel, *(functools.partial(work, numbers[t::3]) for t in range(3)))
    finally:
        if hook is not None:
            hook.remove()
    assert errors == [[]] * 4
    assert [results[n] for n in numbers] == want
    want = plain(models.target, **prompts([6]), max_new_tokens=NEW, do_sample=False).tolist()
    assert run(models.target, models.draft, 0, inputs=prompts([6]), max_new_tokens=NEW)[0] == want
