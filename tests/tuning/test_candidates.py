"""What is tried, given what a survey has told."""

import pytest

from hf_specgen.lengths import Knowledge
from hf_specgen.lengths.acceptance import Acceptance, Count
from hf_specgen.tuning.candidates import best_constants, constants, kept_ids, sources, vocabulary_sizes


def known(acceptance: float, draft: float, slope: float = 0.0, rows: int = 1) -> Knowledge:
    """Of a target whose step takes a second with so many rows."""
    found = Acceptance()
    found.classes["draft", 0] = Count(1e6 * acceptance, 1e6)
    target = [[rows, width, 1 + slope * (width - 1)] for width in range(1, 10)]
    return Knowledge({"target": target, "draft": [[rows, draft]]}, found)


def expected(acceptance: float, draft: float, k: int) -> float:
    return (1 - acceptance ** (k + 1)) / (1 - acceptance) / (1 + k * draft)


@pytest.mark.parametrize("acceptance, draft", [(0.8, 0.1), (0.6, 0.05), (0.9, 0.3), (0.5, 0.25)])
def test_the_best_constants_are_those_of_the_formula(acceptance, draft):
    ranked = sorted(range(1, 9), key=lambda k: -expected(acceptance, draft, k))
    assert best_constants(known(acceptance, draft)) == ranked[:2]


def test_constants_that_cannot_pay_are_not_run():
    assert best_constants(known(0.3, 0.9)) == []
    assert best_constants(known(0.8, 0.1, slope=1.0)) == []
    assert best_constants(Knowledge({"target": [[1, 1, 1.0]], "draft": []})) == []
    assert [one.name for one in constants(known(0.5, 0.25), set(), [1])] == ["draft, K=1", "draft, K=2"]


def test_constants_are_those_of_the_rows_that_are_decoded_together():
    knowledge, costs = known(0.8, 0.1), known(0.8, 0.1, slope=0.3, rows=8).costs
    knowledge.costs = {name: table + costs[name] for name, table in knowledge.costs.items()}
    alone, together = best_constants(knowledge, 1), best_constants(knowledge, 8)
    assert max(together) < min(alone)
    names = [one.name for one in constants(knowledge, set(), [1, 8, 64])]
    assert names == [f"draft, K={k}" for k in sorted(alone + together)]


def test_sources():
    knowledge = known(0.8, 0.1)
    names = [one.name for one in sources(True, knowledge, set())]
    assert names == ["hybrid", "draft", "lookup"]
    (lookup,) = sources(False, knowledge, set())
    assert lookup.config.spec_source == "lookup" and not lookup.drafts and lookup.config.knowledge is knowledge


def test_a_variation_changes_what_it_says():
    (best, *_) = sources(True, known(0.8, 0.1), set())
    block = best.but("block", spec_strategy="block")
    assert (block.name, block.config.spec_strategy, best.config.spec_strategy) == (
        "hybrid, block",
        "block",
        "rejection",
    )
    assert block != best and block.config.spec_source == "hybrid"


@pytest.mark.parametrize(
    "tokens, sizes", [(151936, [32768, 16384]), (65536, [32768, 16384]), (49152, [16384]), (32000, []), (0, [])]
)
def test_vocabularies_leave_out_at_least_half(tokens, sizes):
    assert vocabulary_sizes(tokens) == sizes


def test_kept_ids_are_the_first_and_those_that_were_written():
    assert kept_ids(4, {2, 9, 7, 50}, 50) == [0, 1, 2, 3, 7, 9]
