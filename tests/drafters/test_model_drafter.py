"""The draft model's own cache: caught up with what was committed without it, rolled back with what was rejected."""

import inspect

import pytest
from toys import noisy, plain, prompts, row_alone, spec, tiny

from hf_specgen.lengths import SCHEDULES
from hf_specgen.lengths.constant import ConstantLength


@pytest.mark.parametrize("widths", [[3, 0, 0, 3], [0, 0, 0, 5], [1, 0, 4, 0, 2]], ids=str)
@pytest.mark.parametrize("lengths", [[7], [7, 3, 12]], ids=["one row", "ragged batch"])
def test_after_rounds_without_drafts_an_exact_copy_is_still_accepted_whole(monkeypatch, widths, lengths):
    class Scripted(ConstantLength):
        def __init__(self, initial):
            super().__init__(initial)
            self.rounds = {}

        def next(self, row):
            self.rounds[row] = self.rounds.get(row, -1) + 1
            return widths[(self.rounds[row] + row) % len(widths)]  # rows draft in different rounds

    monkeypatch.setitem(SCHEDULES, "constant", Scripted)
    target, batch = tiny(eos_token_id=None), prompts(lengths)
    out = spec(target, noisy(target, 0), **batch, max_new_tokens=30)
    for b, length in enumerate(lengths):
        want = plain(target, **row_alone(batch, b), do_sample=False, max_new_tokens=30)[0, length:].tolist()
        assert out.sequences[b, max(lengths) :].tolist() == want
    assert out.spec_stats.acceptance_rate == 1.0
    assert {0, max(widths)} <= {drafted for drafted, _ in out.spec_stats.history}


@pytest.mark.parametrize("lengths", [[7], [7, 3, 12]], ids=["one row", "ragged batch"])
def test_an_exact_copy_of_a_model_that_cannot_leave_logits_out_is_accepted_whole(lengths):
    """Its draft's catch-up reads two tokens and gets the logits of both: the last one counts."""
    target = tiny(eos_token_id=None)

    class Whole(type(target)):
        def forward(self, *args, logits_to_keep=None, **kwargs):
            assert logits_to_keep is None
            return super().forward(*args, **kwargs)

        known = inspect.signature(type(target).forward).parameters.items()
        forward.__signature__ = inspect.Signature([p for n, p in known if n not in ("logits_to_keep", "kwargs")])

    target.__class__ = Whole
    out = spec(target, noisy(target, 0), **prompts(lengths), max_new_tokens=30)
    assert out.spec_stats.acceptance_rate == 1.0
