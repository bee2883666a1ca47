"""Sampled tokens: what is drawn, what is tested of it, and what is said of what would have been seen."""

import dataclasses

import pytest
import torch
from toys import noisy, text, toy_tokenizer
from verifying_toys import PROMPTS, pair, verified

import hf_specgen
from hf_specgen import SpecUnsupportedError
from hf_specgen.benchmarking.calls import Models, settings_of
from hf_specgen.stats import RowStats
from hf_specgen.verifying import contexts, drawing, law, table
from hf_specgen.verifying.certificate import FAULTY
from hf_specgen.verifying.reading import decode
from hf_specgen.verifying.table import Rounding
from hf_specgen.verifying.texts import call_of
from hf_specgen.verifying.ways import WAYS, Way

SPECULATE = drawing.speculate
ROWS = [text(5), text(8, 1)]
ALL = ("rejection", "block", "coupled")
EXACT = Rounding(1e-6, 1e-5)


@pytest.fixture(autouse=True)
def large_batches(monkeypatch):
    """Toys take as long for many rows as for few."""
    monkeypatch.setattr(drawing, "ROWS", 96)
    monkeypatch.setattr(table, "READ", 96)


@pytest.fixture
def models():
    models = Models(*pair("random"), toy_tokenizer())
    with torch.no_grad(), settings_of(models.target), settings_of(models.draft):
        yield models


def places(models, rows=ROWS, new=16):
    answers = [decode(models, call_of(models, [row], new)).taken for row in rows]
    pairs = enumerate(zip(rows, answers, strict=True))
    return answers, [c for i, (row, answer) in pairs for c in contexts.choose(models, i, row, answer, 1.0, 3, True)]


def checked(models, chosen, strategy="rejection", **options):
    settings = {"temperature": 1.0, "samples": 96, "k": 3, "rounding": EXACT}
    return law.check_law(models, chosen, strategy, **settings | options)


def test_p_values_are_uniform(models):
    """Tests of the same draws go together, so each part of the draws counts once."""
    drawn, _ = drawing.draw(models, places(models)[1], "rejection", 1.0, 1152, 3)
    p = []
    for part in range(36):
        found = law._tests(table.read(models, drawn[part::36], 1.0, EXACT, True), law.LEVEL, part)
        p.append(torch.tensor([test.p_value for test in found]))
    for statistic, wanted in ((lambda x: x, 0.5), (lambda x: (x < 0.1).float(), 0.1)):
        seen = torch.stack([statistic(x).mean() for x in p])
        assert seen.mean().item() == pytest.approx(wanted, abs=3.5 * seen.std().item() / len(seen) ** 0.5)


# -- what is drawn -----------------------------------------------------------------------------------------------------


def test_contexts_are_where_a_wrong_rule_would_move_most(models):
    answers, chosen = places(models)
    for row, answer, drafted, copying in zip(ROWS, answers, chosen[::2], chosen[1::2], strict=True):
        copies = contexts.copied(row, answer)
        moved, copied = [], []
        for at in range(len(answer)):
            ids = torch.tensor([[*row, *answer[:at]]])
            p, q = (model(ids).logits[0, -1].softmax(-1) for model in (models.target, models.draft))
            moved.append(((p - q).abs().sum() / 2 * p[q > p].sum()).item())
            copied.append(0.0 if copies[at] < 0 else (p[copies[at]] * (1 - p[copies[at]])).item())
        for context, figures, source in ((drafted, moved, "draft"), (copying, copied, "hybrid")):
            worth = [sum(figures[after + 1 : after + 4]) for after in range(len(answer) - 3)]
            assert worth[context.after] == pytest.approx(max(worth), rel=1e-4, abs=1e-9) and context.source == source
            assert context.ids == (*row, *answer[: context.after])


def test_what_lookup_would_copy():
    assert contexts.copied([1, 2, 3, 1], [2, 3, 9, 1]) == [-1, 3, 1, -1]  # one token that repeats is not enough


def test_an_answer_of_one_token_has_contexts(models):
    assert [c.after for c in contexts.choose(models, 0, ROWS[0], [5], 1.0, 3, True)] == [0, 0]


def test_all_ways_are_drawn_each_with_the_session_of_its_source(models, monkeypatch):
    calls = []

    def speculate(models, call, strategy, k, source, **options):
        settings = source, call.top_k, call.top_p, options["repetition_penalty"]
        calls.append((*settings, len(call.rows()), id(options["spec_session"])))
        return SPECULATE(models, call, strategy, k, source, **options)

    monkeypatch.setattr(drawing, "speculate", speculate)
    monkeypatch.setattr(drawing, "ROWS", 16)
    _, chosen = places(models)
    found = checked(models, chosen, samples=80)
    settings = [("draft", 0, 1.0, 1.0), ("hybrid", 0, 0.9, 1.2), ("draft", 8, 1.0, 1.0)]
    assert [tuple(vars(way).values()) for way in WAYS] == settings
    assert [call[:5] for call in calls] == [(*settings[i], 10) for i in (0, 1, 0, 2) * 2]
    draft, hybrid = (len({call[5] for call in calls if call[0] == source}) for source in ("draft", "hybrid"))
    assert draft == hybrid == 1 and len({call[5] for call in calls}) == 2
    assert {way.name for way in WAYS} < {test.group for test in found.tests}


@pytest.mark.parametrize("count", [3, 20])
def test_each_context_is_drawn_from_and_keeps_its_row_where_there_is_room(models, monkeypatch, count):
    """Twenty prompts are more than rows in a batch."""
    monkeypatch.setattr(drawing, "ROWS", 8)
    _, chosen = places(models, [text(4, seed) for seed in range(count)], new=6)
    found = checked(models, chosen, samples=80)
    assert len(found.draws) == 2 * count and sum(found.draws) == 80 and min(found.draws) >= 20 // count
    assert drawing.batches(80, 3) == [6] * 13 + [2] and drawing.batches(80, 20) == [7] * 11 + [3]


def test_too_few_samples_for_the_prompts_are_refused():
    with pytest.raises(ValueError, match="samples=11: draw at least 12, 4 for each prompt"):
        verified(samples=11, limit=3)


def test_equal_seeds_draw_equal_texts_and_others_do_not(models):
    _, chosen = places(models)
    drawn = [drawing.draw(models, chosen, "rejection", 1.0, 40, 3, seed)[0] for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    found = [(one.context.prompt, one.context.source) for one in drawn[0][8:12]]
    assert found == [(0, "draft"), (1, "draft"), (0, "hybrid"), (1, "hybrid")]


def test_which_tokens_were_drafted_and_which_is_a_bonus():
    row = RowStats(trace=[(0, 0), (3, 1), (2, 2), (1, 1)], sources=[None, "draft", "lookup", "draft"])
    found = drawing._continuation(0, None, [1, 2, 3, 4, 5, 6, 7, 8], row, None)
    assert found.modelled == (False, True, True, False, False, False, True, False)
    assert found.bonus == 5  # of the copied draft; the next one is another continuation's business
    assert drawing._continuation(0, None, [1, 2, 3, 4, 5], row, None).bonus is None  # an EOS came before


# -- what is tested ----------------------------------------------------------------------------------------------------


def test_continuations_are_read_as_one_text(models):
    texts = [(5, 9, 11), (5, 9), (8,)]
    found = table.continuations(models.target, ROWS[0], texts)
    assert found.shape == (3, 3, 64)
    for row, new in zip(found, texts, strict=True):
        wanted = models.target(torch.tensor([[*ROWS[0], *new]])).logits[0, len(ROWS[0]) - 1 : -1]
        torch.testing.assert_close(row[: len(new)], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_ways_law_is_that_of_plain_generate(models, way):
    ids = torch.tensor([ROWS[0]])
    options = {name: getattr(way, name) for name in ("top_k", "top_p", "repetition_penalty")}
    settings = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 4, "output_scores": True}
    torch.manual_seed(0)
    out = type(models.target).generate(
        models.target, ids, **options, **settings, return_dict_in_generate=True, eos_token_id=None
    )
    new = tuple(out.sequences[0, ids.shape[1] :].tolist())
    found, _ = table._law(models.target, ROWS[0], [new], way, 0.8, EXACT)
    torch.testing.assert_close(found, torch.stack(out.scores, 1).softmax(-1), rtol=1e-4, atol=1e-6)


def test_what_rounding_may_move_across_a_cut():
    scores = torch.tensor([3.0, 2.0, 1.95, 0.0]).log_softmax(-1)[None, None]
    p = scores.softmax(-1)[0, 0].double()
    top_k, top_p = Way("draft", top_k=2), Way("draft", top_p=float(p[:2].sum()) - 0.01)
    for way in (top_k, top_p):
        assert way.doubtful(scores, 1e-6, 0.01).item() == 0
        assert way.doubtful(scores, 1e-6, 0.1).item() == pytest.approx(float(p[1:3].sum() / p[:2].sum()), rel=1e-5)
    assert top_p.doubtful(scores, 0.05, 0.01).item() > 0.1  # the sum may not come up to top-p: one token more
    assert Way("draft").doubtful(scores, 1.0, 1.0).item() == 0


def test_what_wrong_rules_move():
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(20, 30, generator=generator).mul(2).softmax(-1) for _ in range(2))
    stays = torch.minimum(p, q)
    apart = 1 - stays.sum(-1, keepdim=True)
    above = p * (p > q)
    laws = (q, stays + apart * p, stays + apart * above / above.sum(-1, keepdim=True))
    found, sets = table.moves_of(p, q), table.sets_of(p, q)
    for name, wrong in zip(table.MOVED, laws, strict=True):
        _, members = law.SHOWN_BY[name]
        wanted = ((wrong - p) * sets[members]).sum(-1).abs()
        torch.testing.assert_close(found[name].float(), wanted, rtol=1e-4, atol=1e-6)


def test_a_row_that_ends_is_tested_up_to_its_eos(models, monkeypatch):
    _, chosen = places(models)
    likely = int(models.target(torch.tensor([chosen[0].ids])).logits[0, -1].argmax())
    monkeypatch.setattr(models.target.generation_config, "eos_token_id", likely)
    found = checked(models, chosen)
    counts = {test.group: test.draws for test in found.tests if test.set == "best"}
    assert counts["first"] == 96 and 0 < counts["drafted"] < 4 * 72
    assert found.passed


def test_a_text_that_ends_wrongly_is_a_fault(monkeypatch):
    def without_its_end(*arguments, **options):
        decoded = SPECULATE(*arguments, **options)
        if len(decoded.ids) > 1 and options["repetition_penalty"] > 1:
            decoded.ids[0], decoded.problems[0] = [], "it ends after 0 tokens"
        return decoded

    monkeypatch.setattr(drawing, "speculate", without_its_end)
    found = verified("random", samples=64, max_new_tokens=8)
    assert found.verdict == FAULTY and not found.laws[0].unlikely
    assert found.faults == ["rejection: 1 of 64 continuations: it ends after 0 tokens"]


def test_draws_without_drafts_verify_nothing(models, monkeypatch):
    _, chosen = places(models)
    monkeypatch.setattr(models.target.generation_config, "eos_token_id", list(range(64)))
    with pytest.raises(SpecUnsupportedError, match="With block at temperature 1 nothing was drafted"):
        checked(models, chosen, "block")


# -- what would have been seen -----------------------------------------------------------------------------------------


def test_more_samples_see_smaller_errors():
    few, many = (verified("close", samples=samples, max_new_tokens=10).laws[0] for samples in (64, 256))
    assert {*few.visible_shifts} == {"draft", "left", "best", "rare", "low", "seen"}
    for name in ("best", "low"):
        assert many.visible_shifts[name] == pytest.approx(few.visible_shifts[name] / 2, rel=0.2)


def test_which_wrong_rules_would_have_been_seen_is_said():
    close, far = (verified(draft, samples=192, max_new_tokens=10) for draft in ("close", "random"))
    assert not any(rule.would_show for rule in close.laws[0].wrong_rules)
    assert "would NOT have been seen: everything accepted" in str(close)
    shown = {rule.name: rule.would_show for rule in far.laws[0].wrong_rules}
    assert shown["everything accepted"] and not shown["p where it exceeds q for the residual"]
    assert "  would have been seen: everything accepted (" in str(far)
    assert close.laws[0].disagreement < 0.1 < far.laws[0].disagreement


def test_what_never_happened_is_said():
    target, _ = pair()
    found = hf_specgen.verify(target, noisy(target, 0), toy_tokenizer(), PROMPTS[:1], max_new_tokens=8, samples=32)
    assert found.laws[0].never[:1] == ["rejection"] and found.lossless
    assert "never happened, and is not tested: rejection" in str(found)
    assert dataclasses.replace(found.laws[0], rejections=1, copied=1).never == []


def test_rounding_counts_in_what_can_be_seen(models):
    _, chosen = places(models)
    exact, rounded = (checked(models, chosen, rounding=x) for x in (Rounding(0.0, 0.0), Rounding(0.05, 0.1)))
    for name in ("draft", "best", "low"):
        assert 0.001 < rounded.visible_shifts[name] - exact.visible_shifts[name] < 0.2
