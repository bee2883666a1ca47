"""Lossless by name: the law of what a verifier emits is the target's, by enumeration and through generate().

Exact part: tiny vocabularies, all drafts enumerated and all uniforms integrated (laws.py), so there is no sampling
noise and the bound is float64's. End to end: tiny models, the empirical law of the first three tokens of thousands of
rows against plain decoding's own processed scores. Each check has a wrong rule beside it that it must reject.
"""

import copy
import dataclasses
import itertools
from unittest import mock

import pytest
import torch
from laws import (
    batch_of,
    check_thresholds,
    chi_square,
    distance,
    emitted_law,
    every_draft,
    law_of,
    prefixes,
    product_law,
)
from toys import plain, prompts, spec, tiny
from transformers import GenerationConfig

import hf_specgen
from hf_specgen import Proposal, Verdict, noise
from hf_specgen.noise import ACCEPT, DRAFT, NEXT, Noise
from hf_specgen.verifiers import base, block, rejection
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.coupled import CoupledVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

EXACT = 1e-9
CLEAR = 0.01  # a wrong rule must be off by at least this total variation
RULES = [RejectionVerifier(), BlockVerifier()]


def by_name(verifier):
    return verifier.name


# -- tables: p and q as functions of the prefix ------------------------------------------------------------------------


def table(seed: int, vocabulary: int, support=None, spread: float = 1.5):
    """A random law per prefix, on `support(prefix)` (None: everywhere)."""

    def law(prefix):
        generator = torch.Generator().manual_seed(hash((seed, prefix)) % 2**60)
        scores = spread * torch.randn(vocabulary, generator=generator, dtype=torch.float64)
        if support is not None:
            scores[[x not in support(prefix) for x in range(vocabulary)]] = -torch.inf
        return scores.softmax(-1)

    return law


def one_hot(seed: int, vocabulary: int):
    return table(seed, vocabulary, support=lambda prefix: {hash((seed, prefix)) % vocabulary})


def never(prefix, drawn):
    return False


def pairs(vocabulary: int):
    """(name, p, q)."""
    p = table(1, vocabulary)
    half = vocabulary // 2
    return {
        "random": (p, table(2, vocabulary)),
        "equal": (p, p),
        "disjoint": (
            table(3, vocabulary, lambda prefix: set(range(half))),
            table(4, vocabulary, lambda prefix: set(range(half, vocabulary))),
        ),
        "zeros in both": (
            table(5, vocabulary, lambda prefix: {len(prefix) % vocabulary, 1, 0}),
            table(6, vocabulary, lambda prefix: {len(prefix) % vocabulary, 2, 1}),
        ),
        "one-hot q": (p, one_hot(7, vocabulary)),
        "one-hot p": (one_hot(8, vocabulary), table(9, vocabulary)),
        "peaked": (table(10, vocabulary, spread=30.0), table(11, vocabulary, spread=30.0)),
    }


def law(verifier, p, q, k, length, stops=never, dtype=torch.float64):
    return emitted_law(verifier, p, lambda prefix: every_draft(q, prefix, k, stops), q, k, length, dtype)


def argmax_draft(q):
    """A greedy draft: the tokens are chosen, with probability one."""

    def drafts(prefix, k):
        drawn = ()
        for _ in range(k):
            drawn += (q(prefix + drawn).argmax().item(),)
        return drawn

    return drafts


def greedy_law(verifier, p, q, k, length, accounted):
    from laws import Drawn

    draft = argmax_draft(q)
    return emitted_law(verifier, p, lambda prefix: [Drawn(prefix, draft(prefix, k), 1.0)], accounted, k, length)


# -- exact laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", pairs(3))
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_joint_law_of_three_tokens_is_the_targets(verifier, k, pair):
    p, q = pairs(3)[pair]
    assert distance(law(verifier, p, q, k, length=3), product_law(p, 3)) < EXACT


@pytest.mark.parametrize("pair", pairs(4))
@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_joint_law_over_four_tokens_of_vocabulary(verifier, pair):
    p, q = pairs(4)[pair]
    assert distance(law(verifier, p, q, k=3, length=2), product_law(p, 2)) < EXACT


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_joint_law_in_float32_is_the_targets_to_rounding(verifier):
    p, q = pairs(3)["random"]
    assert distance(law(verifier, p, q, k=3, length=3, dtype=torch.float32), product_law(p, 3)) < 1e-6


EARLY_STOPS = {
    "after a drawn token": lambda prefix, drawn: drawn[-1:] == (1,),  # as at an EOS: the token itself is submitted
    "where the draft is unsure": lambda prefix, drawn: table(2, 3)(prefix + drawn).max().item() < 0.6,
    "at once for some prefixes": lambda prefix, drawn: sum(prefix + drawn) % 3 == 1,
}


@pytest.mark.parametrize("stop", EARLY_STOPS)
@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_stopping_early_on_what_was_drawn_keeps_the_law(verifier, stop):
    p, q = pairs(3)["random"]
    counts = {len(d.tokens) for prefix in prefixes(3, 3) for d in every_draft(q, prefix, 3, EARLY_STOPS[stop])}
    assert len(counts) > 1  # the drafts do differ in length
    assert distance(law(verifier, p, q, 3, 3, EARLY_STOPS[stop]), product_law(p, 3)) < EXACT


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
@pytest.mark.parametrize("k", [1, 3])
def test_greedy_draft_counted_as_one_hot_keeps_the_law(verifier, k):
    p, q = pairs(3)["random"]
    assert distance(greedy_law(verifier, p, q, k, 3, accounted=None), product_law(p, 3)) < EXACT


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_drafted_token_of_zero_probability_under_q_is_handled(verifier):
    """Third-party drafters hand over tokens their q gives no mass: where p has mass they stay, elsewhere they go."""
    proposal = Proposal(
        torch.tensor([[0], [0]]), torch.tensor([1, 1]), torch.tensor([[[0.0, 1.0]], [[0.0, 1.0]]]).double()
    )
    p = torch.tensor([[[0.5, 0.5]] * 2, [[0.0, 1.0]] * 2]).double()
    found = law_of(verifier, proposal, p.log())
    assert found.kept.tolist() == [[0, 1], [1, 0]]
    assert found.next[1, 0].tolist() == [0, 1]


@pytest.mark.parametrize("value", [-torch.inf, torch.inf, torch.nan], ids=["masked", "infinite", "NaN"])
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_a_place_without_a_law_is_come_to_as_often_as_it_should(verifier, k, value):
    """Behind the token 1 nothing can be drawn: that is an error, after as many texts as in plain decoding. And behind
    the token 2, which cannot come: no text is led there."""
    p, q = table(1, 4, support=lambda prefix: {0, 1, 3}), table(2, 4)
    drafts = every_draft(q, (), k, never)
    proposal, scores = batch_of(drafts, p, q, k)
    for b, draft in enumerate(drafts):
        for i in range(1, k + 1):
            if {1, 2} & set(draft.tokens[:i]):
                scores[b, i] = value
    found, first = law_of(verifier, proposal, scores), torch.zeros(4, dtype=torch.float64)
    for draft, kept, follows in zip(drafts, found.kept, found.next, strict=True):
        first[draft.tokens[0]] += draft.probability * kept[1:].sum()
        first += draft.probability * kept[0] * follows[0]
    assert distance(first, p(())) < EXACT


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_the_thresholds_found_are_how_accept_decides(verifier):
    for p, q in pairs(3).values():
        drafts = [d for prefix in prefixes(3, 2) for d in every_draft(q, prefix, 3, EARLY_STOPS["after a drawn token"])]
        assert check_thresholds(verifier, *batch_of(drafts, p, q, 3)) >= 160


# -- the same checks refuse wrong rules --------------------------------------------------------------------------------


def residual_from_p(proposal, p, kept, scale, noise_):
    return noise.invert(base.at(p, kept), noise_.uniform(NEXT, 0))


def residual_without_scale(proposal, p, kept, scale, noise_):
    return base.final_draw(proposal, p, kept, torch.ones_like(scale), noise_)


def bonus_from_the_last_drafted_slot(proposal, p, kept, scale, noise_):
    return base.final_draw(proposal, p, kept.clamp(max=proposal.width - 1), scale, noise_)


@pytest.mark.parametrize(
    "module, verifier, wrong",
    [
        (rejection, RejectionVerifier(), residual_from_p),
        (block, BlockVerifier(), residual_from_p),
        (block, BlockVerifier(), residual_without_scale),
        (rejection, RejectionVerifier(), bonus_from_the_last_drafted_slot),
        (block, BlockVerifier(), bonus_from_the_last_drafted_slot),
    ],
    ids=lambda x: getattr(x, "__name__", getattr(x, "name", None)),
)
def test_wrong_residual_is_seen(module, verifier, wrong, monkeypatch):
    p, q = table(27, 3), table(127, 3)  # a pair whose block residuals depend much on the scale
    assert distance(law(verifier, p, q, k=2, length=3), product_law(p, 3)) < EXACT
    monkeypatch.setattr(module, "final_draw", wrong)
    assert distance(law(verifier, p, q, k=2, length=3), product_law(p, 3)) > CLEAR


class PerTokenInBlock(BlockVerifier):
    """Block's h replaced by w alone: accepts too much before the block's end."""

    @staticmethod
    def _surplus(proposal, p, w, i):
        return torch.full_like(w, 1e9)


def test_block_with_a_wrong_acceptance_is_seen():
    p, q = pairs(3)["random"]
    assert distance(law(PerTokenInBlock(), p, q, k=3, length=3), product_law(p, 3)) > CLEAR


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_greedy_draft_counted_with_its_softmax_is_seen(verifier):
    p, q = pairs(3)["random"]
    assert distance(greedy_law(verifier, p, q, 2, 3, accounted=q), product_law(p, 3)) > CLEAR


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_dropping_a_drawn_token_for_its_value_is_seen(verifier):
    """p = q = (½, ½), the draft's "1" dropped: "0" comes out with ¾."""
    from laws import Drawn

    def fair(prefix):
        return torch.tensor([0.5, 0.5]).double()

    def dropped(prefix):
        return [Drawn(prefix, (0,), 0.5), Drawn(prefix, (), 0.5)]

    got = emitted_law(verifier, fair, dropped, fair, 1, 1)
    assert got.tolist() == pytest.approx([0.75, 0.25], abs=1e-9)


@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_draft_drawn_hotter_than_accounted_is_seen(verifier):
    p, q = pairs(3)["random"]

    def hotter(prefix):
        return (q(prefix).log() / 2).softmax(-1)

    got = emitted_law(verifier, p, lambda prefix: every_draft(hotter, prefix, 2, never), q, 2, 3)
    assert distance(got, product_law(p, 3)) > CLEAR


# -- how much is accepted ----------------------------------------------------------------------------------------------


def expected_kept(verifier, p, q, k) -> float:
    drafts = every_draft(q, (), k, never)
    kept = law_of(verifier, *batch_of(drafts, p, q, k)).kept
    mean = (kept * torch.arange(k + 1)).sum(-1)
    return (mean * torch.tensor([d.probability for d in drafts], dtype=torch.float64)).sum().item()


@pytest.mark.parametrize("pair", pairs(4))
@pytest.mark.parametrize("verifier", RULES, ids=by_name)
def test_one_token_is_accepted_with_one_minus_total_variation(verifier, pair):
    p, q = pairs(4)[pair]
    assert expected_kept(verifier, p, q, 1) == pytest.approx(1 - distance(p(()), q(())), abs=1e-9)


def test_block_never_accepts_less_than_rejection_and_often_more():
    gains = []
    for seed in range(12):
        p, q = table(seed, 3), table(100 + seed, 3)
        gains.append(expected_kept(BlockVerifier(), p, q, 3) - expected_kept(RejectionVerifier(), p, q, 3))
    assert min(gains) > -1e-9
    assert sum(gain > 0.01 for gain in gains) >= 6


def test_block_accepts_as_rejection_where_the_draft_is_one_hot():
    p, q = pairs(3)["one-hot q"]
    assert expected_kept(BlockVerifier(), p, q, 3) == pytest.approx(
        expected_kept(RejectionVerifier(), p, q, 3), abs=1e-9
    )


# -- coupled -----------------------------------------------------------------------------------------------------------


def coupled_text(seeds, p, q, k, length):
    """`[rows, length]`: the coupled rule over tables; k = 0 decodes without a draft."""
    verifier = CoupledVerifier()
    text = [() for _ in seeds]
    while min(map(len, text)) < length:
        noise_ = Noise(seeds, [len(t) for t in text], torch.device("cpu"))
        drafted = [t for t in text]
        for i in range(k):
            scores = torch.stack([q(t).log() for t in drafted]).float()
            tokens, distribution = verifier.draw(scores, noise_, i)
            assert distribution is None
            drafted = [(*t, x) for t, x in zip(drafted, tokens.tolist(), strict=True)]
        scores = torch.stack(
            [torch.stack([p(d[: len(t) + i]).log() for i in range(k + 1)]) for t, d in zip(text, drafted, strict=True)]
        )
        tokens = torch.tensor([d[len(t) :] for t, d in zip(text, drafted, strict=True)], dtype=torch.long).view(
            len(text), k
        )
        verdict = verifier.accept(Proposal(tokens, torch.full((len(text),), k)), scores.float(), noise_)
        text = [
            (*d[: len(t) + n], x)
            for t, d, n, x in zip(text, drafted, verdict.accepted.tolist(), verdict.next_token.tolist(), strict=True)
        ]
    return [t[:length] for t in text]


def test_coupled_text_depends_on_the_seed_alone():
    cached = {name: table(seed, 4) for name, seed in (("p", 1), ("q", 2), ("other", 3))}
    seeds = list(range(-20, 20))
    alone = coupled_text(seeds, cached["p"], None, 0, 8)
    assert len(set(alone)) > 30
    for name, k in itertools.product(("q", "other", "p"), (1, 3)):
        assert coupled_text(seeds, cached["p"], cached[name], k, 8) == alone, (name, k)
    assert coupled_text(seeds[7:8], cached["p"], cached["q"], 2, 8) == alone[7:8]


def test_coupled_law_over_seeds_is_the_targets():
    """60,000 consecutive seeds: at p-value 1e-4, an error of total variation 0.01 in one token's law is seen with
    power > 0.99 (noncentrality ≥ n·(2·TV)² = 24 on 3 degrees of freedom for the least favourable direction)."""
    n, law_ = 60_000, table(1, 4)(())
    noise_ = [Noise(list(range(n)), [start] * n, torch.device("cpu")) for start in (5, 6)]
    scores = law_.log().float().expand(n, 1, 4)
    first, second = (CoupledVerifier().accept(Proposal.empty(n, scores.device), scores, x).next_token for x in noise_)
    joint = torch.zeros(4, 4).index_put((first, second), torch.ones(n), accumulate=True)
    assert chi_square(joint, law_[:, None] * law_) > 1e-4
    bent = law_ + torch.tensor([0.01, -0.01, 0.0, 0.0])
    assert chi_square(joint.sum(1), bent) < 1e-4  # the stated power


# -- end to end --------------------------------------------------------------------------------------------------------

SMALL = {
    "vocab_size": 8,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "eos_token_id": None,
    "max_position_embeddings": 64,
}
PROMPT = torch.tensor([[3, 5, 3]])
LENGTH = 3  # tokens whose joint law is checked; one more is decoded, so that drafts of two are possible
LEAST = 1e-4  # p-value below which a law is refused


@pytest.fixture(scope="module")
def pair():
    target, draft = tiny(seed=0, scale=9.0, **SMALL), tiny(seed=5, scale=9.0, **SMALL)
    a, b = (model(PROMPT).logits[0, -1].softmax(-1) for model in (target, draft))
    assert distance(a, b) > 0.2
    return target, draft


@torch.no_grad()
def exact_law(target, **settings) -> torch.Tensor:
    """Of the first tokens, from the scores plain decoding samples from."""
    vocabulary, joint = target.config.vocab_size, torch.ones((), dtype=torch.float64)
    for n in range(LENGTH):
        texts = torch.tensor(list(itertools.product(range(vocabulary), repeat=n)), dtype=torch.long).view(
            vocabulary**n, n
        )
        ids = torch.cat([PROMPT.expand(len(texts), -1), texts], 1)
        out = plain(
            target,
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            max_new_tokens=1,
            output_scores=True,
            return_dict_in_generate=True,
            **settings,
        )
        step = out.scores[0].double().softmax(-1)
        ended = (texts == settings.get("eos_token_id", -1)).any(1)
        step[ended] = torch.eye(vocabulary, dtype=torch.float64)[0]  # padding
        joint = joint[..., None] * step.view([vocabulary] * (n + 1))
    return joint


def empirical_counts(target, draft, strategy, rows, seed=0, **settings) -> torch.Tensor:
    out = spec(
        target,
        draft,
        strategy,
        input_ids=PROMPT,
        attention_mask=torch.ones_like(PROMPT),
        do_sample=True,
        num_return_sequences=rows,
        max_new_tokens=LENGTH + 1,
        generator=torch.Generator().manual_seed(seed),
        **{"num_assistant_tokens": 2, "top_k": 0} | settings,
    )
    assert 0.1 < out.spec_stats.acceptance_rate < 0.99  # both branches of the rule are walked
    new = out.sequences[:, PROMPT.shape[1] :][:, :LENGTH]
    joint = torch.zeros([target.config.vocab_size] * LENGTH)
    return joint.index_put(tuple(new.T), torch.ones(rows), accumulate=True)


SETTINGS = {
    "temperature": {"temperature": 0.7},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "all of them": {"temperature": 1.3, "top_k": 5, "top_p": 0.8, "min_p": 0.05},
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_law_is_plain_decodings(pair, strategy, setting):
    law_ = exact_law(pair[0], **{"top_k": 0} | SETTINGS[setting])
    counts = empirical_counts(*pair, strategy, 2000, **SETTINGS[setting])
    assert counts[law_ == 0].sum() == 0, "a token outside the nucleus"
    assert chi_square(counts, law_) > LEAST


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_law_under_a_processor_that_reads_the_text(pair, strategy):
    settings = {"repetition_penalty": 1.8, "temperature": 0.8, "top_k": 4}
    law_ = exact_law(pair[0], **settings)
    without = exact_law(pair[0], **settings | {"repetition_penalty": 1.0})
    assert distance(law_, without) > 0.1
    counts = empirical_counts(*pair, strategy, 1000, **settings)
    assert chi_square(counts, law_) > LEAST > chi_square(counts, without)


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_law_where_rows_and_drafts_end_at_an_eos(pair, strategy):
    eos = exact_law(pair[0], top_k=0).sum((0, 2)).argmax().item()  # the likeliest second token
    law_ = exact_law(pair[0], top_k=0, eos_token_id=eos)
    assert 0.2 < law_[..., 0].sum() < 0.9
    assert chi_square(empirical_counts(*pair, strategy, 2000, eos_token_id=eos), law_) > LEAST


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_law_under_a_grammar_that_knows_no_other_text(pair, strategy):
    """Nor one behind its end: those slots of a draft are not processed."""
    end, known = 6, PROMPT[0, -1].item()

    def following(token):
        return [(token + step) % 8 for step in (1, 3, 6)]

    def allowed(_, ids):
        text = [known, *ids[PROMPT.shape[1] :].tolist()]
        legal = all(b in following(a) and a != end for a, b in itertools.pairwise(text)) and text[-1] != end
        return following(text[-1]) if legal else others

    others = [0]
    settings = {"top_k": 0, "eos_token_id": end, "prefix_allowed_tokens_fn": allowed}
    law_ = exact_law(pair[0], **settings)
    assert 0.05 < law_[..., 0].sum() < 0.95
    others = []  # an error
    assert chi_square(empirical_counts(*pair, strategy, 800, **settings), law_) > LEAST


@pytest.mark.parametrize("rule", [RejectionVerifier, BlockVerifier], ids=by_name)
def test_q_is_the_very_float32_law_that_a_bfloat16_draft_was_drawn_from(pair, rule, monkeypatch):
    target, draft = pair[0], copy.deepcopy(pair[1]).to(torch.bfloat16)
    drawn, rounds, draw, judge = [], [], rule.draw, rule.accept

    def watched_draw(self, scores, noise, offset):
        assert scores.dtype == torch.float32
        token, q = draw(self, scores, noise, offset)
        drawn.append(q)
        return token, q

    def watched_accept(self, proposal, scores, noise):
        if proposal.width:
            where, q = proposal.drafted(), proposal.q
            assert q.dtype == torch.float32 and torch.equal(q, torch.stack(drawn, 1))
            again = [base.invert(q[:, i], noise.uniform(DRAFT, i)) for i in range(proposal.width)]
            assert torch.equal(torch.stack(again, 1)[where], proposal.tokens[where])
            rounds.append((q.sum(-1) - 1).abs().max().item() < 1e-6 and not torch.equal(q, q.bfloat16().float()))
        drawn.clear()
        return judge(self, proposal, scores, noise)

    monkeypatch.setattr(rule, "draw", watched_draw)
    monkeypatch.setattr(rule, "accept", watched_accept)
    counts = empirical_counts(target, draft, rule.name, 1000, temperature=0.7)
    assert rounds and all(rounds)
    assert chi_square(counts, exact_law(target, temperature=0.7, top_k=0)) > LEAST


def test_coupled_law_is_plain_decodings(pair):
    counts = empirical_counts(*pair, "coupled", 2000, temperature=0.7)
    assert chi_square(counts, exact_law(pair[0], temperature=0.7, top_k=0)) > LEAST


@pytest.mark.parametrize("temperature", [0.4, 2.5])
def test_the_drafts_own_temperature_does_not_touch_the_law(pair, temperature):
    target = pair[0]
    hot = tiny(seed=5, scale=9.0, **SMALL)
    with torch.no_grad():
        hot.get_output_embeddings().weight.div_(temperature)
    hot.generation_config = GenerationConfig(do_sample=True, temperature=temperature, top_k=2)
    counts = empirical_counts(target, hot, "block", 2000)
    assert chi_square(counts, exact_law(target, top_k=0)) > LEAST


@pytest.mark.parametrize("k, threshold", [(1, None), (2, 0.3)])
def test_short_drafts_and_a_confidence_threshold_do_not_touch_the_law(pair, k, threshold):
    counts = empirical_counts(*pair, "block", 2000, num_assistant_tokens=k, assistant_confidence_threshold=threshold)
    assert chi_square(counts, exact_law(pair[0], top_k=0)) > LEAST


def draws_greedily(self, scores, noise_, offset):
    return scores.argmax(-1), scores.softmax(-1)


@pytest.mark.parametrize(
    "patch",
    [
        lambda: mock.patch.object(rejection, "final_draw", residual_from_p),
        lambda: mock.patch.object(RejectionVerifier, "draw", draws_greedily),
    ],
    ids=["residual from p", "greedy draw counted with its softmax"],
)
def test_wrong_rule_is_seen_end_to_end(pair, patch):
    with patch():
        counts = empirical_counts(*pair, "rejection", 2000, temperature=0.7)
    assert chi_square(counts, exact_law(pair[0], temperature=0.7, top_k=0)) < 1e-12


def test_a_flat_draft_never_brings_in_a_token_outside_the_nucleus(pair):
    target, flat = pair[0], tiny(seed=5, **SMALL)
    with torch.no_grad():
        flat.get_output_embeddings().weight.zero_()
    law_ = exact_law(target, top_p=0.3, top_k=0)
    assert 0 < (law_ > 0).sum() < 100
    for strategy in ("rejection", "block"):
        # Without the target's processors on the draft, most proposals lie outside.
        with mock.patch("hf_specgen.drafters.model.on_draft", lambda rows, trials, scores, step: scores):
            counts = empirical_counts(target, flat, strategy, 1500, top_p=0.3)
        assert counts[law_ == 0].sum() == 0
        assert chi_square(counts, law_) > LEAST


@pytest.mark.parametrize("temperature", [1e-4, 1.0])
@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_a_draft_equal_to_its_target_is_accepted_whole(strategy, temperature):
    target = tiny(seed=0, **SMALL)
    twin = tiny(seed=0, **SMALL)
    out = spec(
        target,
        twin,
        strategy,
        **prompts([4, 4, 4, 4], vocab=8),
        do_sample=True,
        temperature=temperature,
        top_k=0,
        max_new_tokens=24,
        num_assistant_tokens=4,
    )
    assert out.spec_stats.acceptance_rate > 0.97  # rounding between one forward of five and five forwards


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("noise_of_draft", [5, 6])
def test_coupled_ids_do_not_depend_on_draft_length_or_batch(pair, k, noise_of_draft):
    target, draft = pair[0], tiny(seed=noise_of_draft, scale=9.0, **SMALL)
    batch = prompts([3, 6, 4], vocab=8)
    settings = {"do_sample": True, "max_new_tokens": 16, "top_k": 0}

    def seeds():
        return [torch.Generator().manual_seed(s) for s in (11, 12, 13)]

    undrafted = spec(target, None, "coupled", **batch, generator=seeds(), **settings).sequences
    drafted = spec(target, draft, "coupled", **batch, generator=seeds(), num_assistant_tokens=k, **settings)
    assert drafted.spec_stats.accepted > 0
    assert torch.equal(drafted.sequences, undrafted)
    alone = batch["input_ids"][2:, 2:]
    one = spec(
        target,
        draft,
        "coupled",
        input_ids=alone,
        attention_mask=torch.ones_like(alone),
        generator=seeds()[2:],
        **settings,
    )
    assert torch.equal(one.sequences[0, alone.shape[1] :], undrafted[2, batch["input_ids"].shape[1] :])


# -- noise -------------------------------------------------------------------------------------------------------------

CPU = torch.device("cpu")
N = 20_000


def streams():
    """Uniforms that must each be uniform, and independent of each other."""
    same = [7] * N
    along = list(range(N))
    by_row = noise.row_seeds(N, torch.Generator().manual_seed(0), do_sample=True)
    yield "positions", Noise(same, along, CPU).uniform(NEXT, 0)
    yield "consecutive seeds", Noise(along, [0] * N, CPU).uniform(NEXT, 0)
    yield "rows of one generator", Noise(by_row, [0] * N, CPU).uniform(NEXT, 0)
    yield "offsets", Noise([7], [0], CPU).uniform(ACCEPT, slice(0, N))[0]
    yield "draft", Noise(by_row, [0] * N, CPU).uniform(DRAFT, 0)
    yield "accept", Noise(by_row, [0] * N, CPU).uniform(ACCEPT, 0)
    yield "next offset", Noise(by_row, [0] * N, CPU).uniform(DRAFT, 1)
    yield "next start", Noise(by_row, [1] * N, CPU).uniform(DRAFT, 0)
    yield "gumbel, token 0", (-(-Noise(by_row, [0] * N, CPU).gumbel(0, 2)[:, 0].double()).exp()).exp()
    yield "gumbel, token 1", (-(-Noise(by_row, [0] * N, CPU).gumbel(0, 2)[:, 1].double()).exp()).exp()
    yield "gumbel, along the vocabulary", (-(-Noise([3], [0], CPU).gumbel(0, N)[0].double()).exp()).exp()


@pytest.mark.parametrize("name, u", list(streams()), ids=lambda x: x if isinstance(x, str) else "")
def test_noise_is_uniform_and_free_of_serial_correlation(name, u):
    assert u.min() > 0 and u.max() < 1
    assert chi_square(torch.histc(u, 100, 0, 1), torch.full((100,), 0.01)) > LEAST
    for lag in (1, 2, 3, 64):
        pairs_ = (u[:-lag] * 10).long() * 10 + (u[lag:] * 10).long()
        assert chi_square(pairs_.bincount(minlength=100), torch.full((100,), 0.01)) > LEAST, lag


def test_noise_of_different_rows_positions_and_purposes_is_uncorrelated():
    matrix = torch.corrcoef(torch.stack([u for _, u in streams()]))
    off = (matrix - torch.eye(len(matrix))).abs().max()
    assert off < 4.5 / N**0.5  # 55 pairs: chance of a false alarm 4e-4


def test_correlated_noise_would_be_seen():
    u = Noise([7] * N, list(range(N)), CPU).uniform(NEXT, 0)
    lazy = torch.where(torch.arange(N) % 8 == 0, u.roll(1), u)  # one draw in eight repeats the one before
    pairs_ = (lazy[:-1] * 10).long() * 10 + (lazy[1:] * 10).long()
    assert chi_square(pairs_.bincount(minlength=100), torch.full((100,), 0.01)) < 1e-9


def test_noise_is_a_function_of_seed_position_and_purpose_alone():
    together = Noise([5, 9], [3, 8], CPU)
    alone = Noise([9], [8], CPU)
    for purpose in (DRAFT, ACCEPT, NEXT):
        assert together.uniform(purpose, 2)[1] == alone.uniform(purpose, 2)[0]
        assert together.uniform(purpose, slice(0, 4))[1, 2] == alone.uniform(purpose, 2)[0]
    assert torch.equal(together.gumbel(1, 50)[1], alone.gumbel(1, 50)[0])
    assert torch.equal(together.gumbel(1, 50)[1], Noise([9], [7], CPU).gumbel(2, 50)[0])  # position, not block


def test_gumbel_noise_is_finite_with_a_large_vocabulary():
    assert Noise([1, 2], [0, 5], CPU).gumbel(0, 200_000).isfinite().all()


@pytest.mark.parametrize("u", [5e-324, 2.0**-54, 0.25, 0.5, 0.75, 1 - 2.0**-53], ids=str)
@pytest.mark.parametrize(
    "weights",
    [
        [0, 0, 1, 0, 1, 0, 0],
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 1],
        [0, 1e-30, 0, 1, 0],
        [0, 1, 0, 1e-30, 0],
        [0, 0.1, 0.2, 0.3, 0.4, 0],
        [0] * 500 + [1e-7] + [0] * 500,
    ],
    ids=lambda w: "-".join(map(str, w[:8])),
)
def test_draw_never_returns_a_token_without_weight(weights, u):
    weights = torch.tensor([weights], dtype=torch.float32)
    token = noise.invert(weights, torch.tensor([u], dtype=torch.float64))
    assert weights[0, token[0]] > 0


def test_the_extreme_uniforms_lie_inside_the_open_interval():
    """The keys that the last mixing step maps to all zeros and all ones."""
    lowest, highest = 0, -1 ^ (2**35 - 1) ^ (2**6 - 1)
    u = noise._unit(torch.tensor([lowest, highest]))
    assert 0 < u[0] < 1e-15 and 1 - 1e-15 < u[1] < 1


def test_draw_follows_the_weights():
    weights = torch.tensor([[0.0, 1.0, 3.0, 0.0, 4.0]])
    grid = (torch.arange(8000).double() + 0.5) / 8000
    counts = noise.invert(weights.expand(8000, -1), grid).bincount(minlength=5)
    assert counts.tolist() == [0, 1000, 3000, 0, 4000]


def test_a_verdict_is_what_the_loop_is_told():
    """Accept-all, reject at the first, reject at the last, one token: kept and next by hand."""
    assert {f.name for f in dataclasses.fields(Verdict)} == {"accepted", "next_token"}
    p = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]).log()
    tokens = torch.tensor([[1, 2], [0, 2], [1, 0], [1, 0]])
    proposal = Proposal(tokens, torch.tensor([2, 2, 2, 1]))
    for name in hf_specgen.verifiers.STRATEGIES:
        verdict = hf_specgen.verifiers.STRATEGIES[name]().accept(
            proposal, p.expand(4, 3, 3), Noise([1] * 4, [0] * 4, CPU)
        )
        assert verdict.accepted.tolist() == [2, 0, 1, 1], name
        assert verdict.next_token.tolist() == [0, 1, 2, 2], name
