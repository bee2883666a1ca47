"""Rounds of every width: what they tell of costs and acceptance."""

import copy

import pytest
from toys import noisy, prompts, spec, tiny

from hf_specgen.lengths import Knowledge
from hf_specgen.lengths.acceptance import MEMORY, Acceptance, Count
from hf_specgen.lengths.base import NOTHING, Choice, Round, Seconds
from hf_specgen.lengths.offer import Offer
from hf_specgen.tuning.survey import WIDTHS, Survey, knowledge_of, pooled, with_draft_costs


def test_every_width_has_its_turn_from_call_to_call():
    target = tiny(eos_token_id=None)
    survey = Survey()
    for seed in (0, 1):
        spec(
            target,
            noisy(target),
            **prompts([6], seed),
            max_new_tokens=40,
            num_assistant_tokens_schedule=survey,
            spec_source="draft",
        )
    calls = [call for call in survey.calls if call.target]
    assert len(calls) == 2
    found = knowledge_of(calls)
    assert {width for _, width, _ in found.costs["target"]} == {width + 1 for width in WIDTHS}
    assert all(seconds > 0 for *_, seconds in found.costs["target"]) and found.costs["draft"][0][1] > 0
    accepted = found.acceptance.classes["draft", 0]
    assert 0 < accepted.hits < accepted.trials <= MEMORY
    assert Knowledge.from_dict(found.to_dict()).to_dict() == found.to_dict()


def test_text_and_model_take_turns_where_both_can_draft():
    survey, row = copy.deepcopy(Survey()), type("Row", (), {"index": 0})()
    both = [Offer("lookup", 3, 2, costs=False), Offer("draft", 9)]
    chosen = [survey.choose([row], [both])[0] for _ in WIDTHS]
    assert [c.offer and c.offer.source for c in chosen] == [
        source if width else None for source, width in zip(["lookup", "draft"] * 5, WIDTHS, strict=False)
    ]
    assert [c.width for c in chosen[:3]] == [3, 0, 2]  # a match gives no more than it has
    assert survey.choose([row], [[]]) == [NOTHING]


def test_rows_draft_alike_for_they_share_a_forward():
    survey, rows = copy.deepcopy(Survey()), [type("Row", (), {"index": i})() for i in range(3)]
    both = [Offer("lookup", 9, 2, costs=False), Offer("draft", 9)]
    for width in WIDTHS:
        chosen = survey.choose(rows, [both, both[1:], both])
        assert [c.width for c in chosen] == [width] * 3 and (not width or chosen[0] == chosen[2])


def seen(seconds: float, accepted: int) -> Survey:
    survey = Survey()
    survey.tops = {0: [0.5] * 4}
    survey.learn([Round(0, Choice(Offer("draft", 9), 4), 4, accepted)], Seconds(1, 5, seconds, 2 * seconds, 4))
    return survey


def test_calls_count_alike_and_costs_are_medians():
    found = knowledge_of([seen(1.0, 0), seen(2.0, 4), seen(9.0, 4)])
    assert found.costs == {"target": [[1, 5, 2.0]], "draft": [[1, 1.0]]}
    assert (found.acceptance.classes["draft", 0].hits, found.acceptance.classes["draft", 0].trials) == (8, 9)
    assert (found.acceptance.places["draft", 0, 0].hits, found.acceptance.places["draft", 0, 3].hits) == (2, 2)
    cheaper = with_draft_costs(found, [seen(0.5, 1)])
    assert cheaper.costs == {"target": [[1, 5, 2.0]], "draft": [[1, 0.25]]}
    assert cheaper.acceptance is found.acceptance


def test_what_was_seen_first_counts_as_much_as_the_last():
    parts = [Acceptance(), Acceptance()]
    for part, hits in zip(parts, (48, 0), strict=True):
        part.classes["draft", 0] = Count(hits, 48)
    together = pooled(parts).classes["draft", 0]
    assert together.trials == MEMORY and together.hits == pytest.approx(MEMORY / 2)
