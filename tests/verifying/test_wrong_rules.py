"""Wrong rules are seen."""

import pytest
import torch
from verifying_toys import WRONG_LAWS, replaced_residual, verified

from hf_specgen.verifiers import block, rejection
from hf_specgen.verifying import drawing, law, table
from hf_specgen.verifying.certificate import FAULTY


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    """Toys take as long for many rows as for few."""
    monkeypatch.setattr(drawing, "ROWS", 128)
    monkeypatch.setattr(table, "READ", 128)


@pytest.mark.parametrize("strategy, place, name, rule, options", WRONG_LAWS)
def test_a_wrong_rule_is_a_fault(strategy, place, name, rule, options, monkeypatch):
    monkeypatch.setattr(place, name, rule)
    settings = {"draft": "noisy", "samples": 192, "max_new_tokens": 8, "limit": 1, "strategies": (strategy,)}
    found = verified(**settings | options)
    assert found.verdict == FAULTY and found.laws[0].p_value < law.LEVEL, str(found)
    assert found.faults[0].startswith(f"{strategy}: ")
    assert all(check.verdict == "same" for check in found.texts)  # greedy text knows no acceptance rule


def test_a_wrong_rule_is_a_fault_in_bfloat16(monkeypatch):
    for place in (rejection, block):
        monkeypatch.setattr(place, "final_draw", replaced_residual(lambda p, q: p))
    found = verified("contrary", torch.bfloat16, samples=384, max_new_tokens=8, strategies=("rejection", "block"))
    assert [law_.passed for law_ in found.laws] == [False, False], str(found)
