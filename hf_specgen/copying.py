"""Copies of what callers hand in and rows must not share: processors and stopping criteria that keep state."""

import copy
import dis
import queue
import threading
from types import CellType, FunctionType, MethodType, ModuleType

import torch
from transformers import PreTrainedTokenizerBase

from .errors import SpecUnsupportedError

SHARED = (
    torch.nn.Module,
    PreTrainedTokenizerBase,
    threading.Event,
    threading.Condition,
    type(threading.Lock()),
    type(threading.RLock()),
    queue.Queue,
    queue.SimpleQueue,
)
"""What is no state of its holder, but a way to something outside."""


def own_copy(thing, kind: str):
    """A deep copy, but for what is `SHARED`. A function's variables (its closure) are copied as an object's are.

    Raises:
        SpecUnsupportedError: naming the `kind` ("logits processor", "stopping criterion").
    """
    memo: dict[int, object] = {}
    functions: list[FunctionType] = []
    _survey(thing, memo, functions, set())
    try:
        copies = [_empty_copy(function, memo) for function in functions]
        for function, copied in zip(functions, copies, strict=True):
            for cell, new in zip(function.__closure__, copied.__closure__, strict=True):
                new.cell_contents = copy.deepcopy(cell.cell_contents, memo)
        return copy.deepcopy(thing, memo)
    except Exception as error:
        raise SpecUnsupportedError(
            f"The {kind} {getattr(thing, '__name__', type(thing).__name__)} cannot be copied ({error}), so that its "
            "state would be changed by drafted tokens or by other rows of the batch. Give it a __deepcopy__, or decode "
            "without spec_strategy (a stopping criterion: or pass one prompt at a time)."
        ) from error


def _empty_copy(function: FunctionType, memo: dict[int, object]) -> FunctionType:
    """A function of the same code with variables of its own, still empty; `deepcopy` takes functions as they are."""
    cells = tuple(CellType() for _ in function.__closure__)
    copied = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__, cells)
    copied.__kwdefaults__ = function.__kwdefaults__
    memo[id(function)] = copied
    return copied


def _survey(value, memo: dict[int, object], functions: list[FunctionType], seen: set[int]) -> None:
    """Find what copies share (into `memo`) and functions that hold variables."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, SHARED):
        memo[id(value)] = value
    elif isinstance(value, FunctionType):
        if value.__closure__ and not any(_is_empty(cell) for cell in value.__closure__):
            functions.append(value)
            for cell in value.__closure__:
                _survey(cell.cell_contents, memo, functions, seen)
    elif hasattr(value, "__deepcopy__"):
        return  # says itself what a copy of it is
    elif isinstance(value, MethodType):
        _survey(value.__self__, memo, functions, seen)
    elif isinstance(value, dict):
        for item in value.values():
            _survey(item, memo, functions, seen)
    elif isinstance(value, (list, tuple, set)):
        for item in value:
            _survey(item, memo, functions, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
        _survey(vars(value), memo, functions, seen)


def _is_empty(cell: CellType) -> bool:
    try:
        return cell.cell_contents is cell
    except ValueError:
        return True


def rebinds_its_variables(thing) -> bool:
    """Whether a function has variables of its own that it sets anew (`nonlocal`)."""
    code = getattr(thing, "__code__", None)
    return code is not None and any(
        step.opname == "STORE_DEREF" and step.argval in code.co_freevars for step in dis.get_instructions(code)
    )
