"""How many tokens to draft."""

from .base import Choice, Length, Terms
from .constant import ConstantLength
from .goodput import GoodputLength
from .heuristic import HeuristicLength
from .knowledge import Knowledge
from .target_rate import TargetRateLength

SCHEDULES: dict[str, type[Length]] = {
    "goodput": GoodputLength,
    "constant": ConstantLength,
    "heuristic": HeuristicLength,
    "heuristic_transient": HeuristicLength,  # transformers' name for what is always so here: kept in the call
    "target-rate": TargetRateLength,
}
"""What `num_assistant_tokens_schedule=` accepts. `num_assistant_tokens` is the first argument of each."""

__all__ = ["SCHEDULES", "Choice", "GoodputLength", "Knowledge", "Length", "TargetRateLength", "Terms"]
