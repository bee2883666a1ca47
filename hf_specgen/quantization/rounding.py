"""Weights as 4-bit integers: groups along a row, each with a scale and a zero point."""

import torch

SHRINKS = tuple(1 - i / 20 for i in range(9))


def round_to_nearest(
    weight: torch.Tensor, group: int, shrink: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes int32 `[out, in]` of 0 to 15, scale and zero float32 `[out, in / group]`: weight ≈ (code − zero) · scale.

    Args:
        shrink: the share of each group's range that the 16 levels span; weights outside are clipped.
    """
    w = weight.float().unflatten(1, (-1, group))
    low, high = w.amin(-1).clamp(max=0) * shrink, w.amax(-1).clamp(min=0) * shrink
    scale = ((high - low) / 15).clamp(min=1e-5).half().float()  # as it is stored
    zero = (-low / scale).round().clamp(0, 15)
    codes = (w / scale[..., None] + zero[..., None]).round_().clamp_(0, 15)
    return codes.flatten(1).int(), scale, zero


def restore(codes: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The weights float32 `[out, in]` that the integers stand for."""
    grouped = codes.unflatten(1, (scale.shape[1], -1))
    return ((grouped - zero[..., None]) * scale[..., None]).flatten(1)


def round_for_inputs(
    weight: torch.Tensor, group: int, power: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`round_to_nearest`, each group with the range that costs the outputs least.

    Args:
        power: float32 `[in]`, the mean square of each input.
    """
    best = round_to_nearest(weight, group)
    least = _cost(weight, best, power)
    for shrink in SHRINKS[1:]:
        found = round_to_nearest(weight, group, shrink)
        cost = _cost(weight, found, power)
        better = cost < least
        least = torch.where(better, cost, least)
        chosen = (better.repeat_interleave(group, 1), better, better)
        best = tuple(torch.where(c, new, old) for c, new, old in zip(chosen, found, best, strict=True))
    return best


def _cost(weight, rounded, power: torch.Tensor) -> torch.Tensor:
    """Squared error of the outputs that each group causes, `[out, in / group]`, if inputs are independent."""
    error = (restore(*rounded) - weight.float()).square_() * power
    return error.unflatten(1, (rounded[1].shape[1], -1)).sum(-1)
