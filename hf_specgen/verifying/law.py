"""Sampled tokens: does the real loop, draft and all, draw from the target's own law?

Many continuations are drawn after a few contexts: a first token from the prefill, then a drafted block and the token
after it, so that acceptance, residual and bonus all occur. At each position, how many tokens fall into a set is
compared with the sum of their probabilities under the target's law after the very tokens that were drawn before them.
The sets follow from the two models' laws alone, before a draw is looked at:

- "draft": tokens that the draft finds likelier than the target does. Whatever a rule takes too much or too little of
  the draft moves probability across this set, by the total variation of the error. (Not for a draft with other ids.)
- "best": the target's most probable token. "rare": those below one percent.
- "low": the lower ids, up to the median of the target's law: what a draw by inversion with a wrong uniform, or with
  weights that do not sum to what it takes them for, gets too often or too rarely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .. import compat
from ..benchmarking.calls import Models
from ..cache.reader import read_prompt
from ..session import SpecSession
from ..stats import SpecStats
from .contexts import Context, known_ids, law, same_ids
from .statistics import Draws, Tails, holm, pooled, tails, visible_shift
from .texts import call_of, speculate

DRAFTED = 3
ROWS = 32
"""Continuations that are drawn together."""
READ = 16
"""Continuations that are read together."""
LEVEL, POWER = 1e-4, 0.9
"""Chance that a lossless rule is called a fault, over all tests of a strategy; and that a visible one is seen."""
SETS = ("draft", "best", "rare", "low")
RARE = 0.01
SLACK = 2.0
"""Times the typical noise of a score: how far rounding may have moved it."""


@dataclass(frozen=True)
class SetTest:
    """
    Attributes:
        position: of the new token (from 0; the first one is not drafted); None: all drafted positions together.
        draws, observed, expected: tokens, how many of them are in the set, and how many should be.
        p_value: by itself. `adjusted`: for the number of tests (Holm).
        visible_shift: probability that a wrong rule has to move across the set to be seen with probability `POWER`.
    """

    set: str
    position: int | None
    draws: int
    observed: int
    expected: float
    p_value: float
    adjusted: float
    visible_shift: float


@dataclass(frozen=True)
class Law:
    """What became of one strategy.

    Attributes:
        samples: continuations.
        drafted, accepted: tokens. rejections, bonuses: rounds that ended with a token of the residual, and of p itself.
        p_value: the smallest adjusted one; a fault below `level`.
    """

    strategy: str
    temperature: float
    samples: int
    drafted: int
    accepted: int
    rejections: int
    bonuses: int
    contexts: list[Context]
    tests: list[SetTest]
    level: float = LEVEL
    power: float = POWER

    @property
    def worst(self) -> SetTest:
        """The least likely one."""
        return min(self.tests, key=lambda test: (test.adjusted, test.p_value))

    @property
    def p_value(self) -> float:
        return self.worst.adjusted

    @property
    def passed(self) -> bool:
        return self.p_value >= self.level

    @property
    def visible_shift(self) -> float:
        """Of the most telling test: over all drafted positions, what the draft likes (where that is known)."""
        return next(test.visible_shift for test in self.tests if test.position is None)

    @property
    def disagreement(self) -> float | None:
        """Mean over the contexts: what would be moved if every drafted token were accepted."""
        known = [c.disagreement for c in self.contexts if c.disagreement is not None]
        return sum(known) / len(known) if known else None


@torch.no_grad()
def check_law(
    models: Models,
    contexts: Sequence[Context],
    strategy: str,
    *,
    temperature: float,
    samples: int,
    k: int,
    noise: float,
    seed: int = 0,
    listener: Callable[[], None] = lambda: None,
) -> Law:
    """
    Args:
        samples: continuations, over all contexts.
        k: tokens drafted in a round.
        noise: typical noise of a score, in logits.
        listener: told of each batch that is drawn.
    """
    texts, stats = draw(models, contexts, strategy, temperature, samples, k, seed, listener)
    found = _draws(models, contexts, texts, temperature, SLACK * noise / temperature)
    trace = [entry for entry in stats.history if entry[0]]
    return Law(
        strategy,
        temperature,
        samples,
        stats.drafted,
        stats.accepted,
        rejections=sum(accepted < drafted for drafted, accepted in trace),
        bonuses=sum(accepted == drafted for drafted, accepted in trace),
        contexts=list(contexts),
        tests=_tests(found, seed),
    )


def batches(samples: int) -> int:
    return math.ceil(samples / ROWS)


def draw(
    models: Models,
    contexts: Sequence[Context],
    strategy: str,
    temperature: float,
    samples: int,
    k: int,
    seed: int = 0,
    listener: Callable[[], None] = lambda: None,
) -> tuple[list[list[tuple[int, ...]]], SpecStats]:
    """Continuations of each context, of k + 2 tokens or up to an EOS. Contexts share the batches, evenly."""
    stateless = not (compat.keeps_state(models.target) or compat.keeps_state(models.draft))
    session = SpecSession() if stateless else None  # the contexts are read once
    texts: list[list[tuple[int, ...]]] = [[] for _ in contexts]
    stats = SpecStats()
    for first in range(0, samples, ROWS):
        which = [b % len(contexts) for b in range(min(ROWS, samples - first))]
        call = call_of(models, [contexts[c].ids for c in which], k + 2, temperature, seed)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + first)
        decoded = speculate(models, call, strategy, k, generator=generator, spec_session=session)
        stats.add(decoded.stats)
        for c, new in zip(which, decoded.ids, strict=True):
            texts[c].append(tuple(new))
        listener()
    return texts, stats


Positions = dict[str, list[Draws]]
"""By set: the draws of each position."""


def _draws(
    models: Models, contexts: Sequence[Context], texts: list[list[tuple[int, ...]]], temperature: float, slack: float
) -> Positions:
    draft = models.draft if same_ids(models) else None
    found: dict[tuple[str, int], list[torch.Tensor]] = {}
    for context, drawn in zip(contexts, texts, strict=True):
        counts = Counter(drawn)  # a text that was drawn twice is read once
        different = list(counts)
        for part in (different[i : i + READ] for i in range(0, len(different), READ)):
            p = law(continuations(models.target, context.ids, part), temperature)
            q = None
            if draft is not None:
                q = law(continuations(draft, context.ids, part), temperature, p.shape[-1]).to(p.device)
            often = torch.tensor([counts[text] for text in part])
            for name, members in sets_of(p, q).items():
                for at, figures in enumerate(_figures(p, members, part, slack)):
                    here = torch.tensor([len(text) > at for text in part])
                    repeated = figures[here].repeat_interleave(often[here], dim=0)
                    found.setdefault((name, at), []).append(repeated)
    positions: Positions = {}
    for (name, _), parts in sorted(found.items(), key=lambda item: (SETS.index(item[0][0]), item[0][1])):
        inside, chance, moved = torch.cat(parts).unbind(1)
        positions.setdefault(name, []).append(Draws(inside > 0, chance, moved))
    return positions


def _figures(p: torch.Tensor, members: torch.Tensor, part: list[tuple[int, ...]], slack: float):
    """Per position, float64 `[texts, 3]`: whether the token drawn is a member, the members' probability, its slack.

    To first order, noise of σ in every score moves the probability π of a set by σ·√Σ p²(1_A − π)².
    """
    width = p.shape[1]
    tokens = torch.tensor([[*text, *[0] * (width - len(text))] for text in part], device=p.device)
    inside = members.gather(2, tokens[:, :, None]).squeeze(2).double()
    chance = (p * members).sum(-1, dtype=torch.float64)
    moved = (p * (members.float() - chance[:, :, None].float())).square().sum(-1, dtype=torch.float64).sqrt()
    return torch.stack([inside, chance, slack * moved], dim=-1).cpu().unbind(1)


def sets_of(p: torch.Tensor, q: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Bool, of the shape of p `[..., vocabulary]`: the sets that the module names."""
    ids = torch.arange(p.shape[-1], device=p.device)
    best = ids == p.argmax(-1, keepdim=True)
    found = {"best": best, "rare": p < RARE, "low": p.cumsum(-1) <= 0.5}
    return found if q is None else {"draft": q > p, **found}


def continuations(model, context: Sequence[int], texts: list[tuple[int, ...]]) -> torch.Tensor:
    """Logits of each token of several texts after one context, `[texts, longest, vocabulary]`, by plain forwards."""
    width = max(map(len, texts))
    before = known_ids(model, [list(context)])
    known = known_ids(model, [[*text, *[text[-1]] * (width - len(text))] for text in texts])[:, :-1]
    if compat.keeps_state(model) or width == 1:  # a state cannot be handed out to several rows
        text = torch.cat([before.expand(len(texts), -1), known], dim=1)
        return read_prompt(model, text, None, width)[0]
    first, cache = read_prompt(model, before, None)
    cache.batch_repeat_interleave(len(texts))
    rest, _ = read_prompt(model, known, None, width - 1, cache=cache, start=len(context))
    return torch.cat([first.expand(len(texts), -1, -1), rest], dim=1)


def _tests(found: Positions, seed: int) -> list[SetTest]:
    uniform = torch.Generator().manual_seed(seed)
    plan: list[tuple[str, int | None, list[Draws], Tails]] = []
    for name, positions in found.items():
        sides = [tails(draws, float(torch.rand((), generator=uniform, dtype=torch.float64))) for draws in positions]
        plan += [(name, at, [positions[at]], side) for at, side in enumerate(sides)]
        if len(positions) > 1:
            plan.append((name, None, positions[1:], pooled(sides[1:])))
    adjusted = holm([side.p_value for *_, side in plan])
    level = LEVEL / len(plan)
    return [
        SetTest(
            name,
            position,
            draws=sum(map(len, draws)),
            observed=sum(int(d.inside.sum()) for d in draws),
            expected=sum(float(d.chance.sum()) for d in draws),
            p_value=side.p_value,
            adjusted=p,
            visible_shift=visible_shift(draws, level, POWER),
        )
        for (name, position, draws, side), p in zip(plan, adjusted, strict=True)
    ]
