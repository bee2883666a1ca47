"""Scores that no token can be taken from. Only those that led to a token of the text matter."""

import torch

from ..errors import SpecNumericsError

NAN, INFINITE, MASKED = 1, 2, 3


def first_flaw(scores: torch.Tensor, accepted: torch.Tensor, sampled: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """What is wrong with the first bad one of the slots that a verdict came to (0 is nothing), and which it is.

    Args:
        scores: float32 `[rows, slots, vocabulary]`, processed.
        accepted: int64 `[rows]`; the slots 0 to `accepted` gave tokens.
        sampled: whether they were drawn. Greedy decoding takes the first of several greatest scores, infinite or not.

    Returns:
        Two int64 `[rows]`.
    """
    top = scores.amax(-1)
    flaws = NAN * top.isnan().long()
    if sampled:
        flaws += INFINITE * (top == float("inf")) + MASKED * (top == float("-inf"))
    flaws *= torch.arange(top.shape[1], device=top.device) <= accepted[:, None]
    place = (flaws > 0).long().argmax(-1)
    return flaws.gather(1, place[:, None]).squeeze(1), place


def refuse(flaw: int, row: int, position: int) -> None:
    """Raise a SpecNumericsError for a flaw other than 0."""
    if flaw == MASKED:
        raise SpecNumericsError(
            f"No token is left to draw for row {row} at position {position}: all scores are -inf. Check the logits "
            "processors, prefix_allowed_tokens_fn, and the tokens that the call suppresses."
        )
    raise SpecNumericsError(
        f"The target returned {'NaN' if flaw == NAN else 'infinite'} logits for row {row} at position {position}. "
        "Check its dtype (float16 overflows; try bfloat16) and weights, or pass remove_invalid_values=True."
    )
