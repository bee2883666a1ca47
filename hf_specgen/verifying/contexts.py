"""Where sampled tokens are tested: beginnings of the target's own answers after which a rule has most to decide.

Chosen from both models' laws along plain text, before anything is drawn. For drafts of the model: with a total
variation of d between the two laws, d is what accepting everything would move. With p(A) for the target's probability
of the tokens that the draft finds likelier, d·p(A) is what a draw from p in place of the residual would move. Where
d·p(A) is largest, acceptance and rejection are frequent too: 1 − d is at least p(A). For drafts that are copied from
the text: where the copied token, accepted with probability p, has the largest p·(1 − p).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .. import compat
from ..benchmarking.calls import Models
from ..cache.reader import device_of, read_prompt
from ..drafters.lookup import NGRAM, TextIndex
from ..lengths.base import PerRow
from ..pairing import pair_up


@dataclass(frozen=True)
class Context:
    """The first `after` tokens of the answer to a prompt; `ids`: of prompt and answer. `source`: of the drafts that it
    was chosen for, "draft" or "hybrid"."""

    prompt: int
    source: str
    after: int
    ids: tuple[int, ...]


def unread(models: Models, longest: int) -> str | None:
    """Why the draft's law of texts of up to `longest` tokens is not to be had, or None."""
    if pair_up(models.target, models.draft, models.tokenizer, models.assistant_tokenizer) is not None:
        return "its ids are not the target's"
    if longest > (room := compat.context_length(models.draft)):
        return f"its context of {room} tokens is shorter than texts of up to {longest}"
    return None


def choose(
    models: Models,
    prompt: int,
    ids: Sequence[int],
    answer: Sequence[int],
    temperature: float,
    drafted: int,
    reads_draft: bool,
) -> list[Context]:
    """For each source the place in the answer after whose next token `drafted` ones have the largest mean of d·p(A), or
    of p·(1 − p).

    Without the draft's law (see `unread`), in place of the first: where the target is least certain.
    """
    p = law_along(models.target, ids, answer, temperature)
    if reads_draft:
        q = law_along(models.draft, ids, answer, temperature, p.shape[1]).to(p.device)
        worth = (p - q).clamp(min=0).sum(-1) * (p * (q > p)).sum(-1)
    else:
        worth = 1 - p.amax(-1)
    copies = torch.tensor(copied(ids, answer), device=p.device)
    copy = p.gather(1, copies.clamp(min=0)[:, None]).squeeze(1) * (copies >= 0)
    found = []
    for source, worths in (("draft", worth), ("hybrid", copy * (1 - copy))):
        after = 0
        if len(answer) > drafted:
            after = int(worths[1:].unfold(0, drafted, 1).mean(-1).argmax())
        found.append(Context(prompt, source, after, (*ids, *answer[:after])))
    return found


def copied(ids: Sequence[int], text: Sequence[int]) -> list[int]:
    """The token that lookup would copy first after each beginning of a text that follows `ids`; −1 where it does not
    draft (the model does)."""
    index, tokens, found = TextIndex(NGRAM), list(ids), []
    for token in text:
        index.enter(tokens)
        place, matched = index.match()
        found.append(tokens[place] if matched >= PerRow.MATCH else -1)
        tokens.append(token)
    return found


def law_along(
    model, ids: Sequence[int], answer: Sequence[int], temperature: float, rows: int | None = None
) -> torch.Tensor:
    """The model's law of each token of an answer, float32 `[tokens, vocabulary]`. `rows`: see `in_rows`."""
    logits, _ = read_prompt(model, known_ids(model, [[*ids, *answer[:-1]]]), None, len(answer))
    return (in_rows(logits[0], rows) / temperature).softmax(-1)


def known_ids(model, texts: list[list[int]]) -> torch.Tensor:
    """Where the model takes them. An id that a draft has no embedding for becomes its last one: a text that it reads
    otherwise makes other sets to test, not other chances."""
    ids = torch.tensor(texts, device=device_of(model, torch.device("cpu")))
    return ids.clamp(max=model.get_input_embeddings().weight.shape[0] - 1)


def in_rows(logits: torch.Tensor, rows: int | None) -> torch.Tensor:
    """Float32 `[..., rows]`. `rows`: of another model, where this one has more or fewer logits (padding)."""
    logits = logits.float()
    if rows is None or logits.shape[-1] == rows:
        return logits
    return torch.nn.functional.pad(logits[..., :rows], (0, max(0, rows - logits.shape[-1])), value=-torch.inf)
