"""When tokens are handed over: one definition for plain decoding, stock assisted decoding and ours."""

import pytest
import torch

from hf_specgen.measuring import timing
from hf_specgen.measuring.timing import Watch


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test may set."""
    now = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    return now


def ids(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.long)


def watched(clock, rows: int, hand_overs: list[tuple[float, int | None, torch.Tensor]]) -> Watch:
    """`hand_overs`: time, row (None: all together), ids."""
    watch = Watch(rows)
    for clock[0], row, value in hand_overs:
        watch.put(value) if row is None else watch.put_row(row, value)
    return watch


def test_plain_decoding_of_a_batch(clock):
    watch = watched(clock, 2, [(1, None, ids(2, 7)), (3, None, ids(2)), (4, None, ids(2)), (9, None, ids(2))])
    assert watch.first_token_seconds == 3 and watch.decode_seconds == 6 and watch.step_seconds == 3


def test_ours_hands_over_row_by_row(clock):
    """Decoding begins when every row has its first token."""
    prompts = [(1, 0, ids(7)), (1, 1, ids(4))]
    firsts = [(3, 0, ids(1)), (5, 1, ids(1))]
    watch = watched(clock, 2, [*prompts, *firsts, (6, 0, ids(1)), (6, 0, ids(1)), (8, 1, ids(1))])
    assert watch.first_token_seconds == 3 and watch.decode_seconds == 3


def test_stock_hands_over_several_at_first(clock):
    """Three tokens at 2, of which two belong to the decode phase: 4 more took 8 seconds, so that 6 take 12."""
    watch = watched(clock, 1, [(0, None, ids(1, 7)), (2, None, ids(3)), (6, None, ids(1)), (10, None, ids(3))])
    assert watch.first_token_seconds == 2 and watch.decode_seconds == 12


def test_what_never_came_is_not_timed(clock):
    prompt = (1, None, ids(1, 7))
    nothing, one = watched(clock, 1, [prompt]), watched(clock, 1, [prompt, (2, None, ids(1))])
    assert nothing.first_token_seconds is nothing.decode_seconds is nothing.step_seconds is None
    assert one.first_token_seconds > 0 and one.decode_seconds == 0.0 and one.step_seconds is None
