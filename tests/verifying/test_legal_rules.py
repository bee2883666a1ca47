"""Legal rules are not blamed, whatever the draft."""

import pytest
import torch
from verifying_toys import fresh_noise, one_hot, verified

from hf_specgen.verifiers.coupled import CoupledVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier
from hf_specgen.verifying import drawing, law, table

ALL = ("rejection", "block", "coupled")


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    """Toys take as long for many rows as for few."""
    monkeypatch.setattr(drawing, "ROWS", 96)
    monkeypatch.setattr(table, "READ", 96)


@pytest.mark.parametrize(
    "draft, dtype", [("contrary", torch.float32), ("three", torch.float32), ("random", torch.bfloat16)], ids=str
)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_draft_is_blamed(draft, dtype, seed):
    found = verified(draft, dtype, strategies=ALL, samples=96, max_new_tokens=6, seed=seed)
    assert [law_.strategy for law_ in found.laws] == [*ALL]
    assert found.lossless, str(found)
    assert all(law_.drafted and law_.rejections for law_ in found.laws)
    assert {law_.level for law_ in found.laws} == {law.LEVEL / 3}


@pytest.mark.parametrize(
    "strategy, verifier, rule", [("rejection", RejectionVerifier, one_hot), ("coupled", CoupledVerifier, fresh_noise)]
)
def test_another_legal_rule_is_not_blamed(strategy, verifier, rule, monkeypatch):
    monkeypatch.setattr(verifier, "accept", rule)
    found = verified("noisy", samples=192, max_new_tokens=10, strategies=(strategy,))
    assert found.lossless and found.laws[0].accepted < 0.5 * found.laws[0].drafted, str(found)
