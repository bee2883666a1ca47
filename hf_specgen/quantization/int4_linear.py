"""A Linear layer with 4-bit weights on a CPU, from torch alone: the head of drafts whose format leaves it dense."""

import torch
from torch import nn

from .rounding import round_to_nearest

GROUPS = (128, 64, 32)
ROWS = 16  # the kernel wants a multiple of it


class Int4Linear(nn.Module):
    """In bfloat16, one token costs a quarter of the dense layer's time; in other dtypes the kernel is slow."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.in_features, self.out_features, self.bias = linear.in_features, linear.out_features, linear.bias
        self.group = group_of(linear.in_features)
        weight = nn.functional.pad(linear.weight.data, (0, 0, 0, -self.out_features % ROWS))
        codes, scale, zero = round_to_nearest(weight, self.group)
        levels = torch.stack([scale, (8 - zero) * scale], -1).transpose(0, 1)  # w = (code - 8) * scale + second
        self.register_buffer("packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1))
        self.register_buffer("levels", levels.contiguous().to(linear.weight.dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.reshape(-1, self.in_features).contiguous()  # a batch's last positions are not
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(flat, self.packed, self.group, self.levels)
        y = y[:, : self.out_features].reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias

    @property
    def weight(self) -> torch.Tensor:
        """For those who ask where a head is."""
        return self.packed


def group_of(*inputs: int) -> int | None:
    """The largest group that divides all these numbers of inputs; None if none does."""
    return next((group for group in GROUPS if not any(n % group for n in inputs)), None)
