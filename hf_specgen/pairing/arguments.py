"""What load_pair can tell of its arguments before it looks at a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..checkpoints.memory import DTYPE_BYTES

if TYPE_CHECKING:
    import torch

TAKEN = {
    "dtype": "dtype=",
    "torch_dtype": "dtype=",
    "device_map": "device_map= or draft_device=",
    "max_memory": "max_memory=",
    "quantization_config": "target_quantization= or draft_quantization=",
    "revision": 'a name with it, "org/name@revision"',
    "gguf_file": "the path of the file as the model",
}
"""Arguments of `from_pretrained` that load_pair sets, and what to pass to it instead."""


def check_defaults(defaults: dict[str, Any]) -> None:
    """Raises TypeError, ValueError for wrong names and values."""
    from hf_specgen.config import SpecConfig, take_settings

    left = dict(defaults)
    given = left.pop("spec_config", None)
    take_settings(left, *([] if given is None else [SpecConfig.of(given)]))
    if left:
        raise TypeError(f"load_pair() got {sorted(left)}, which are no arguments of its own, nor speculative ones.")


def checked_kwargs(name: str, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy. Code from a checkpoint runs only if it says so: transformers would ask at the terminal.

    Raises:
        TypeError: no mapping, or one with an argument that load_pair has itself.
    """
    if kwargs is None:
        kwargs = {}
    if not isinstance(kwargs, Mapping):
        raise TypeError(f"{name} is a dict of arguments for from_pretrained, not {kwargs!r}.")
    for taken in kwargs.keys() & TAKEN.keys():
        raise TypeError(f"{name} cannot hold {taken!r}: pass {TAKEN[taken]} to load_pair().")
    return {"trust_remote_code": False, **kwargs}


def checked_dtype(dtype: Any) -> torch.dtype | str:
    """ "auto", or torch's dtype of a name. Raises ValueError for what no model is loaded in."""
    import torch

    if isinstance(dtype, str) and dtype == "auto":
        return dtype
    name = str(dtype).removeprefix("torch.")
    if not isinstance(dtype, (str, torch.dtype)) or name not in DTYPE_BYTES:
        raise ValueError(f"dtype={dtype!r} is none that a model is loaded in: pass 'auto' or {', '.join(DTYPE_BYTES)}.")
    return getattr(torch, name)


def check_sizes(batch_size: Any, length: Any, reserve: Any) -> None:
    """Raises ValueError."""
    from ..planning.devices import parse_size

    for name, value in (("batch_size", batch_size), ("length", length)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name}={value!r}: pass a whole number of at least 1.")
    parse_size(reserve)
