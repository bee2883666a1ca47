"""The target reads a round's drafts: one forward, whatever the rows' positions."""

import torch

from ..cache.reader import Reader, padded
from ..verifiers import Proposal
from .rows import Row

REREAD = 16  # committed tokens that may be read again and again in front of drafts before they get a forward


def score(target: Reader, rows: list[Row], proposal: Proposal, widths: list[int]) -> torch.Tensor:
    """Logits after each row's last token, each of its drafted ones and each of its alternatives, `[rows, width + 1 +
    alternatives, vocabulary]`.

    Args:
        widths: how many drafted tokens each row can use.
    """
    if target.cache.states is not None:
        return _with_states(target, rows, proposal)
    pending = torch.tensor([[row.tokens[-1]] for row in rows], device=proposal.tokens.device)
    ids = torch.cat([pending, proposal.read], dim=1)
    reach = [min(width, proposal.width) + 1 for width in widths]  # perhaps more than was drafted: commit rolls back
    beside = None if proposal.alternatives is None else proposal.alternatives.places.clamp(min=0)
    return target.read(ids.to(target.device), reach, beside=beside)


def _with_states(target: Reader, rows: list[Row], proposal: Proposal) -> torch.Tensor:
    """For a target whose states go back to where a block began: what was accepted of it is read again, in front of the
    new draft; and on its own once it is long."""
    for_sure = [text[:-1] for text in _unread(target, rows)]
    if max(map(len, for_sure)) >= REREAD:
        _read(target, [text if len(text) >= REREAD else [] for text in for_sure])
    known = _unread(target, rows)
    drafted = zip(proposal.tokens.tolist(), proposal.counts.tolist(), strict=True)
    logits = _read(target, [text + tokens[:count] for text, (tokens, count) in zip(known, drafted, strict=True)])
    first = [len(text) - 1 for text in known]
    target.collected = [slots[n:] for slots, n in zip(target.collected, first, strict=True)]
    slots = (torch.tensor(first)[:, None] + torch.arange(proposal.width + 1)).clamp(max=logits.shape[1] - 1)
    return logits[torch.arange(len(rows))[:, None].to(logits.device), slots.to(logits.device)]


def _unread(target: Reader, rows: list[Row]) -> list[list[int]]:
    """The committed tokens of each row that the target has not read; the last one always."""
    return [row.tokens[n - row.unseen :] for row, n in zip(rows, target.lengths, strict=True)]


def _read(target: Reader, texts: list[list[int]]) -> torch.Tensor:
    return target.read(padded(texts, target.device), list(map(len, texts)))
