"""Copies of what callers hand in and rows must not share: processors and stopping criteria that keep state."""

import copy

import torch
from transformers import PreTrainedTokenizerBase

from .errors import SpecUnsupportedError


def own_copy(thing, kind: str):
    """A deep copy that shares neural modules and tokenizers: they are not the thing's own state.

    Raises:
        SpecUnsupportedError: naming the `kind` ("logits processor", "stopping criterion").
    """
    shared: dict[int, object] = {}
    _collect_shared(thing, shared, set())
    try:
        return copy.deepcopy(thing, shared)
    except Exception as error:
        raise SpecUnsupportedError(
            f"The {kind} {type(thing).__name__} cannot be copied ({error}), so that its state would be changed by "
            "drafted tokens or by other rows of the batch. Give it a __deepcopy__, or decode without spec_strategy "
            "(a stopping criterion: or pass one prompt at a time)."
        ) from error


def _collect_shared(value, found: dict[int, object], seen: set[int]) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.nn.Module, PreTrainedTokenizerBase)):
        found[id(value)] = value
    elif isinstance(value, dict):
        for item in value.values():
            _collect_shared(item, found, seen)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _collect_shared(item, found, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        _collect_shared(vars(value), found, seen)
