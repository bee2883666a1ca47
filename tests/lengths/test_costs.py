"""What forwards cost: estimated from what they read, then measured."""

import random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from toys import tiny
from transformers import MixtralConfig

from hf_specgen.lengths.costs import KEPT, Costs, bytes_read, expected_step, position_costs


# ---- estimates -------------------------------------------------------------------------------------------------------
def test_a_forward_reads_all_weights_but_the_embedding():
    model = tiny(tie_word_embeddings=False)
    whole = sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])
    assert bytes_read(model) == whole - model.get_input_embeddings().weight.numel() * 4
    assert bytes_read(model.bfloat16()) < 0.51 * whole


def test_an_embedding_that_is_the_head_too_is_read():
    model = tiny(tie_word_embeddings=True)
    assert bytes_read(model) == sum(p.numel() * p.element_size() for p in [*model.parameters(), *model.buffers()])


def test_of_experts_those_that_are_asked_are_read():
    sizes = {"num_local_experts": 8, "tie_word_embeddings": False}
    one, two, all_ = (bytes_read(tiny(MixtralConfig, num_experts_per_tok=n, **sizes)) for n in (1, 2, 8))
    experts = sum(p.numel() * 4 for n, p in tiny(MixtralConfig, **sizes).named_parameters() if ".experts." in n)
    assert two - one == pytest.approx(experts / 8, abs=8) and all_ - one == pytest.approx(experts * 7 / 8, abs=8)


def test_estimates_look_at_no_clock_and_at_no_values(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: pytest.fail("a clock was looked at"))
    assert expected_step(tiny(seed=1)) == expected_step(tiny(seed=2))
    assert expected_step(tiny(num_hidden_layers=1)) < expected_step(tiny()) < expected_step(tiny(num_hidden_layers=9))
    assert expected_step(tiny(hidden_size=64)) > expected_step(tiny())


def test_a_model_without_an_output_layer_or_layers_has_an_estimate():
    class Odd(torch.nn.Module):
        device = torch.device("cpu")

        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(4, 4)
            self.config = tiny().config

        def get_input_embeddings(self):
            return None

        get_output_embeddings = get_input_embeddings

    assert bytes_read(Odd()) == 20 * 4 and expected_step(Odd()) > 0


# ---- measurements ----------------------------------------------------------------------------------------------------
def test_nothing_measured_costs_what_is_estimated():
    costs = Costs(2.0, 0.5, 0.1)
    assert costs.target(1, 1) == 2.0 and costs.target(1, 6) == pytest.approx(3.0)
    assert costs.target(3, 2) == pytest.approx(costs.target(1, 6)), "positions cost alike"
    assert costs.draft(1) == 0.5 and costs.draft(3) == pytest.approx(0.6)
    assert not costs.knows(1, 1)


def test_one_measurement_tells_of_all_the_others():
    costs = Costs(2.0, 0.5, 0.1)
    costs.observe_target(1, 1, 20.0)
    assert costs.knows(1, 1) and not costs.knows(1, 2)
    assert costs.target(1, 1) == pytest.approx(20.0)
    assert costs.target(1, 6) == pytest.approx(30.0)
    assert costs.draft(1) == pytest.approx(5.0), "what the target shows of the machine holds for the draft too"
    costs.observe_draft(1, 7.0, 1, 20.0)
    assert costs.draft(1) == pytest.approx(7.0) and costs.draft(3) == pytest.approx(8.4)


def test_a_draft_of_unknown_size_counts_as_a_tenth():
    assert Costs(3.0, None, 0.1).draft(1) == pytest.approx(0.3)


@settings(max_examples=60, deadline=None)
@example(1.0, 0.5, 1, [1, 6])  # far dearer than expected, and never twice in a row
@given(st.floats(0.2, 5.0), st.floats(0.0, 0.5), st.sampled_from([1, 2, 8]), st.lists(st.integers(1, 16), min_size=1))
def test_a_machine_that_costs_by_the_position_is_learned(level, slope, rows, widths):
    """Told otherwise at first. Where one width was seen only, its own cost is right; where several, those between."""
    costs = Costs(1.0, 0.1, 0.05)

    def truth(width):
        return level * (1 + slope * (rows * width - 1))

    for width in widths * 20:
        costs.observe_target(rows, width, truth(width))
    for width in widths:
        assert costs.target(rows, width) == pytest.approx(truth(width), rel=0.15)
    if max(widths) - min(widths) > 4:
        middle = (max(widths) + min(widths)) // 2
        assert costs.target(rows, middle) == pytest.approx(truth(middle), rel=0.2)


def test_a_machine_that_works_in_steps_is_learned_where_it_was_seen():
    costs = Costs(1.0, 0.1, 0.05)
    for width in (1, 4, 5, 8) * KEPT:
        costs.observe_target(1, width, 1.0 if width <= 4 else 2.0)
    assert costs.target(1, 4) < 1.25 and costs.target(1, 5) > 1.75


def test_a_second_position_may_cost_more_than_the_others():
    costs = Costs(2.0, 0.5, 0.1, second=0.5)
    assert costs.target(1, 1) == 2.0 and costs.target(1, 2) == pytest.approx(3.3)
    assert costs.target(1, 6) == costs.target(3, 2) == pytest.approx(4.5)
    for _ in range(KEPT):
        costs.observe_target(1, 1, 20.0)
    assert costs.target(1, 6) == pytest.approx(45.0), "told of a machine, the shape stays"
    for _ in range(5 * KEPT):
        for width in range(1, 7):
            costs.observe_target(1, width, 20.0)
    assert all(costs.target(1, width) == pytest.approx(20.0, rel=0.1) for width in range(1, 7)), "until it is seen"


@pytest.mark.parametrize(
    "dtype, expected", [(torch.bfloat16, (0.06, 0.0)), (torch.float32, (0.02, 0.3)), (torch.float16, (0.9, 0.0))]
)
def test_what_positions_cost_a_cpu_depends_on_the_dtype(dtype, expected):
    assert position_costs(tiny().to(dtype)) == expected


def test_a_median_bears_what_is_disturbed_now_and_then():
    dice, costs = random.Random(3), Costs(1.0, 0.1, 0.05)
    for _ in range(100):
        costs.observe_target(1, 1, 1.0 if dice.random() < 0.8 else 30.0)
        costs.observe_draft(1, 0.1 if dice.random() < 0.8 else 5.0, 1, 1.0)
    assert costs.target(1, 1) < 1.5 and costs.draft(1) < 0.2


def test_a_disturbance_of_a_whole_round_does_not_count_against_the_draft():
    """The draft is measured by the target of its round."""
    costs = Costs(1.0, 0.5, 0.05)
    for slow in (1.0, 1.0, 8.0):
        costs.observe_target(1, 1, slow)
        costs.observe_draft(1, 0.1 * slow, 1, slow)
    assert costs.draft(1) / costs.target(1, 1) == pytest.approx(0.1, rel=0.5)


def test_what_is_old_is_forgotten():
    costs = Costs(1.0, 0.1, 0.05)
    for seconds in (1.0, 3.0):
        for _ in range(KEPT):
            costs.observe_target(2, 1, seconds)
            costs.observe_draft(2, seconds / 10, 1, seconds)
    assert costs.target(2, 1) == pytest.approx(3.0, rel=0.1) and costs.draft(2) == pytest.approx(0.3)


def test_the_nearest_number_of_rows_speaks_for_those_not_seen():
    costs = Costs(1.0, 0.1, 0.1)
    for _ in range(3):
        costs.observe_target(1, 1, 1.0)
        costs.observe_target(8, 1, 17.0)
    assert costs.target(7, 1) > 8 > costs.target(2, 1)


def test_more_positions_never_cost_less():
    costs = Costs(1.0, 0.1, 0.05)
    costs.observe_target(1, 1, 5.0)
    costs.observe_target(1, 9, 0.5)
    costs.observe_target(1, 9, 0.5)
    assert costs.position(1) >= 0 and costs.target(1, 1) > 0


def test_what_is_written_is_believed_however_far_from_the_estimate_it_is():
    """It is no disturbance: a draft thought cheap that is as slow as its target, a target of another speed."""
    costs = Costs(1.0, 0.95, 0.05)
    for width in (1, 5) * KEPT:
        costs.observe_target(1, width, 40.0 + width)
        costs.observe_draft(1, 38.0, width, 40.0 + width)
    again = Costs(1.0, 0.05, 0.05)
    again.take(costs.to_dict())
    assert again.draft(1) / again.target(1, 1) == pytest.approx(0.93, abs=0.1)
    assert again.target(1, 5) == pytest.approx(45.0, rel=0.1)


def test_what_is_written_is_taken_again():
    costs = Costs(1.0, 0.1, 0.05)
    for rows, width, seconds in ((1, 1, 2.0), (1, 5, 2.5), (4, 3, 3.0), (1, 1, 2.2)):
        costs.observe_target(rows, width, seconds)
        costs.observe_draft(rows, seconds / 9, width, seconds)
    again = Costs(1.0, 0.1, 0.05)
    again.take(costs.to_dict())
    assert again.to_dict() == costs.to_dict()
    for rows in (1, 4):
        assert again.draft(rows) == pytest.approx(costs.draft(rows), rel=0.1)
        for width in range(1, 9):
            assert again.target(rows, width) == pytest.approx(costs.target(rows, width), rel=0.1)
