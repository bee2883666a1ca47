"""Drafts from the row's own text: as a search by hand finds them, at a cost that does not grow with the text."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EOS, batch_of, plain, prompts, row_alone, seeded, spec, text, tiny

from hf_specgen.drafters.base import LoneRow
from hf_specgen.drafters.lookup import OCCURRENCES, REACH, LookupDrafter, evidence
from hf_specgen.lengths.offer import Offer
from hf_specgen.processors import RowProcessors


def row_of(tokens: list[int], index: int = 0) -> LoneRow:
    return LoneRow(torch.tensor(tokens), tokens, 10_000, RowProcessors([]), index)


def drafted(drafter, *rows, widths=None) -> list[list[int]]:
    proposal = drafter.propose(list(rows), widths or [100] * len(rows), None, None)
    assert proposal.q is None and proposal.tokens.dtype == proposal.counts.dtype == torch.int64
    assert proposal.width == max(proposal.counts.tolist())
    return [ids[:count] for ids, count in zip(proposal.tokens.tolist(), proposal.counts.tolist(), strict=True)]


# -- against a search by hand ------------------------------------------------------------------------------------------


def agreement(tokens: list[int], place: int) -> int:
    """How many tokens before `place` are those at the end."""
    n = 0
    while n < min(place, REACH) and tokens[place - 1 - n] == tokens[-1 - n]:
        n += 1
    return n


def by_hand(tokens: list[int], most: int, ngram: int) -> tuple[list[int], int]:
    """The continuation and the length of its match."""
    for n in range(ngram, 0, -1):
        places = [p for p in range(n, len(tokens)) if tokens[p - n : p] == tokens[-n:]][-OCCURRENCES:]
        if places:
            best = max(places, key=lambda p: (agreement(tokens, p), p))
            copy = list(tokens)
            for i in range(most):
                copy.append(copy[best + i])
            return copy[len(tokens) :], agreement(tokens, best)
    return [], 0


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=120),
    st.lists(st.integers(1, 9), max_size=20),
    st.integers(1, 12),
    st.integers(1, 5),
)
def test_a_growing_text_is_continued_as_a_search_of_all_of_it_would(tokens, steps, most, ngram):
    drafter = LookupDrafter(most, ngram)
    first = max(1, len(tokens) - sum(steps))
    row = row_of(tokens[:first])
    ends = [first]
    for step in steps:
        ends.append(min(ends[-1] + step, len(tokens)))
    for end in ends:
        row.tokens.extend(tokens[len(row.tokens) : end])
        wanted, matched = by_hand(row.tokens, most, ngram)
        (offers,) = drafter.offers([row])
        assert offers == ([Offer("lookup", most, evidence(matched), costs=False)] if wanted else [])
        assert drafted(drafter, row) == [wanted]


@pytest.mark.parametrize("ngram", [1, 2, 3, 4])
def test_of_several_places_the_longest_match_wins_and_the_latest_of_equals(ngram):
    tokens = [1, 2, 3, 4, 50, 9, 2, 3, 4, 60, 1, 2, 3, 4, 70, 8, 3, 4, 80, 1, 2, 3, 4]
    assert drafted(LookupDrafter(1, ngram), row_of(tokens)) == [[70]]


def test_places_are_those_of_the_longest_n_gram_and_only_the_latest_few_are_compared():
    tokens = [5, 6, 7, 50] + [8, 7, 1] * OCCURRENCES + [5, 6, 7]
    assert drafted(LookupDrafter(1, 1), row_of(tokens)) == [[1]], "as many places of the 7 as are compared"
    assert drafted(LookupDrafter(1, 1), row_of(tokens[:4] + tokens[7:])) == [[50]], "one less"
    assert drafted(LookupDrafter(1, 2), row_of(tokens)) == [[50]]


def test_beyond_its_reach_a_longer_match_is_no_better():
    base = text(REACH + 9, vocab=1000)
    tokens = [*base, 1, *base[5:], 2, *base]
    assert drafted(LookupDrafter(1), row_of(tokens)) == [[2]]
    tokens = [*base, 1, *base[-REACH + 1 :], 2, *base]
    assert drafted(LookupDrafter(1), row_of(tokens)) == [[1]]


def test_a_match_that_reaches_the_end_goes_on_copying_itself():
    assert drafted(LookupDrafter(7), row_of([9, 1, 2, 1, 2])) == [[1, 2, 1, 2, 1, 2, 1]]
    assert drafted(LookupDrafter(3), row_of([4, 4])) == [[4, 4, 4]]


def test_a_draft_ends_with_an_eos_and_before_a_barred_id():
    row = row_of([1, 2, 3, 4, 5, 1])
    assert drafted(LookupDrafter(16, eos=[3]), row) == [[2, 3]]
    assert drafted(LookupDrafter(16, never=[4]), row) == [[2, 3]]
    assert drafted(LookupDrafter(16, eos=[4], never=[2]), row) == [[]]
    assert LookupDrafter(16, never=[2]).offers([row]) == [[]]


def test_evidence_grows_geometrically():
    firsts = [n for n in range(1, 100) if evidence(n) != evidence(n - 1)]
    assert firsts == [1, 2, 3, 4, 6, 9, 16]
    assert [evidence(n) for n in firsts] == [1, 2, 3, 4, 5, 6, 7] and evidence(0) == 0


@pytest.mark.parametrize(
    "most, ngram, named", [(0, 3, "prompt_lookup_num_tokens=0"), (4, 0, "max_matching_ngram_size")]
)
def test_a_size_below_1_is_refused(most, ngram, named):
    with pytest.raises(ValueError, match=named):
        LookupDrafter(most, ngram)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_each_row_gets_what_it_gets_alone_up_to_its_width():
    texts = [[1, 2, 3, 1], [1, 2, 3, 4], [5, 6, 5, 6, 5], [1, 2, 3, 1]]
    drafter = LookupDrafter(5)
    rows = [row_of(tokens, index) for index, tokens in enumerate(texts)]
    alone = [drafted(LookupDrafter(5), row_of(tokens))[0] for tokens in texts]
    assert alone == [[2, 3, 1, 2, 3], [], [6, 5, 6, 5, 6], [2, 3, 1, 2, 3]]
    assert [bool(offers) for offers in drafter.offers(rows)] == [True, False, True, True]
    assert drafted(drafter, *rows) == alone
    assert drafted(drafter, *rows, widths=[2, 5, 4, 0]) == [[2, 3], [], [6, 5, 6, 5], []]
    assert drafted(drafter, rows[3], rows[1]) == [alone[3], []], "row 0 and 2 have left"


def test_nothing_is_drafted_where_nothing_matches():
    rows = [row_of([1, 2, 3], 0), row_of([4], 1)]
    proposal = LookupDrafter().propose(rows, [4, 4], None, None)
    assert proposal.tokens.shape == (2, 0) and proposal.counts.tolist() == [0, 0]


def test_a_drafter_forgets_the_texts_of_the_last_call():
    drafter = LookupDrafter(3)
    assert drafted(drafter, row_of([1, 2, 3, 1])) == [[2, 3, 1]]
    assert drafted(drafter, row_of([9, 8, 7, 6, 1])) == [[]]
    assert drafted(drafter, row_of([5, 1])) == [[]]
    assert drafted(drafter, row_of([9, 8, 9])) == [[8, 9, 8]]


class Counting(list):
    """A text that counts how many of its tokens are looked at."""

    looked = 0

    def __getitem__(self, at):
        found = super().__getitem__(at)
        self.looked += len(found) if isinstance(at, slice) else 1
        return found


def test_a_round_costs_what_it_adds_not_the_length_of_the_text():
    costs = []
    for length in (500, 8000):
        row = row_of(Counting(text(length, vocab=1000)))
        drafter = LookupDrafter()
        drafter.offers([row])
        assert row.tokens.looked < 10 * length
        row.tokens.looked = 0
        for token in text(100, vocab=1000, seed=1):
            row.tokens.extend([token, token])
            drafter.offers([row])
        costs.append(row.tokens.looked)
    assert max(costs) < 100 * (6 * 2 + 3 * OCCURRENCES + 16)
    assert costs[1] < 2 * costs[0]


def test_stock_candidates_are_the_draft():
    ids = torch.tensor([[3, 1, 2, 3]])
    drafter = LookupDrafter(6)
    candidates, scores = drafter.get_candidates(ids)
    assert candidates.tolist() == [[3, 1, 2, 3, 1, 2, 3, 1, 2, 3]] and scores is None
    drafter.update_candidate_strategy(candidates[:, :6], None, 2)
    grown = torch.tensor([[3, 1, 2, 3, 1, 7]])
    assert drafter.get_candidates(grown)[0].tolist() == grown.tolist()


# -- in generate -------------------------------------------------------------------------------------------------------


def repetitive(seed: int, times: int) -> list[int]:
    return text(5, seed) * times + text(4, seed)


@pytest.fixture(scope="module")
def target():
    return tiny(eos_token_id=None, num_hidden_layers=2)


@pytest.fixture(scope="module")
def batch():
    return batch_of([repetitive(0, 2), text(7, 1), repetitive(2, 4)])


def test_greedy_ids_are_plains_in_a_ragged_batch(target, batch):
    out = spec(target, LookupDrafter(8), num_assistant_tokens=8, **batch, max_new_tokens=40)
    for b in range(3):
        alone = plain(target, **row_alone(batch, b), do_sample=False, max_new_tokens=40)
        assert out.sequences[b, -40:].tolist() == alone[0, -40:].tolist()
    stats = out.spec_stats
    assert stats.accepted > 0 and stats.draft_forwards == 0
    assert stats.accepted < stats.drafted and (0, 0) in stats.history[1:]


def test_rows_that_leave_early_and_calls_that_share_a_drafter():
    target, drafter, lengths = tiny(num_hidden_layers=2, vocab_size=8, eos_token_id=None), LookupDrafter(4), set()
    for eos in range(2, 8):
        asked = {"max_new_tokens": 20, "eos_token_id": eos}
        batch = prompts([9, 4, 6], seed=eos, vocab=8)
        out = spec(target, drafter, num_assistant_tokens=4, **batch, **asked)
        for b, length in enumerate([9, 4, 6]):
            alone = plain(target, **row_alone(batch, b), do_sample=False, **asked)[0, length:].tolist()
            emitted = out.spec_stats.rows[b].emitted
            assert out.sequences[b, 9 : 9 + emitted].tolist() == alone
            lengths.add((eos, emitted))
    assert len(lengths) > 8, "some rows of a batch are to end before others"


def test_a_coupled_text_is_the_one_without_a_draft(target, batch):
    asked = dict(strategy="coupled", **batch, max_new_tokens=40, temperature=0.3, top_k=0)
    out = spec(target, LookupDrafter(6), num_assistant_tokens=6, **asked, **seeded())
    without = spec(target, None, **asked, **seeded())
    assert out.sequences.tolist() == without.sequences.tolist()
    assert out.spec_stats.drafted > out.spec_stats.accepted > 0


def test_a_text_that_repeats_itself_is_accepted():
    """A model that always says the same token: all but the first draft is right."""
    target = tiny(eos_token_id=None, num_hidden_layers=1)
    with torch.no_grad():
        target.get_output_embeddings().weight.zero_()  # ties: the first id
    out = spec(target, LookupDrafter(8), num_assistant_tokens=8, **prompts([6]), max_new_tokens=60)
    assert out.spec_stats.acceptance_rate > 0.9 and out.spec_stats.tokens_per_target_forward > 5


def test_an_eos_in_the_text_ends_the_draft_not_the_row(target):
    row = [*text(5), EOS, *text(5, 1), *text(5)]
    drafter = LookupDrafter(8, eos=[EOS])
    assert drafter.offers([row_of(row)])[0][0].most == 1
    out = spec(target, drafter, num_assistant_tokens=8, **batch_of([row]), max_new_tokens=20)
    alone = plain(target, **batch_of([row]), do_sample=False, max_new_tokens=20)
    assert out.sequences.tolist() == alone.tolist()
