"""Lossless, batched speculative decoding inside Hugging Face `generate()`.

Names are imported when first used: the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .api import SpecGenerationMixin, disable, enable
    from .checkpoints.headers import CheckpointError
    from .config import SpecConfig
    from .decoding.output import SpecGenerateEncoderDecoderOutput, SpecGenerateOutput
    from .decoding.stream import RowStreamers
    from .display import OriginText, coloured
    from .drafters import Drafter, LookupDrafter
    from .errors import SpecDraftError, SpecNumericsError, SpecUnsupportedError
    from .lengths import GoodputLength, Length, TargetRateLength
    from .measuring.measure import measure_pair
    from .measuring.measurement import Measurement
    from .pairing import PairReport, check_pair
    from .pairing.loading import Pair, load_pair
    from .pairing.recommend import recommend
    from .planning.placing import SpecMemoryError
    from .session import SpecSession
    from .stats import RowStats, SpecStats, collect_stats
    from .verifiers import Proposal, Verdict, Verifier
    from .verifying.certificate import Certificate
    from .verifying.verification import verify

__version__ = "0.1.0"

_WHERE = {
    "Certificate": "verifying.certificate",
    "CheckpointError": "checkpoints.headers",
    "Drafter": "drafters",
    "GoodputLength": "lengths",
    "Length": "lengths",
    "LookupDrafter": "drafters",
    "Measurement": "measuring.measurement",
    "OriginText": "display",
    "Pair": "pairing.loading",
    "PairReport": "pairing",
    "Proposal": "verifiers",
    "RowStats": "stats",
    "RowStreamers": "decoding.stream",
    "SpecConfig": "config",
    "SpecDraftError": "errors",
    "SpecGenerateEncoderDecoderOutput": "decoding.output",
    "SpecGenerateOutput": "decoding.output",
    "SpecGenerationMixin": "api",
    "SpecMemoryError": "planning.placing",
    "SpecNumericsError": "errors",
    "SpecSession": "session",
    "SpecStats": "stats",
    "SpecUnsupportedError": "errors",
    "TargetRateLength": "lengths",
    "Verdict": "verifiers",
    "Verifier": "verifiers",
    "check_pair": "pairing",
    "collect_stats": "stats",
    "coloured": "display",
    "disable": "api",
    "enable": "api",
    "load_pair": "pairing.loading",
    "measure_pair": "measuring.measure",
    "recommend": "pairing.recommend",
    "verify": "verifying.verification",
}

__all__ = [
    "Certificate",
    "CheckpointError",
    "Drafter",
    "GoodputLength",
    "Length",
    "LookupDrafter",
    "Measurement",
    "OriginText",
    "Pair",
    "PairReport",
    "Proposal",
    "RowStats",
    "RowStreamers",
    "SpecConfig",
    "SpecDraftError",
    "SpecGenerateEncoderDecoderOutput",
    "SpecGenerateOutput",
    "SpecGenerationMixin",
    "SpecMemoryError",
    "SpecNumericsError",
    "SpecSession",
    "SpecStats",
    "SpecUnsupportedError",
    "TargetRateLength",
    "Verdict",
    "Verifier",
    "check_pair",
    "collect_stats",
    "coloured",
    "disable",
    "enable",
    "load_pair",
    "measure_pair",
    "recommend",
    "verify",
]


def __getattr__(name: str):
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)


def __dir__():
    return sorted({*globals(), *_WHERE})
