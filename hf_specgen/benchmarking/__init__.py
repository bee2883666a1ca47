"""Measure a pair against plain decoding, stock assisted decoding and other packages: `hf-specgen bench`."""

from importlib import import_module
from typing import TYPE_CHECKING

from .record import Cell, Record

if TYPE_CHECKING:
    from .bench import Bench, run_bench
    from .settings import Settings
    from .store import read_records

_WHERE = {"Bench": "bench", "Settings": "settings", "read_records": "store", "run_bench": "bench"}

__all__ = ["Bench", "Cell", "Record", "Settings", "read_records", "run_bench"]


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
