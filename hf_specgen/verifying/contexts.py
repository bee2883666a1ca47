"""Where sampled tokens are tested: beginnings of the target's own answers after which a rule has most to decide.

Chosen from both models' laws along plain text, before anything is drawn. With a total variation of d between them, d is
what accepting everything would move. With p(A) for the target's probability of the tokens that the draft finds
likelier, d·p(A) is what a draw from p in place of the residual would move. Where d·p(A) is largest, acceptance and
rejection are frequent too: 1 − d is at least p(A).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ..benchmarking.calls import Models
from ..cache.reader import device_of, read_prompt
from ..pairing import pair_up


@dataclass(frozen=True)
class Context:
    """The first `after` tokens of the answer to a prompt.

    Attributes:
        ids: of prompt and answer.
        disagreement: mean total variation between the draft's and the target's law at the tokens that are to be drafted
            behind it, along plain's text; None for a draft with other ids.
    """

    prompt: int
    after: int
    ids: tuple[int, ...]
    disagreement: float | None


def same_ids(models: Models) -> bool:
    """Whether the draft's ids are the target's."""
    return pair_up(models.target, models.draft, models.tokenizer, models.assistant_tokenizer) is None


def choose(
    models: Models, prompt: int, ids: Sequence[int], answer: Sequence[int], temperature: float, drafted: int
) -> Context:
    """The place in the answer after whose next token `drafted` ones have the largest mean of d·p(A).

    Without the draft's law: where the target is least certain.
    """
    p = law_along(models.target, ids, answer, temperature)
    if same_ids(models):
        q = law_along(models.draft, ids, answer, temperature, p.shape[1]).to(p.device)
        apart = (p - q).clamp(min=0).sum(-1)
        worth = apart * (p * (q > p)).sum(-1)
    else:
        apart, worth = None, 1 - p.amax(-1)
    after = 0
    if len(answer) > drafted:
        after = int(worth[1:].unfold(0, drafted, 1).mean(-1).argmax())
    if apart is not None and len(answer) > 1:
        apart = apart[after + 1 : after + 1 + drafted]
    return Context(prompt, after, (*ids, *answer[:after]), None if apart is None else float(apart.mean()))


def law_along(
    model, ids: Sequence[int], answer: Sequence[int], temperature: float, rows: int | None = None
) -> torch.Tensor:
    """The model's law of each token of an answer, float32 `[tokens, vocabulary]`. `rows`: see `law`."""
    logits, _ = read_prompt(model, known_ids(model, [[*ids, *answer[:-1]]]), None, len(answer))
    return law(logits[0], temperature, rows)


def known_ids(model, texts: list[list[int]]) -> torch.Tensor:
    """Where the model takes them. An id that a draft has no embedding for becomes its last one: a text that it reads
    otherwise makes other sets to test, not other chances."""
    ids = torch.tensor(texts, device=device_of(model, torch.device("cpu")))
    return ids.clamp(max=model.get_input_embeddings().weight.shape[0] - 1)


def law(logits: torch.Tensor, temperature: float, rows: int | None = None) -> torch.Tensor:
    """Float32 `[..., rows]`. `rows`: of another model, where this one has more or fewer logits (padding)."""
    logits = logits.float() / temperature
    if rows is not None and logits.shape[-1] != rows:
        missing = max(0, rows - logits.shape[-1])
        logits = torch.nn.functional.pad(logits[..., :rows], (0, missing), value=-torch.inf)
    return logits.softmax(-1)
