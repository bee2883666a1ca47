"""The exact law of a verifier, without sampling: every draft is enumerated, every uniform integrated.

A verifier decides by comparing uniforms with thresholds. The thresholds are found from outside, by bisection, so a
verifier is judged by what `accept` returns and by nothing else:

- slot i stays with probability a_i: the largest uniform at which it stays, those before it kept, those after it not;
- the number kept is a function of which slots stay, observed for all 2^K patterns;
- the next token is a monotone function of its uniform (inversion), observed as V − 1 thresholds per number kept.

`check_thresholds` compares that model with `accept` itself at random points.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch

from hf_specgen import Proposal, Verifier
from hf_specgen.noise import ACCEPT, NEXT

LOWEST, HIGHEST = 1e-300, 1 - 2.0**-53  # stay if anything does; go if anything goes
STEPS = 48  # bisections: thresholds to 2^-48

Prefix = tuple[int, ...]
Table = Callable[[Prefix], torch.Tensor]


class SetNoise:
    """Uniforms as told: `stay` `[rows, slots]` for acceptance, `final` `[rows]` for the next token."""

    def __init__(self, stay: torch.Tensor, final: torch.Tensor):
        self.stay, self.final = stay, final

    def uniform(self, purpose, offset):
        if purpose == NEXT:
            return self.final
        assert purpose == ACCEPT
        return self.stay[:, offset]


@dataclass
class Drawn:
    """One possible draft after a prefix."""

    prefix: Prefix
    tokens: Prefix
    probability: float


@dataclass
class Law:
    """Per row: `kept` `[rows, K + 1]`, its law; `next` `[rows, K + 1, V]`, the law of the token after that many."""

    stay: torch.Tensor  # [rows, K]
    pattern: torch.Tensor  # [rows, 2^K]: number kept for each pattern of slots that stay
    kept: torch.Tensor
    next: torch.Tensor


def _repeat(proposal: Proposal, scores: torch.Tensor, copies: int):
    q = None if proposal.q is None else proposal.q.repeat_interleave(copies, 0)
    counts = proposal.counts.repeat_interleave(copies)
    return Proposal(proposal.tokens.repeat_interleave(copies, 0), counts, q), scores.repeat_interleave(copies, 0)


def _bisect(goes_up_to: Callable[[torch.Tensor], torch.Tensor], count: int) -> torch.Tensor:
    """The largest u in [0, 1] at which a monotone predicate still holds, for `count` of them."""
    low, high = torch.zeros(count).double(), torch.ones(count).double()
    always, never = goes_up_to(torch.full_like(low, HIGHEST)), ~goes_up_to(torch.full_like(low, LOWEST))
    for _ in range(STEPS):
        middle = (low + high) / 2
        holds = goes_up_to(middle)
        low, high = torch.where(holds, middle, low), torch.where(holds, high, middle)
    return torch.where(always, 1.0, torch.where(never, 0.0, (low + high) / 2))


def law_of(verifier: Verifier, proposal: Proposal, scores: torch.Tensor) -> Law:
    rows, width, vocabulary = proposal.tokens.shape[0], proposal.width, scores.shape[-1]
    slots = torch.arange(width)

    def decide(stay: torch.Tensor, final: torch.Tensor):
        """`stay` `[copies, K]` or `[rows·copies, K]`; `final` alike."""
        copies = len(final) // rows
        many, repeated = _repeat(proposal, scores, copies)
        return verifier.accept(many, repeated, SetNoise(stay, final))

    # One threshold per slot: those before it stay, those after it go.
    asked = slots.repeat(rows)
    around = torch.where(slots < asked[:, None], LOWEST, HIGHEST).double()
    half = torch.full((rows * width,), 0.5).double()

    def slot_stays(u):
        return decide(torch.where(slots == asked[:, None], u[:, None], around), half).accepted > asked

    stay = _bisect(slot_stays, rows * width).view(rows, width)

    patterns = torch.tensor(list(itertools.product([False, True], repeat=width))).view(-1, width)
    chosen = torch.where(patterns, LOWEST, HIGHEST).double().repeat(rows, 1)
    kept_by_pattern = decide(chosen, torch.full((len(chosen),), 0.5).double()).accepted.view(rows, -1)
    weights = torch.where(patterns, stay[:, None], 1 - stay[:, None]).prod(-1)
    kept = torch.zeros(rows, width + 1).double().scatter_add(1, kept_by_pattern, weights)

    # Thresholds of the next token, for each number kept.
    want, token = torch.cartesian_prod(torch.arange(width + 1), torch.arange(vocabulary)).T.repeat(1, rows)
    leads = torch.where(slots < want[:, None], LOWEST, HIGHEST).double()
    below = _bisect(lambda u: decide(leads, u).next_token <= token, len(want)).view(rows, width + 1, vocabulary)
    reached = (decide(leads, torch.full((len(want),), 0.5).double()).accepted == want).view(rows, width + 1, vocabulary)
    assert (reached.all(-1) | (kept < 1e-12)).all()
    return Law(stay, kept_by_pattern, kept, below.diff(dim=-1, prepend=torch.zeros(rows, width + 1, 1)))


def check_thresholds(verifier: Verifier, proposal: Proposal, scores: torch.Tensor, seed: int = 0) -> int:
    """Compare the thresholds with what `accept` does at random uniforms. Returns the number of decisions compared."""
    law, (rows, width) = law_of(verifier, proposal, scores), proposal.tokens.shape
    generator = torch.Generator().manual_seed(seed)
    copies = 40
    stay = torch.rand(rows * copies, width, generator=generator).double()
    final = torch.rand(rows * copies, generator=generator).double()
    got = verifier.accept(*_repeat(proposal, scores, copies), SetNoise(stay, final))
    place = torch.arange(rows).repeat_interleave(copies)
    number = ((stay <= law.stay[place]).long() * 2 ** torch.arange(width - 1, -1, -1)).sum(-1)
    kept = law.pattern[place, number]
    token = (law.next[place, kept].cumsum(-1) < final[:, None]).sum(-1)
    assert torch.equal(got.accepted, kept)
    assert torch.equal(got.next_token, token)
    return len(final)


def every_draft(q: Table, prefix: Prefix, k: int, stops: Callable[[Prefix, Prefix], bool]) -> list[Drawn]:
    """All drafts of at most k tokens drawn from q; `stops(prefix, drawn)` ends one early, before the next draw."""
    done, open_ = [], [((), 1.0)]
    while open_:
        drawn, mass = open_.pop()
        if len(drawn) == k or stops(prefix, drawn):
            done.append(Drawn(prefix, drawn, mass))
            continue
        law = q(prefix + drawn)
        open_.extend((((*drawn, x)), mass * law[x].item()) for x in range(len(law)) if law[x] > 0)
    return done


def batch_of(drafts: list[Drawn], p: Table, q: Table | None, k: int, dtype=torch.float64):
    """Drafts as one proposal and the target's scores for it. Slots beyond a draft's end hold rubbish."""
    generator = torch.Generator().manual_seed(99)
    vocabulary = len(p(drafts[0].prefix))
    tokens = torch.randint(vocabulary, (len(drafts), k), generator=generator)
    laws = torch.rand(len(drafts), k, vocabulary, generator=generator, dtype=torch.float64).softmax(-1)
    scores = 9 * torch.randn(len(drafts), k + 1, vocabulary, generator=generator, dtype=torch.float64)
    for b, draft in enumerate(drafts):
        n = len(draft.tokens)
        tokens[b, :n] = torch.tensor(draft.tokens, dtype=torch.long)
        for i in range(n + 1):
            scores[b, i] = p(draft.prefix + draft.tokens[:i]).log()
            if q is not None and i < n:
                laws[b, i] = q(draft.prefix + draft.tokens[:i])
    counts = torch.tensor([len(draft.tokens) for draft in drafts])
    return Proposal(tokens, counts, None if q is None else laws.to(dtype)), scores.to(dtype)


def prefixes(vocabulary: int, shorter_than: int) -> list[Prefix]:
    return [x for n in range(shorter_than) for x in itertools.product(range(vocabulary), repeat=n)]


def emitted_law(verifier, p: Table, drafts_of, accounted: Table | None, k: int, length: int, dtype=torch.float64):
    """The joint law of the first `length` tokens, over as many rounds as it takes.

    Args:
        drafts_of: all drafts after a prefix, with their probabilities.
        accounted: what is handed to the verifier as q; None: tokens count as chosen.
    """
    vocabulary = len(p(()))
    drafts = [draft for prefix in prefixes(vocabulary, length) for draft in drafts_of(prefix)]
    law = law_of(verifier, *batch_of(drafts, p, accounted, k, dtype))
    rounds: dict[Prefix, list[tuple[Prefix, float]]] = defaultdict(list)
    for draft, kept, follows in zip(drafts, law.kept.tolist(), law.next.tolist(), strict=True):
        for n, chance in enumerate(kept):
            if chance > 0:
                rounds[draft.prefix].extend(
                    ((*draft.tokens[:n], x), draft.probability * chance * follows[n][x]) for x in range(vocabulary)
                )
    joint = torch.zeros([vocabulary] * length, dtype=torch.float64)
    alive: dict[Prefix, float] = {(): 1.0}
    while alive:  # shortest first: every way to a prefix is counted before it goes on
        prefix = min(alive, key=len)
        mass = alive.pop(prefix)
        for new, chance in rounds[prefix]:
            text = prefix + new
            if len(text) >= length:
                joint[text[:length]] += mass * chance
            elif mass * chance > 0:
                alive[text] = alive.get(text, 0.0) + mass * chance
    return joint


def product_law(p: Table, length: int) -> torch.Tensor:
    joint = torch.ones((), dtype=torch.float64)
    for n in range(length):
        vocabulary = len(p(()))
        step = torch.stack([p(x) for x in itertools.product(range(vocabulary), repeat=n)]).view([vocabulary] * (n + 1))
        joint = joint[..., None] * step
    return joint


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Total variation."""
    return ((a - b).abs().sum() / 2).item()


def chi_square(counts: torch.Tensor, law: torch.Tensor, least: float = 5.0) -> float:
    """p-value of counts under a law; cells expecting fewer than `least` are pooled. Impossible cells hit: 0."""
    counts, law = counts.double().flatten(), law.double().flatten()
    if (counts[law <= 0] > 0).any():
        return 0.0
    expected = law * counts.sum()
    small = expected < least
    seen = torch.cat([counts[~small], counts[small].sum()[None]])
    wanted = torch.cat([expected[~small], expected[small].sum()[None]])
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor(max(1, len(wanted) - 1), dtype=torch.float64)
    return torch.special.gammaincc(freedom / 2, statistic / 2).item()
