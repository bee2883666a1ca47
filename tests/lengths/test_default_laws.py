"""Lossless by default: the joint law of several rounds under goodput and hybrid, by exact enumeration.

Everything is the real thing but the models, which are tables, and the loop: the rule that plans and learns, both
sources and their join, the verifier. Every draft that could be drawn is, and the rule goes on from every outcome.
"""

import copy
import functools
import itertools
import random
from collections import defaultdict

import pytest
import torch
from cheap_toys import deep, early_exit
from laws import chi_square, distance, law_of, product_law
from toys import spec

from hf_specgen import Drafter, Proposal
from hf_specgen.drafters import HybridDrafter, LookupDrafter
from hf_specgen.drafters.base import LoneRow
from hf_specgen.lengths import GoodputLength, Terms
from hf_specgen.lengths.base import Round, Seconds
from hf_specgen.processors import RowProcessors
from hf_specgen.verifiers.block import BlockVerifier
from hf_specgen.verifiers.rejection import RejectionVerifier

RULES = [RejectionVerifier(), BlockVerifier()]
PROMPT = (0, 1, 0, 0, 1, 1, 0, 1, 0, 0, 1)  # the last six tokens stood there before
LENGTH = 5
EXACT, CLEAR = 1e-9, 0.01
LIMIT = 10_000
DOUBLE = functools.partial(torch.tensor, dtype=torch.float64)


def p(prefix) -> torch.Tensor:
    """The target's law after a prefix, by its last two tokens."""
    last = (*PROMPT, *prefix)[-2:]
    return DOUBLE([[0.15, 0.85], [0.6, 0.4], [0.7, 0.3], [0.9, 0.1]][2 * last[0] + last[1]])


def q(prefix) -> torch.Tensor:
    """The draft's, by the last: sure after 0, not after 1."""
    return DOUBLE([[0.03, 0.97], [0.55, 0.45]][(*PROMPT, *prefix)[-1]])


class More(Exception):
    """Another token would be drawn."""


class Forced:
    """Draws what it is told to."""

    def __init__(self, tokens):
        self.tokens = tokens

    def draw(self, scores, noise, offset):
        if offset == len(self.tokens):
            raise More
        return torch.tensor([self.tokens[offset]]), scores


class TableDrafter(Drafter):
    """A model's part, after a table. It asks between its tokens whether to go on."""

    stops_inside = True

    def propose(self, rows, widths, verifier, noise):
        (row,), (width,) = rows, widths
        drawn, laws = (), []
        for step in range(width):
            law = q((*row.tokens[len(PROMPT) :], *drawn))
            token, accounted = verifier.draw(law[None], noise, step)
            drawn, laws = (*drawn, int(token)), [*laws, accounted]
            if not self.rule.goes_on([row], step, [float(law.max())])[0]:
                break
        drawn, laws = self.cut(drawn, laws)
        if not drawn:
            return Proposal.empty(1, torch.device("cpu"))
        return Proposal(torch.tensor([drawn]), torch.tensor([len(drawn)]), torch.stack(laws, 1))

    def cut(self, drawn, laws):
        return drawn, laws


class Drops(TableDrafter):
    """Wrong: a last token that is a 1 is not submitted."""

    def cut(self, drawn, laws):
        return (drawn[:-1], laws[:-1]) if drawn[-1] == 1 else (drawn, laws)


class Undeclared(LookupDrafter):
    """Wrong: copied tokens are accounted for as if the model had drawn them."""

    def propose(self, rows, widths, verifier, noise):
        found = super().propose(rows, widths, verifier, noise)
        if found.width:
            prefix = tuple(rows[0].tokens[len(PROMPT) :])
            laws = [q((*prefix, *found.tokens[0, :i].tolist())) for i in range(found.width)]
            found.q = torch.stack(laws)[None]
        return found


def drafts(rule, prefix, model, lookup):
    """All that may be drafted after a prefix: (probability, proposal, choice, the rule afterwards)."""
    done, open_ = [], [()]
    while open_:
        forced = open_.pop()
        mine = copy.deepcopy(rule)
        row = LoneRow(torch.empty(0), [*PROMPT, *prefix], LIMIT, RowProcessors([]))
        drafter = HybridDrafter(model(), lookup(3))
        drafter.ask(mine, alternatives=False)
        (choice,) = mine.choose([row], drafter.offers([row]))
        drafter.choose([choice.offer])
        try:
            proposal = drafter.propose([row], [choice.width], Forced(forced), None)
        except More:
            open_ += [(*forced, 0), (*forced, 1)]
            continue
        chance = 1.0
        for i, token in enumerate(forced):
            chance *= float(q((*prefix, *forced[:i]))[token])
        done.append((chance, proposal, choice, mine))
    return done


def outcomes(verifier, prefix, proposals):
    """Of each proposal: the law of how many stay `[K + 1]`, and of the token after so many `[K + 1, 2]`."""
    width = max(1, *(proposal.width for proposal in proposals))
    tokens = torch.zeros(len(proposals), width, dtype=torch.long)
    accounted = torch.full((len(proposals), width, 2), 0.5).double()
    scores = torch.zeros(len(proposals), width + 1, 2).double()
    counts = [int(proposal.counts[0]) for proposal in proposals]
    for b, (proposal, count) in enumerate(zip(proposals, counts, strict=True)):
        drawn = proposal.tokens[0, :count].tolist()
        tokens[b, :count] = proposal.tokens[0, :count]
        certain = torch.eye(2).double()[proposal.tokens[0, :count]]
        accounted[b, :count] = certain if proposal.q is None else proposal.q[0, :count].double()
        for i in range(count + 1):
            scores[b, i] = p((*prefix, *drawn[:i])).log()
    law = law_of(verifier, Proposal(tokens, torch.tensor(counts), accounted), scores)
    return list(zip(counts, law.kept.tolist(), law.next.tolist(), strict=True))


def decoded_law(verifier, model=TableDrafter, lookup=LookupDrafter):
    """The joint law of the first `LENGTH` tokens, and which (source, drafted) rounds came."""
    clock = random.Random(5)  # of which nothing may depend
    joint, walked = torch.zeros([2] * LENGTH, dtype=torch.float64), defaultdict(float)
    rule = GoodputLength(4)
    rule.start(Terms(free=False, greedy=False, inside=True, target_step=1.0, draft_step=0.2, position_cost=0.01))
    alive, known = {((), ()): (1.0, rule)}, {}
    while alive:  # shortest first: every way to a text and its history is counted before it goes on
        prefix, history = min(alive, key=lambda key: len(key[0]))
        mass, rule = alive.pop((prefix, history))
        found = drafts(rule, prefix, model, lookup)
        same = prefix, str([(proposal.tokens.tolist(), proposal.q) for _, proposal, _, _ in found])
        if same not in known:
            known[same] = outcomes(verifier, prefix, [proposal for _, proposal, _, _ in found])
        for (chance, proposal, choice, after), (count, kept, follows) in zip(found, known[same], strict=True):
            drawn = tuple(proposal.tokens[0, :count].tolist())
            source = choice.offer.source if choice.offer else None
            walked[source, count] += mass * chance
            for n, x in itertools.product(range(count + 1), range(2)):
                share = mass * chance * kept[n] * follows[n][x]
                text = (*prefix, *drawn[:n], x)
                if share <= 0:
                    continue
                if len(text) >= LENGTH:
                    joint[text[:LENGTH]] += share
                    continue
                key = text, (*history, (source, choice.width, drawn, n))
                if key not in alive:
                    went_on = copy.deepcopy(after)
                    seconds = Seconds(1, count + 1, clock.expovariate(1), clock.expovariate(1), count)
                    went_on.learn([Round(0, choice, count, n)], seconds)
                    alive[key] = 0.0, went_on
                alive[key] = alive[key][0] + share, alive[key][1]
    return joint, walked


@pytest.mark.parametrize("verifier", RULES, ids=lambda rule: rule.name)
def test_the_joint_law_is_the_targets(verifier):
    joint, walked = decoded_law(verifier)
    often = {kind for kind, rounds in walked.items() if rounds > 0.01}
    assert len([kind for kind in often if kind[0] == "draft"]) > 1 and any(kind[0] == "lookup" for kind in often)
    assert distance(joint, product_law(p, LENGTH)) < EXACT


@pytest.mark.parametrize("wrong", [{"model": Drops}, {"lookup": Undeclared}], ids=["drops", "undeclared"])
@pytest.mark.parametrize("verifier", RULES, ids=lambda rule: rule.name)
def test_a_wrong_draft_or_account_is_seen(verifier, wrong):
    assert distance(decoded_law(verifier, **wrong)[0], product_law(p, LENGTH)) > CLEAR


# ---- through generate() ----------------------------------------------------------------------------------------------
SMALL = {"vocab_size": 6, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
ROWS, NEW = 800, 4
TEXT = torch.tensor([[3, 5, 2, 4, 3, 5, 2, 4, 3, 5]])  # what follows is likely to have stood there before
LEAST = 1e-4


@pytest.fixture(scope="module")
def pair():
    target = deep(8, 0.15, scale=8.0, num_key_value_heads=1, **SMALL)
    return target, early_exit(target)


@pytest.fixture(autouse=True)
def cheap_positions(monkeypatch):
    """As on a GPU: both sources are used."""
    from hf_specgen.decoding import call

    monkeypatch.setattr(call, "position_costs", lambda model: (0.01, 0.0))


@torch.no_grad()
def exact_law(target) -> torch.Tensor:
    """Of the first three tokens."""
    joint = torch.ones((), dtype=torch.float64)
    for n in range(3):
        texts = torch.tensor(list(itertools.product(range(6), repeat=n)), dtype=torch.long).view(6**n, n)
        logits = target(torch.cat([TEXT.expand(len(texts), -1), texts], 1)).logits[:, -1]
        joint = joint[..., None] * logits.double().softmax(-1).view([6] * (n + 1))
    return joint


def counts(pair, strategy, **kwargs):
    out = spec(
        *pair, strategy, input_ids=TEXT, attention_mask=torch.ones_like(TEXT), do_sample=True, top_k=0,
        num_return_sequences=ROWS, max_new_tokens=NEW, generator=torch.Generator().manual_seed(1),
        num_assistant_tokens=None, **kwargs,
    )  # fmt: skip
    joint = torch.zeros([6] * 3)
    new = out.sequences[:, TEXT.shape[1] :][:, :3]
    return joint.index_put(tuple(new.T), torch.ones(ROWS), accumulate=True), out.spec_stats


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_sampled_with_default_settings_it_is_the_targets_law(pair, strategy):
    seen, stats = counts(pair, strategy)
    assert chi_square(seen, exact_law(pair[0])) > LEAST
    assert {"draft", "lookup"} <= stats.by_source.keys() and 0.1 < stats.acceptance_rate < 0.95


@pytest.mark.parametrize("strategy", ["rejection", "block"])
def test_copied_tokens_taken_for_drawn_ones_are_seen(pair, strategy, monkeypatch):
    """Negative control: q of what was looked up is flat in place of one-hot."""
    from hf_specgen.drafters import hybrid

    def flat(drafted, found):
        joined = real(drafted, found)
        joined.q = torch.full((*joined.tokens.shape, 6), 1 / 6) if joined.q is None else joined.q
        joined.q[found.counts > 0] = 1 / 6
        return joined

    real = hybrid.joined
    monkeypatch.setattr(hybrid, "joined", flat)
    assert chi_square(counts(pair, strategy)[0], exact_law(pair[0])) < 1e-6
