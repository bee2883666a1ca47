"""Devices on a machine that has none: every tensor says where it is, and to mix two places raises.

A torch function mode sees each call of torch on its way from Python, attributes included. Tensors lie on the CPU; the
mode keeps a label on each, answers `x.device` with it, relabels in `x.to(device)`, and hands labels on to results. Like
CUDA, it lets numbers (0-dimensional CPU tensors), CPU indices and `copy_` cross.
"""

from collections import Counter

import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CPU = torch.device("cpu")
FIRST, SECOND = torch.device("xpu", 0), torch.device("xpu", 1)  # not "cuda": timing would record events there


class WrongDeviceError(RuntimeError):
    pass


def place(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    x._place = device
    return x


def place_of(x: torch.Tensor) -> torch.device:
    return getattr(x, "_place", CPU)


class Devices(TorchFunctionMode):
    """
    Attributes:
        moved: by (from, to), the greatest number of elements that one tensor had on its way.
        seen: calls by device.
    """

    def __init__(self):
        super().__init__()
        self.moved: dict[tuple, int] = {}
        self.seen = Counter()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self._attribute(func, args[0])
        if name in ("to", "cpu", "cuda"):
            return self._move(func, name, args, kwargs)
        asked = kwargs.get("device")
        if asked is not None:
            asked = _device(asked)
            kwargs["device"] = CPU
        where = asked or self._common(name, args, kwargs)
        out = func(*args, **kwargs)
        self.seen[where] += 1
        return tree_map_only(torch.Tensor, lambda x: place(x, where), out)

    def _attribute(self, func, x: torch.Tensor):
        if func == torch.Tensor.device.__get__:
            return place_of(x)
        if func == torch.Tensor.is_cpu.__get__:
            return place_of(x).type == "cpu"
        out = func(x)
        return place(out, place_of(x)) if isinstance(out, torch.Tensor) else out

    def _move(self, func, name: str, args, kwargs):
        """`x.to(...)`, `x.cpu()`, `x.cuda()`: wherever it goes, the numbers are copied on the CPU."""
        x, *rest = args
        target = kwargs.pop("device", None)
        if name != "to":
            func, target, rest = torch.Tensor.to, name, []
        elif rest and isinstance(rest[0], torch.Tensor):
            target, rest[0] = place_of(rest[0]), rest[0].dtype
        elif rest and not isinstance(rest[0], torch.dtype):
            target = rest.pop(0)
        target = place_of(x) if target is None else _device(target)
        if target != place_of(x):
            route = str(place_of(x)), str(target)
            self.moved[route] = max(self.moved.get(route, 0), x.numel())
            kwargs["copy"] = True  # the other place has its own
        return place(func(x, CPU, *rest, **kwargs), target)

    def _common(self, name: str, args, kwargs) -> torch.device:
        """Where a call computes."""
        first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)), None)
        if first is None:
            return CPU
        if name in ("__getitem__", "__setitem__"):
            index = [x for x in tree_leaves(args[1]) if isinstance(x, torch.Tensor)]
            self._check(name, [first, *(i for i in index if place_of(i) != CPU)])
            written = args[2:] if index else ()  # without a tensor among the indices it is copied, from anywhere
            return self._check(name, [first, *written])
        if name == "copy_":
            return place_of(first)
        return self._check(name, [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)])

    def _check(self, name: str, tensors: list) -> torch.device:
        tensors = [x for x in tensors if isinstance(x, torch.Tensor)]
        heavy = {place_of(x) for x in tensors if x.dim() or place_of(x) != CPU}
        if len(heavy) > 1:
            shapes = [(tuple(x.shape), str(place_of(x))) for x in tensors]
            raise WrongDeviceError(f"{name} was given tensors on different devices: {shapes}")
        return heavy.pop() if heavy else CPU


class Carrier(AlignDevicesHook):
    """Brings a module's inputs to its weights, as accelerate does; the weights are there already."""

    def init_hook(self, module):
        return module


def _device(x) -> torch.device:
    return torch.device("xpu", x) if isinstance(x, int) else torch.device(x)


def settle(model, plan: dict[str, torch.device] | torch.device, same_device: bool = True):
    """Put a model on a device, or its parts on several, with the hooks that accelerate's `dispatch_model` gives them.

    Args:
        plan: device by name of submodule, in the order in which they run.
        same_device: whether the model's output goes to where its input was.
    """
    parts = plan if isinstance(plan, dict) else {"": plan}
    for name, device in parts.items():
        part = model.get_submodule(name)
        for x in (*part.parameters(), *part.buffers()):
            place(x, device)
        if name:
            add_hook_to_module(part, Carrier(device))
    if isinstance(plan, dict):
        first = next(iter(plan.values()))
        skipped = model._skip_keys_device_placement
        add_hook_to_module(model, Carrier(first, io_same_device=same_device, skip_keys=skipped))
        model.hf_device_map = {name: str(device) for name, device in plan.items()}
    return model
