"""Scores that no token can be drawn from: an error that says which, as soon as the text comes to them, not before."""

import contextlib

import pytest
import torch
from toys import Scripted, noisy, plain, prompts, row_alone, spec, tiny

from hf_specgen import SpecNumericsError

NEW = 12
STRATEGIES = ["rejection", "block", "coupled"]
INFINITY = float("inf")
ASKED = []  # whether each text that a processor was shown is another than the one that comes


@pytest.fixture(scope="module")
def target():
    return tiny(eos_token_id=None, num_hidden_layers=2)


@pytest.fixture(scope="module")
def batch():
    return prompts([7, 4])


@contextlib.contextmanager
def infinite(model, after: int = 0, row: int = 0):
    """The logits of a token are infinite in a row, from a forward on."""
    forwards = []

    def spoil(module, args, output):
        forwards.append(1)
        if len(forwards) > after and len(output.logits) > row:
            output.logits[row, :, 9] = INFINITY

    handle = model.register_forward_hook(spoil)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("row, after", [(0, 0), (1, 0), (1, 2)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_infinite_logits_where_tokens_are_drawn(target, batch, strategy, row, after):
    said = rf"target returned infinite logits for row {row} at position \d+.*float16.*remove_invalid_values"
    with infinite(target, after, row), pytest.raises(SpecNumericsError, match=said):
        spec(target, noisy(target), strategy, **batch, max_new_tokens=NEW, do_sample=True, num_assistant_tokens=2)


@pytest.mark.parametrize("draft", [0, 0.1], ids=["copy", "noisy"])
def test_greedy_takes_an_infinite_logit_as_plain_does(target, batch, draft):
    draft = noisy(target, draft)
    with infinite(target):
        want = plain(target, **row_alone(batch, 0), do_sample=False, max_new_tokens=NEW).tolist()
        got = spec(target, draft, **row_alone(batch, 0), max_new_tokens=NEW).sequences.tolist()
    assert got == want and want[0][-1] == 9


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_infinite_logits_of_a_draft_that_draws(target, batch, strategy):
    """Rounding would make a law of them that bends the target's."""
    draft = noisy(target)
    said = r"draft returned infinite logits for row 0 .*float16"
    with infinite(draft, 1), pytest.raises(SpecNumericsError, match=said):
        spec(target, draft, strategy, **batch, max_new_tokens=NEW, do_sample=True)
    with infinite(draft, 1):
        got = spec(target, draft, **row_alone(batch, 0), max_new_tokens=NEW)
    assert got.sequences.tolist() == plain(target, **row_alone(batch, 0), do_sample=False, max_new_tokens=NEW).tolist()


def masks(said):
    """A processor that leaves nothing behind a text for which `said(text)` holds."""

    def mask(input_ids, scores):
        return torch.full_like(scores, -INFINITY) if said(input_ids[0].tolist()) else scores

    return [mask]


@pytest.mark.parametrize("after", [0, 1, 4])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_step_without_a_token(target, batch, strategy, after):
    options = {"max_new_tokens": NEW, "logits_processor": masks(lambda text: len(text) >= 7 + after)}
    row = row_alone(batch, 0)
    for draft in (noisy(target, 0), noisy(target, 0.1)):
        with pytest.raises(SpecNumericsError, match=rf"No token is left to draw for row 0 at position {7 + after}: "):
            spec(target, draft, strategy, **row, **options, do_sample=True)
        got = spec(target, draft, **row, **options).sequences
        assert got.tolist() == plain(target, **row, **options, do_sample=False).tolist()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_masked_step_that_the_text_does_not_come_to(target, batch, strategy):
    """Behind drafted tokens that are as good as impossible; and behind a stop."""
    row = row_alone(batch, 0)
    text = plain(target, **row, do_sample=False, max_new_tokens=NEW)[0].tolist()
    ASKED.clear()

    def strays(ids):
        ASKED.append(ids != text[: len(ids)])
        return ASKED[-1]

    drafter = Scripted([text], [[2, 0, 1, 3]])
    sampled = {"do_sample": True, "temperature": 1e-3, "top_k": 0, "max_new_tokens": NEW}
    got = spec(target, drafter, strategy, **row, **sampled, logits_processor=masks(strays), num_assistant_tokens=4)
    assert got.sequences[0].tolist() == text and any(ASKED)

    stop = next(i for i in range(2, NEW) if text[7 + i] not in text[7 : 7 + i])
    options = sampled | {"stopping_criteria": [lambda ids, scores, **_: bool(ids[0, -1] == text[7 + stop])]}
    late = masks(lambda ids: len(ids) > 7 + stop)
    options |= {"logits_processor": late, "num_assistant_tokens": 9}
    got = spec(target, Scripted([text], [[]]), strategy, **row, **options)
    assert got.sequences[0].tolist() == text[: 7 + stop + 1] and got.spec_stats.trimmed > 0
