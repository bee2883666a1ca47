"""lm-eval's Hugging Face model with speculation on: plain's answers, rows stopping at their own token."""

import copy
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lm_eval", reason="lm-eval is not installed (the extra 'evaluation')")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils_hf import stop_sequences_criteria
from toys import batch_of, noisy, plain, row_alone
from transformers import AutoTokenizer

import hf_specgen
from hf_specgen import demo

NEW = 24
ASKED = ["def close(self):\n", "class Reader(object):\n    ", "import os\n\n", "x = ", "    def __eq__(self, other):\n"]


@pytest.fixture(scope="module")
def pair():
    """The embedded draft as a quick target that writes lines of Python, and a noisy copy of it."""
    _, target, _ = demo.load()
    return target, noisy(target)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(demo.PAIR / "target", local_files_only=True)


@pytest.fixture(scope="module")
def example():
    path = Path(__file__).parent.parent / "examples" / "evaluation.py"
    spec = importlib.util.spec_from_file_location("evaluation_example", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def speculative(pair):
    def switch(strategy="rejection", k=4):
        hf_specgen.enable(pair[0], assistant_model=pair[1], spec_strategy=strategy, num_assistant_tokens=k)

    yield switch
    hf_specgen.disable(pair[0])


def asked_all(lm, **options):
    """`generate_until` of all prompts."""
    requests = [
        Instance("generate_until", {}, (asked, {"max_gen_toks": NEW, "do_sample": False} | options), i)
        for i, asked in enumerate(ASKED)
    ]
    return lm.generate_until(requests, disable_tqdm=True)


UNTIL = {
    "a line": ["\n"],
    "words": ["return", " self"],
    "several tokens": ["\n    return", '"""\n', "\n\n"],
    "none": [],
}


@pytest.mark.parametrize("until", UNTIL)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
@pytest.mark.parametrize("strategy, k", [("rejection", 5), ("block", 2)])
def test_answers_are_plains(pair, tokenizer, speculative, until, batch_size, strategy, k):
    """Five prompts: the last batch is smaller."""
    lm = HFLM(pretrained=pair[0], tokenizer=tokenizer, batch_size=batch_size)
    want = asked_all(lm, until=UNTIL[until])
    speculative(strategy, k)
    with hf_specgen.collect_stats() as stats:
        assert asked_all(lm, until=UNTIL[until]) == want
    assert stats.calls == -(-len(ASKED) // batch_size)
    assert stats.accepted > 0 or until == "a line"
    assert len({len(text) for text in want}) > 1


@pytest.mark.parametrize("name", ["code", "arithmetic", "copying"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_tasks_are_scored_as_plainly(pair, tokenizer, speculative, example, tmp_path, name, batch_size):
    task = example.task_of(name, tmp_path)
    want = example.answers(pair[0], tokenizer, copy.deepcopy(task), batch_size)
    speculative()
    with hf_specgen.collect_stats() as stats:
        got = example.answers(pair[0], tokenizer, copy.deepcopy(task), batch_size)
    assert got[:2] == want[:2] and len(got[0]) == len(example.TASKS[name][1])
    assert stats.calls == -(-len(got[0]) // batch_size)


def test_sampled_answers_repeat_with_the_seed(pair, tokenizer, speculative, example, tmp_path):
    speculative()
    runs = []
    for _ in range(2):
        with hf_specgen.collect_stats() as stats:
            runs.append(example.answers(pair[0], tokenizer, example.task_of("sampling", tmp_path), 2)[:2])
        assert stats.accepted > 0
    assert runs[0] == runs[1] and len(set(runs[0][0])) > 1


def test_likelihoods_of_an_enabled_model_are_untouched(pair, tokenizer, speculative):
    requests = [Instance("loglikelihood", {}, (asked, " self"), i) for i, asked in enumerate(ASKED)]
    lm = HFLM(pretrained=pair[0], tokenizer=tokenizer, batch_size=2)
    want = lm.loglikelihood(requests, disable_tqdm=True)
    speculative()
    assert lm.loglikelihood(requests, disable_tqdm=True) == want


# ---- lm-eval's criterion, which judges whole padded batches -------------------------------------------
def criteria(tokenizer, until, batch):
    rows, columns = batch["input_ids"].shape
    return stop_sequences_criteria(tokenizer, until, columns, rows)


@pytest.mark.parametrize("until", ["a line", "words", "several tokens"])
@pytest.mark.parametrize("k", [1, 5])
def test_each_row_stops_at_its_own_token(pair, tokenizer, speculative, until, k):
    """Plain decoding goes on until every row has been done; alone, a row stops where it should. Some prompts hold the
    stop string, and end with it: the criterion looks behind the columns of the padded prompts."""
    batch = batch_of([tokenizer.encode(asked) for asked in ASKED])
    options = {"max_new_tokens": NEW, "do_sample": False}
    want = []
    for b in range(len(ASKED)):
        row = row_alone(batch, b)
        out = plain(pair[0], **row, **options, stopping_criteria=criteria(tokenizer, UNTIL[until], row))
        want.append(out[0, row["input_ids"].shape[1] :].tolist())
    speculative(k=k)
    given = criteria(tokenizer, UNTIL[until], batch)
    with hf_specgen.collect_stats() as stats:
        got = pair[0].generate(**batch, **options, stopping_criteria=given)
    columns, width = batch["input_ids"].shape[1], max(map(len, want))
    assert got[:, columns:].tolist() == [row + [0] * (width - len(row)) for row in want]
    assert [row.emitted for row in stats.rows] == list(map(len, want)) and len(set(map(len, want))) > 1
    assert [c.done_tracker for c in given] == [[False] * len(ASKED)] * len(given), "the caller's own is not used"


def test_a_criterions_tokenizer_is_not_copied(pair, tokenizer, speculative):
    """A large one takes half a second and 30 MB, per row and stop string, in every call."""

    class Dear(type(tokenizer)):
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

    dear = copy.copy(tokenizer)
    dear.__class__ = Dear
    batch = batch_of([tokenizer.encode(asked) for asked in ASKED])
    speculative()
    given = criteria(dear, ["\n"], batch)
    got = pair[0].generate(**batch, max_new_tokens=NEW, do_sample=False, stopping_criteria=given)
    assert torch.is_tensor(got) and given[0].tokenizer is dear
