"""How many tokens to draft."""

from .base import Length
from .constant import ConstantLength
from .heuristic import HeuristicLength

SCHEDULES: dict[str, type[Length]] = {
    "constant": ConstantLength,
    "heuristic": HeuristicLength,
    "heuristic_transient": HeuristicLength,  # transformers' name for what is always so here: kept in the call
}
"""What `num_assistant_tokens_schedule=` accepts."""

__all__ = ["SCHEDULES", "Length"]
