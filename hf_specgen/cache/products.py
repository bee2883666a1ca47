"""Products of weights and a few positions, as a CPU computes them fastest.

A linear layer gives torch the positions first, and its CPU kernels then copy the weights into an order of their own in
every forward. Given the weights first (W·xᵀ in place of x·Wᵀ), they copy the few positions. Measured for bfloat16 on a
Xeon with AMX (torch 2.13.0), layer by layer: 0.64 to 0.95 of the time for 2 to 16 positions and 4 to 29 million
weights, 1.0 to 1.2 for 0.3 to 0.9 million; for a single position, as a vector, 0.63 to 0.88 for all of these. The same
numbers up to rounding, as with a forward of another width. Not in float32 and float16 (slower up to 6 and 12).

Inside our own forwards only: a copy computes in the model's place, which shares all its tensors.
"""

import copy
import functools

import torch
from torch.nn.functional import linear

from .. import compat

DTYPE = torch.bfloat16
LEAST, LEAST_OF_SEVERAL = 2**18, 2**20
"""Weights of a layer, from which on it is faster: for one position, and for several."""
MOST = 16
"""Positions, up to which it is."""


def few(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear`, with the weights first where there are few positions."""
    positions = x.numel() // x.shape[-1]
    fits = positions == 1 or (1 < positions <= MOST and weight.numel() >= LEAST_OF_SEVERAL)
    if not fits or not x.dtype == weight.dtype == DTYPE or not pays_on(x.device):
        return linear(x, weight, bias)
    if positions == 1:
        vector = x.reshape(-1)
        found = torch.mv(weight, vector) if bias is None else torch.addmv(bias, weight, vector)
    else:
        columns = x.reshape(positions, -1).t()
        found = torch.mm(weight, columns) if bias is None else torch.addmm(bias[:, None], weight, columns)
        found = found.t().contiguous()
    return found.view(*x.shape[:-1], -1)


class FewLinear(torch.nn.Linear):
    """A linear layer that is asked for few positions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return few(x, self.weight, self.bias)


def for_few(model):
    """What computes a forward of few positions in a model's place; the model itself where nothing is gained.

    Hooks are called as ever: the copies share their modules' lists of them. What was given a forward of its own
    (accelerate's offloading, a patch) or was compiled is not copied.
    """
    return _copied(model, {}) if pays_on(model.device) and not _recorded(model) else model


def pays_on(device: torch.device) -> bool:
    """A CPU with instructions for bfloat16. Kernels of others are slower with the weights first."""
    return device.type == "cpu" and torch.backends.mkldnn.enabled and _has_instructions()


@functools.cache
def _has_instructions() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _recorded(model) -> bool:
    """Whether every forward keeps hidden states or the like: transformers would put the hooks for it on the copy once
    more."""
    config = compat.text_config(model)
    return any(getattr(config, f"output_{name}", False) for name in ("hidden_states", "attentions", "router_logits"))


def _copied(module: torch.nn.Module, known: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """The module with `FewLinear` for its large layers; itself if it has none. What is shared stays so."""
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        return module
    if id(module) not in known:
        parts = {name: part if part is None else _copied(part, known) for name, part in module._modules.items()}
        if _is_large(module):
            found = shallow(module)
            found.__class__ = FewLinear
        elif any(part is not parts[name] for name, part in module._modules.items()):
            found = shallow(module)
            found._modules = parts
        else:
            found = module
        known[id(module)] = found
    return known[id(module)]


def _is_large(module: torch.nn.Module) -> bool:
    if type(module) is not torch.nn.Linear:
        return False
    weight = module.weight
    plain = type(weight) is torch.nn.Parameter and weight.device.type == "cpu"
    return plain and weight.dtype == DTYPE and weight.numel() >= LEAST


def shallow(module: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares all that the module has, and whose parts can be replaced."""
    copied = copy.copy(module)
    copied._modules = dict(module._modules)
    return copied
