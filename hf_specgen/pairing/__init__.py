"""Whether a draft suits a target, and how both get into memory."""

from .check import check_pair, pair_up
from .report import PairReport, require_usable

__all__ = ["PairReport", "check_pair", "pair_up", "require_usable"]
