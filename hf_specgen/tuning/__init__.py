"""Find a pair's best settings, and keep them: `hf-specgen tune`."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tuner import Outcome, Tuner, tune

_WHERE = {"Outcome": "tuner", "Tuner": "tuner", "tune": "tuner"}

__all__ = ["Outcome", "Tuner", "tune"]


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
