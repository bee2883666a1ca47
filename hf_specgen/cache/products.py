"""Products of weights and a few positions, as a CPU computes them fastest.

A linear layer gives torch the positions first, and its CPU kernels then copy the weights into an order of their own in
every forward. Given the weights first (W·xᵀ in place of x·Wᵀ), they copy the few positions. Measured for bfloat16 on a
Xeon with AMX (torch 2.13.0), layer by layer: 0.64 to 0.95 of the time for 2 to 16 positions and 4 to 29 million
weights, 1.0 to 1.2 for 0.3 to 0.9 million; for a single position, as a vector, 0.63 to 0.88 for all of these. The same
numbers up to rounding, as with a forward of another width. Float32 and float16 would be slower.

Inside our own forwards only: a copy computes in the model's place, which shares all its tensors.
"""

import functools

import torch
from torch.nn.functional import linear
from torch.nn.modules.module import _has_any_global_hook

from .. import compat

DTYPE = torch.bfloat16
LEAST, LEAST_OF_SEVERAL = 2**18, 2**20
"""Weights of a layer, from which on it is faster: for one position, and for several."""
MOST = 16
"""Positions, up to which it is."""
RECORDING = "transformers.utils.output_capturing"
"""Where transformers' own hooks come from. They do nothing unless something is recorded."""


def few(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """`torch.nn.functional.linear`, with the weights first where there are few positions."""
    positions = x.numel() // x.shape[-1]
    large = weight.numel() >= (LEAST if positions == 1 else LEAST_OF_SEVERAL)
    fits = 0 < positions <= MOST and large and x.dtype == weight.dtype == DTYPE
    if not fits or not pays_on(x.device):
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

    Only modules that transformers and torch have written are copied: others may keep state, or know each other. So
    are none that have hooks, which would be shown the copy; that compute otherwise (accelerate's offloading, a patch);
    or that were compiled. A copy sees new tensors and values at once, but not modules put in another's place.
    """
    if not pays_on(model.device) or _recorded(model) or _has_any_global_hook():
        return model
    return _copied(model, {})


def pays_on(device: torch.device) -> bool:
    """A CPU with instructions for bfloat16. Kernels of others are slower with the weights first."""
    return device.type == "cpu" and torch.backends.mkldnn.enabled and _has_instructions()


@functools.cache
def _has_instructions() -> bool:
    return torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _recorded(model) -> bool:
    """Whether every forward keeps hidden states or the like. A copy that is the first to do so (in a session, where no
    prompt is read) would be given transformers' hooks for it, and then the model once more."""
    config = compat.text_config(model)
    return any(getattr(config, f"output_{name}", False) for name in ("hidden_states", "attentions", "router_logits"))


def _copied(module: torch.nn.Module, known: dict[int, torch.nn.Module]) -> torch.nn.Module:
    """The module with `FewLinear` for its large layers; itself if it has none. What is shared stays so."""
    if id(module) not in known:
        known[id(module)] = _copied_anew(module, known) if _is_plain(module) else module
    return known[id(module)]


def _copied_anew(module: torch.nn.Module, known: dict[int, torch.nn.Module]) -> torch.nn.Module:
    if type(module) is torch.nn.Linear:
        if not _is_large(module.weight):
            return module
        found = shallow(module)
        found.__class__ = FewLinear
        return found
    parts = {name: part if part is None else _copied(part, known) for name, part in module._modules.items()}
    if all(part is parts[name] for name, part in module._modules.items()):
        return module
    found = shallow(module)
    found._modules = parts
    return found


def _is_plain(module: torch.nn.Module) -> bool:
    own = type(module).__module__.startswith(("transformers.models.", "torch.nn.modules."))
    itself = "forward" not in vars(module) and module._compiled_call_impl is None
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return own and itself and all(getattr(hook, "__module__", None) == RECORDING for hook in hooks)


def _is_large(weight: torch.Tensor) -> bool:
    plain = type(weight) is torch.nn.Parameter and weight.device.type == "cpu"
    return plain and weight.dtype == DTYPE and weight.numel() >= LEAST


def shallow(module: torch.nn.Module) -> torch.nn.Module:
    """A copy that shares all that the module has, and whose parts can be replaced. Nothing compiled computes for it."""
    copied = object.__new__(type(module))
    vars(copied).update(vars(module), _modules=dict(module._modules), _compiled_call_impl=None)
    return copied
