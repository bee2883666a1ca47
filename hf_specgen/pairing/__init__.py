"""Whether a draft suits a target."""

from .report import PairReport, check_pair, require_usable

__all__ = ["PairReport", "check_pair", "require_usable"]
