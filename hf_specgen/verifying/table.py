"""Every token that was drawn, beside the law that it should follow, and the sets in which such tokens are counted.

The sets follow from the two models' laws alone (p the target's, q the draft's), before a token is looked at:

- "draft": q > p. Whatever a rule takes too much or too little of the draft moves probability across this set, by the
  total variation of the error.
- "left": q < p / 2, what makes up most of the residual max(p − q, 0). Inside q < p an error moves nothing across q > p:
  such as p for p − q, or block verification's residual without its scale.
- "best": the target's most probable token. "rare": those below one percent.
- "low": the lower ids, up to the median of the target's law: what a draw by inversion with a wrong uniform, or with
  weights that do not sum to what it takes them for, gets too often or too rarely.
- "seen": tokens of the text so far: what a penalty of another text, or a draw that repeats its noise, gets wrong.
- "copied": the token that lookup would copy. (Only where lookup was a source, and has a match.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .. import compat
from ..benchmarking.calls import Models
from ..cache.reader import read_prompt
from .contexts import Context, copied, in_rows, known_ids
from .drawing import Continuation
from .statistics import Draws
from .ways import WAYS, Way

READ = 16
"""Continuations that are read together."""
RARE = 0.01
SLACK = 2.0
"""Times the noise: how far rounding may have moved a score."""
CLEAR = 0.01
"""Less than so much of the probability is near a cut: rounding that moves a token across hides nothing."""
MOVED = ("everything accepted", "p for the residual", "p where it exceeds q for the residual")
"""Wrong rules whose effect on a drafted token is known."""


@dataclass(frozen=True)
class Rounding:
    """How far plain decoding's own scores move, in logits: root mean square, and at most."""

    typical: float
    largest: float


@dataclass(frozen=True)
class Table:
    """One row for each drawn token, those of a continuation one after the other.

    Attributes:
        position, way: int64 `[tokens]`: its place in the continuation, from 0; index in `WAYS`.
        modelled, bonus: bool `[tokens]`, see `Continuation`; at most one bonus of each.
        matched: bool `[tokens]`, whether lookup was a source and had something to copy.
        clear: bool `[tokens]`, see `CLEAR`.
        sets: by name; all tokens.
        moved: by `MOVED`, float64 `[tokens]`: the probability that this wrong rule would have moved across the set that
            shows it best, if the token was drafted by the model. Empty where q is not known.
    """

    position: torch.Tensor
    way: torch.Tensor
    modelled: torch.Tensor
    bonus: torch.Tensor
    matched: torch.Tensor
    clear: torch.Tensor
    sets: dict[str, Draws]
    moved: dict[str, torch.Tensor]


def read(
    models: Models,
    drawn: Sequence[Continuation],
    temperature: float,
    rounding: Rounding,
    reads_draft: bool,
) -> Table:
    """
    Args:
        reads_draft: whether q is to be had: see `contexts.unread`.
    """
    marks: list[tuple[int, int, bool, bool]] = []
    marked: list[torch.Tensor] = []
    inside: dict[str, list[torch.Tensor]] = {}
    moved: dict[str, list[torch.Tensor]] = {}
    for context, way, part in _parts(drawn):
        texts = sorted({one.tokens for one in part})  # one that was drawn twice is read once
        place = {text: i for i, text in enumerate(texts)}
        slots = [(place[one.tokens], at) for one in part for at in range(len(one.tokens))]
        pick = tuple(torch.tensor(slots).T)
        p, doubt = _law(models.target, context.ids, texts, WAYS[way], temperature, rounding)
        q = None
        if reads_draft:
            q, _ = _law(models.draft, context.ids, texts, WAYS[way], temperature, None, p.shape[-1])
            q = q.to(p.device)
            for name, figures in moves_of(p, q).items():
                moved.setdefault(name, []).append(figures.cpu()[pick])
        copies = torch.full(p.shape[:2], -1, device=p.device)
        if WAYS[way].source == "hybrid":
            for i, text in enumerate(texts):
                copies[i, : len(text)] = torch.tensor(copied(context.ids, text))
        texts_of = {"seen": _seen(context.ids, texts, p), "copied": _only(copies, p.shape[-1])}
        weights = torch.stack([p, p.square()], dim=2)
        tokens = torch.tensor([[*text, *[0] * (p.shape[1] - len(text))] for text in texts], device=p.device)
        for name, members in (sets_of(p, q) | texts_of).items():
            found = _figures(weights, members, tokens, SLACK * rounding.typical / temperature, doubt)
            inside.setdefault(name, []).append(found[pick])
        marks += [(at, way, one.modelled[at], at == one.bonus) for one in part for at in range(len(one.tokens))]
        marked.append(torch.stack([copies >= 0, doubt < CLEAR], dim=-1).cpu()[pick])
    position, ways, modelled, bonus = torch.tensor(marks).T
    columns = {name: torch.cat(parts).unbind(1) for name, parts in inside.items()}
    return Table(
        position,
        ways,
        modelled.bool(),
        bonus.bool(),
        *torch.cat(marked).unbind(1),
        sets={name: Draws(hit > 0, chance, slack) for name, (hit, chance, slack) in columns.items()},
        moved={name: torch.cat(parts) for name, parts in moved.items()},
    )


def _parts(drawn: Sequence[Continuation]) -> Iterator[tuple[Context, int, list[Continuation]]]:
    """Those of one context and way, at most `READ` at once. A row without tokens has nothing to read."""
    groups: dict[tuple[Context, int], list[Continuation]] = {}
    for one in drawn:
        if one.tokens:
            groups.setdefault((one.context, one.way), []).append(one)
    for (context, way), group in groups.items():
        group.sort(key=lambda one: one.tokens)
        yield from ((context, way, group[i : i + READ]) for i in range(0, len(group), READ))


def sets_of(p: torch.Tensor, q: torch.Tensor | None) -> dict[str, torch.Tensor]:
    """Bool, of the shape of p `[..., vocabulary]`: the sets that follow from p and q."""
    best = torch.arange(p.shape[-1], device=p.device) == p.argmax(-1, keepdim=True)
    found = {"best": best, "rare": p < RARE, "low": p.cumsum(-1) <= 0.5}
    return found if q is None else {"draft": q > p, "left": q < p / 2, **found}


def moves_of(p: torch.Tensor, q: torch.Tensor) -> dict[str, torch.Tensor]:
    """By `MOVED`, float64 `[...]`: across "draft", "left" and "left"."""
    above, left = (p - q).clamp(min=0), q < p / 2

    def mass(weights: torch.Tensor, members: torch.Tensor) -> torch.Tensor:
        return (weights * members).sum(-1, dtype=torch.float64)

    apart, lacking = above.sum(-1, dtype=torch.float64), mass(above, left)
    among_above = mass(p, left) / mass(p, p > q).clamp(min=1e-30)
    moves = (apart, lacking - apart * mass(p, left), lacking - apart * among_above)
    return dict(zip(MOVED, moves, strict=True))


def _law(model, ids, texts, way: Way, temperature: float, rounding: Rounding | None, rows: int | None = None):
    """Float32 `[texts, longest, vocabulary]`, and what rounding may move across a cut, float64 `[texts, longest]`."""
    logits = in_rows(continuations(model, ids, texts), rows)
    width = logits.shape[1]
    whole = torch.tensor([[*ids, *text, *[0] * (width - len(text))] for text in texts], device=logits.device)
    scores = way.scores(logits, whole, len(ids), temperature)
    doubt = None
    if rounding is not None:
        doubt = way.doubtful(scores, *(SLACK * x / temperature for x in (rounding.typical, rounding.largest)))
    return way.cut(scores).softmax(-1), doubt


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


def _seen(ids: Sequence[int], texts: list[tuple[int, ...]], p: torch.Tensor) -> torch.Tensor:
    """Bool, of the shape of p `[texts, longest, vocabulary]`."""
    seen = torch.zeros_like(p, dtype=torch.bool)
    seen[:, :, list(ids)] = True
    for i, text in enumerate(texts):
        for at in range(1, len(text)):
            seen[i, at, list(text[:at])] = True
    return seen


def _only(tokens: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Bool `[..., vocabulary]`: the set that holds this token, or none for −1."""
    return torch.arange(vocabulary, device=tokens.device) == tokens[..., None]


def _figures(weights: torch.Tensor, members: torch.Tensor, tokens: torch.Tensor, slack: float, doubt: torch.Tensor):
    """Float64 `[texts, longest, 3]`: whether the token drawn is a member, the members' probability, its slack.

    To first order, noise of σ in every score moves the probability π of a set A by σ·√Σ p²(1_A − π)², and that sum is
    (1 − 2π)·Σ_A p² + π²·Σ p².

    Args:
        weights: float32 `[texts, longest, 2, vocabulary]`, p and p².
    """
    inside = members.gather(2, tokens[:, :, None]).squeeze(2).double()
    chance, squares = (weights @ members.float()[..., None]).squeeze(-1).double().unbind(-1)
    chance = chance.clamp(max=1)
    moved = (1 - 2 * chance) * squares + chance.square() * weights[:, :, 1].sum(-1, dtype=torch.float64)
    return torch.stack([inside, chance, slack * moved.clamp(min=0).sqrt() + doubt], dim=-1).cpu()
