"""How many positions a forward should have: a CPU computes some numbers of them faster than smaller ones.

Measured on a Zen 4 (torch 2.13, linear layers of 0.9 to 75 million weights, against one position). float32: 2 positions
take 2.0 of its time, 3 take 2.9, 4 take 2.0 (a head: 1.7), 6 and 7 up to 3.4, 8 take 1.7 to 2.5. bfloat16: 2 positions
take 0.8 to 1.0 of one, and of weights that take no gradients (`requires_grad_(False)`, the base of an adapter) a
fifteenth. Where a processor has no such steps, the padding costs the few percent that positions cost.
"""

import torch

from .. import compat
from ..checkpoints.memory import active_experts

SLOW = {torch.float32: (2, 3, 6, 7), torch.bfloat16: (1,)}
"""Numbers of positions, over all rows, that take longer than some larger one."""
LEAST = 256
"""Hidden size from which on it matters: smaller layers take less time than the Python around them."""


def slow_counts(model) -> tuple[int, ...]:
    """Those of a model: none off the CPU, for quantized weights (their kernels differ), for experts (padding would ask
    for more of them), and where padding has no place (no position ids)."""
    config = compat.text_config(model)
    small = (getattr(config, "hidden_size", None) or 0) < LEAST
    experts = active_experts(config.to_dict()) < 1
    suffers = small or experts or getattr(model, "is_quantized", False) or not compat.takes_positions(model)
    if model.device.type != "cpu" or suffers:
        return ()
    return SLOW.get(model.dtype, ())


def fast_width(rows: int, width: int, slow: tuple[int, ...]) -> int:
    """The least width, from `width` on, at which so many rows have no slow number of positions."""
    while rows * width in slow:
        width += 1
    return width
