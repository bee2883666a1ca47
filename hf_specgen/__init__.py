"""Lossless, batched speculative decoding inside Hugging Face `generate()`."""

from .api import SpecGenerationMixin, disable, enable
from .config import SpecConfig
from .decoding.output import SpecGenerateOutput
from .drafters import Drafter
from .errors import SpecDraftError, SpecNumericsError, SpecUnsupportedError
from .pairing import PairReport, check_pair
from .stats import RowStats, SpecStats, collect_stats
from .verifiers import Proposal, Verdict, Verifier

__version__ = "0.1.0"

__all__ = [
    "Drafter",
    "PairReport",
    "Proposal",
    "RowStats",
    "SpecConfig",
    "SpecDraftError",
    "SpecGenerateOutput",
    "SpecGenerationMixin",
    "SpecNumericsError",
    "SpecStats",
    "SpecUnsupportedError",
    "Verdict",
    "Verifier",
    "check_pair",
    "collect_stats",
    "disable",
    "enable",
]
