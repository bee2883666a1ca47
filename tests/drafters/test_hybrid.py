"""Two sources: each where it is better, counted apart, and the model untouched as long as it is not asked."""

import pytest
import torch
from cheap_toys import deep, early_exit, repeating, told_cheap
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import distance, law_of
from toys import VOCAB, assert_as_alone, noisy, plain, prompts, reading, row_alone, spec, tiny

from hf_specgen import Drafter, Proposal, SpecSession
from hf_specgen.drafters import HybridDrafter, LookupDrafter
from hf_specgen.drafters.base import LoneRow
from hf_specgen.drafters.hybrid import joined
from hf_specgen.drafters.lookup import OCCURRENCES
from hf_specgen.lengths import Choice, Length
from hf_specgen.lengths.base import NOTHING
from hf_specgen.processors import RowProcessors
from hf_specgen.stats import Clock
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

HYBRID = {"num_assistant_tokens": 4, "spec_source": "hybrid"}
NEW = 30


@pytest.fixture(scope="module")
def target():
    return deep(8)


@pytest.fixture(scope="module")
def draft(target):
    return early_exit(target)


def says(*scripts):
    """The target says row b's script, whatever it would have said: `prefix_allowed_tokens_fn`, and the prompts."""
    prompt = 12

    def allowed(row, ids):
        return [scripts[row][min(len(ids), len(scripts[row]) - 1)]]

    ids = torch.tensor([script[:prompt] for script in scripts])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "prefix_allowed_tokens_fn": allowed}


# ---- each where it is better -----------------------------------------------------------------------------------------
def novel(length: int) -> list[int]:
    """No token of it stood there before."""
    return torch.randperm(VOCAB - 4, generator=torch.Generator().manual_seed(3)).add(2)[:length].tolist()


REPEATS = [3, 14, 15, 9, 26, 5] * 9
ROWS = {"repetitive": REPEATS, "novel": novel(12 + NEW)}


@pytest.mark.parametrize("do_sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("names", [["repetitive"], ["novel"], ["repetitive", "novel"]], ids=" and ".join)
def test_lookup_on_repetitive_texts_and_the_draft_on_others(target, draft, monkeypatch, names, do_sample):
    told_cheap(monkeypatch, draft)
    monkeypatch.setattr(Clock, "last", lambda self, *laps: 0.1 if laps == ("draft",) else 1.0)
    scripts = [ROWS[name] for name in names]
    out = spec(target, draft, **says(*scripts), max_new_tokens=NEW, num_assistant_tokens=None, do_sample=do_sample)
    for name, script, row, ids in zip(names, scripts, out.spec_stats.rows, out.sequences.tolist(), strict=True):
        assert ids == script[: 12 + NEW]
        source = {"repetitive": "lookup", "novel": "draft"}[name]
        others = len(names) > 1 and not do_sample and name == "repetitive"  # the model runs for its neighbour anyway
        assert (row if others else row.by_source[source]).accepted > NEW / 2
        assert name == "repetitive" or "lookup" not in row.by_source


@pytest.mark.parametrize("schedule", ["constant", "heuristic", "target-rate"])
def test_rules_with_one_number_take_a_match_of_two_before_the_model(target, draft, schedule):
    asked = {"num_assistant_tokens": 4, "num_assistant_tokens_schedule": schedule, "spec_source": "hybrid"}
    rows = spec(target, draft, **says(*ROWS.values()), max_new_tokens=NEW, **asked).spec_stats.rows
    assert rows[0].by_source.keys() == {"lookup"} and rows[1].by_source.keys() == {"draft"}
    assert rows[0].acceptance_rate == 1.0


# ---- the model rests as long as it is not asked ----------------------------------------------------------------------
@pytest.mark.parametrize("settings_", [HYBRID, {"num_assistant_tokens": None}], ids=["constant", "goodput"])
def test_a_draft_that_is_never_asked_reads_nothing(target, draft, settings_):
    with reading(draft) as shapes:
        stats = spec(target, draft, **says(REPEATS), max_new_tokens=NEW, do_sample=True, **settings_).spec_stats
    assert shapes == [] and stats.draft_forwards == stats.drafting_forwards == 0
    assert stats.by_source["lookup"].accepted > NEW / 2 and stats.tokens_per_target_forward > 2


def test_it_reads_the_text_when_it_is_first_asked(target, draft):
    """A repetition, then something new: the prompt is read in the middle of the text, at once."""
    script = [*REPEATS[:30], *novel(40)]
    with reading(draft) as shapes:
        stats = spec(target, draft, **says(script), max_new_tokens=NEW, **HYBRID).spec_stats
    sources = [source for source in stats.rows[0].sources if source]
    first = sources.index("draft")
    assert first > 1 and set(sources[:first]) == {"lookup"}
    assert shapes[0][1] > 12 + 4 * first and all(width <= 5 for _, width in shapes[1:])


# ---- and is right when it is asked again -----------------------------------------------------------------------------
class InTurn(Length):
    """The model in every third round of a row, a match wherever there is one in others. Rows differ."""

    def __init__(self, width: int = 4):
        self.width, self.rounds = width, {}

    def choose(self, rows, offers):
        return [self._choice(row.index, found) if found else NOTHING for row, found in zip(rows, offers, strict=True)]

    def _choice(self, index, offers):
        self.rounds[index] = self.rounds.get(index, index) + 1
        wanted = [offer for offer in offers if offer.costs == (self.rounds[index] % 3 == 0)]
        return Choice(wanted[0], min(self.width, wanted[0].most)) if wanted else NOTHING

    def learn(self, rounds, seconds):
        pass


@pytest.mark.parametrize("lengths", [[9], [9, 3, 14]], ids=["alone", "ragged"])
@pytest.mark.parametrize("vocab", [8, VOCAB])
def test_an_exact_copy_is_accepted_whole_after_rounds_of_lookup(lengths, vocab):
    target = tiny(vocab_size=vocab, eos_token_id=None)
    batch = prompts(lengths, vocab=vocab)
    out = spec(target, noisy(target, 0), **batch, max_new_tokens=40, num_assistant_tokens_schedule=InTurn())
    found = out.spec_stats.by_source
    assert found["draft"].acceptance_rate == 1.0 and found["draft"].rounds >= 3 * len(lengths)
    assert found["lookup"].accepted < found["lookup"].drafted, "some were wrong, and had to be rolled back"
    assert_as_alone(target, out, batch, 40)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_an_exact_copy_is_accepted_when_sampled_too(strategy):
    target, batch = tiny(vocab_size=8, eos_token_id=None), prompts([9, 3, 14], vocab=8)
    sampled = {"do_sample": True, "top_k": 0, "temperature": 0.8, "generator": torch.Generator().manual_seed(4)}
    sampled |= {"num_assistant_tokens_schedule": InTurn()}
    found = spec(target, noisy(target, 0), strategy, **batch, max_new_tokens=60, **sampled).spec_stats.by_source
    assert found["draft"].acceptance_rate > 0.98 > 0.9 > found["lookup"].acceptance_rate  # rounding of p / q


def test_a_session_keeps_the_drafts_cache_through_rounds_of_lookup(target, draft):
    session, rows = SpecSession(), prompts([9])
    for turn in range(3):
        with reading(draft) as shapes:
            out = spec(
                target, draft, **rows, max_new_tokens=20, spec_session=session, num_assistant_tokens_schedule=InTurn()
            )
        assert out.sequences.tolist() == plain(target, **rows, max_new_tokens=20, do_sample=False).tolist()
        assert (shapes[0][1] <= 12) or turn == 0, "what it has read before is not read again"
        ids = torch.cat([out.sequences, prompts([2], seed=turn)["input_ids"]], 1)
        rows = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_leave_and_the_others_keep_their_texts(target, draft, side):
    batch = repeating([5, 20, 12, 7], side)
    for rule in (InTurn(), "constant"):
        asked = {"num_assistant_tokens_schedule": rule, "spec_source": "hybrid", "eos_token_id": list(range(0, 64, 9))}
        out = spec(target, draft, **batch, max_new_tokens=24, **asked)
        assert_as_alone(target, out, batch, 24, eos_token_id=list(range(0, 64, 9)))
        assert len({row.emitted for row in out.spec_stats.rows}) > 1


# ---- what is counted -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("rule", [InTurn(3), "goodput", "constant"], ids=["in turn", "goodput", "constant"])
def test_the_sources_add_up(target, draft, rule, do_sample):
    batch = repeating([9, 20, 14])
    asked = {"num_assistant_tokens_schedule": rule, "spec_source": "hybrid", "do_sample": do_sample}
    out = spec(target, draft, **batch, max_new_tokens=NEW, **asked)
    for figures in (out.spec_stats, *out.spec_stats.rows):
        parts = figures.by_source.values()
        assert figures.drafted == sum(part.drafted for part in parts)
        assert figures.accepted == sum(part.accepted for part in parts)
        assert sum(part.rounds for part in parts) == sum(drafted > 0 for drafted, _ in figures.history)
        assert figures.emitted == figures.accepted + figures.rounds - figures.trimmed
        assert len(figures.origins) == len(figures.history)
        for (drafted, _), source in zip(figures.history, figures.origins, strict=True):
            assert (source is None) == (drafted == 0)
    for source, part in out.spec_stats.by_source.items():
        rows = [row.by_source[source] for row in out.spec_stats.rows if source in row.by_source]
        assert (part.rounds, part.drafted) == (sum(x.rounds for x in rows), sum(x.drafted for x in rows))
        assert f"from {source}" in str(out.spec_stats)


def test_forwards_of_the_draft_are_counted_for_the_rows_that_asked(target, draft):
    stats = spec(target, draft, **says(*ROWS.values()), max_new_tokens=NEW, **HYBRID).spec_stats
    assert stats.rows[0].draft_forwards == 0 < stats.rows[1].draft_forwards == stats.drafting_forwards


# ---- one proposal of two ---------------------------------------------------------------------------------------------
class Tabled(Drafter):
    """Draws from a table, whatever the text."""

    def __init__(self, q):
        self.q = q

    def propose(self, rows, widths, verifier, noise):
        width = max(widths)
        tokens = self.q[:, :width].argmax(-1)
        return Proposal(tokens, torch.tensor(widths), self.q[:, :width])


def row_of(tokens, index):
    return LoneRow(torch.tensor(tokens), tokens, 1000, RowProcessors([]), index)


def test_q_of_what_was_looked_up_is_one_hot_and_of_what_was_drawn_the_drafts():
    q = torch.rand(3, 4, 9, generator=torch.Generator().manual_seed(0)).softmax(-1)
    rows = [row_of([1, 2, 3, 1, 2], 0), row_of([4, 5, 6], 1), row_of([7, 8, 7], 2)]
    drafter = HybridDrafter(Tabled(q), LookupDrafter(5))
    offers = drafter.offers(rows)
    assert [[offer.source for offer in found] for found in offers] == [
        ["lookup", "draft"],
        ["draft"],
        ["lookup", "draft"],
    ]
    drafter.choose([offers[0][0], offers[1][0], offers[2][1]])
    proposal = drafter.propose(rows, [3, 2, 4], None, None)
    assert proposal.counts.tolist() == [3, 2, 4]
    assert proposal.tokens[0, :3].tolist() == [3, 1, 2]
    assert torch.equal(proposal.q[0, :3], torch.eye(9)[[3, 1, 2]])
    for b, count in ((1, 2), (2, 4)):
        assert torch.equal(proposal.q[b, :count], q[b, :count])
        assert torch.equal(proposal.tokens[b, :count], q[b, :count].argmax(-1))
    drafter.choose([offers[0][0], None, offers[2][0]])
    alone = drafter.propose(rows, [2, 0, 1], None, None)
    assert alone.q is None and alone.counts.tolist() == [2, 0, 1] and not drafter.asked


def proposals(seed: int, counts: list[int], drawn: bool):
    """A proposal of random tokens, some slots of padding."""
    generator = torch.Generator().manual_seed(seed)
    width = max(counts)
    tokens = torch.randint(5, (len(counts), width), generator=generator)
    q = torch.rand(len(counts), width, 5, generator=generator).softmax(-1) if drawn and width else None
    return Proposal(tokens, torch.tensor(counts), q)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4)), min_size=1, max_size=4), st.booleans(), st.integers(0, 9))
def test_no_row_is_touched_by_the_other_source(rows, drawn, seed):
    drafted = proposals(seed, [n if model else 0 for model, n in rows], drawn)
    found = proposals(seed + 50, [0 if model else n for model, n in rows], False)
    whole = joined(drafted, found)
    assert whole.counts.tolist() == [n for _, n in rows]
    assert whole.q is None or whole.q.shape == (*whole.tokens.shape, 5)
    for b, (model, n) in enumerate(rows):
        part = drafted if model else found
        assert whole.tokens[b, :n].tolist() == part.tokens[b, :n].tolist()
        if whole.q is not None and n:
            assert torch.equal(whole.q[b, :n], drafted.q[b, :n] if model else torch.eye(5)[found.tokens[b, :n]])


@pytest.mark.parametrize("verifier", [RejectionVerifier(), BlockVerifier()], ids=lambda rule: rule.name)
def test_a_verifier_judges_one_hot_q_as_it_judges_tokens_that_were_chosen(verifier):
    """Of equal tokens: so that it is of no consequence whether a row is looked up beside rows that are drafted."""
    chosen = proposals(3, [3, 2, 1], False)
    scores = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    certain = Proposal(chosen.tokens, chosen.counts, torch.eye(5).double()[chosen.tokens])
    laws = [law_of(verifier, proposal, scores) for proposal in (chosen, certain)]
    assert distance(laws[0].kept, laws[1].kept) < 1e-9 and distance(laws[0].next, laws[1].next) < 1e-9


# ---- ends of things --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("new", [1, 2, 3])
def test_no_more_is_looked_up_than_is_left(target, draft, new):
    out = spec(target, draft, **says(REPEATS), max_new_tokens=new, **HYBRID)
    assert out.sequences[0].tolist() == REPEATS[: 12 + new]
    assert out.spec_stats.drafted <= max(0, new - 2)


def test_beyond_the_drafts_context_lookup_goes_on(target):
    """The draft has 20 positions: from there on it is told, and the matches are still used."""
    short = tiny(num_hidden_layers=1, max_position_embeddings=20, eos_token_id=None)
    with pytest.warns(UserWarning, match="beyond the draft's context"):
        stats = spec(target, short, **says(REPEATS), max_new_tokens=NEW, **HYBRID).spec_stats
    assert stats.by_source["lookup"].accepted > NEW / 2 and "beyond the draft's context" in stats.fallback_reason


def test_prompt_lookup_with_a_draft_is_hybrid_and_without_one_is_lookup(target, draft):
    asked = says(*ROWS.values()) | {"max_new_tokens": NEW, "prompt_lookup_num_tokens": 3, "num_assistant_tokens": 4}
    both = spec(target, draft, **asked).spec_stats
    assert both.rows[0].by_source.keys() == {"lookup"} and both.rows[1].by_source.keys() == {"draft"}
    assert max(drafted for drafted, _ in both.rows[0].trace) == 3
    alone = spec(target, None, **asked).spec_stats
    assert alone.rows[0].by_source.keys() == {"lookup"} and alone.rows[1].drafted == 0 == alone.draft_forwards


def test_the_size_of_the_n_gram_is_what_was_asked_for(target):
    """A 5 and a 6 stood there once; a 6, as often lately as is compared."""
    start = [5, 6, 20, *[9, 6, 30] * OCCURRENCES, 5, 6]
    script = [*start, 20, 40, 41]
    found = {}
    for size in (1, 2):
        out = spec(
            target,
            None,
            input_ids=torch.tensor([start[:-1]]),
            attention_mask=torch.ones(1, len(start) - 1, dtype=torch.long),
            prefix_allowed_tokens_fn=lambda row, ids: [script[len(ids)]],
            max_new_tokens=3,
            spec_source="lookup",
            num_assistant_tokens=1,
            max_matching_ngram_size=size,
        )
        found[size] = out.spec_stats.rows[0].trace[1]
    assert found == {1: (1, 0), 2: (1, 1)}


def test_a_row_alone_takes_the_sources_that_it_takes_in_a_batch(target, draft):
    batch = repeating([14, 20, 9])
    together = spec(target, draft, **batch, max_new_tokens=NEW, **HYBRID)
    for b in range(3):
        alone = spec(target, draft, **row_alone(batch, b), max_new_tokens=NEW, **HYBRID)
        assert alone.spec_stats.rows[0].trace == together.spec_stats.rows[b].trace
        assert alone.spec_stats.rows[0].sources == together.spec_stats.rows[b].sources
