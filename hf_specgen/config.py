"""Every knob of speculative decoding: its default, its meaning, its check, and where its value comes from.

Precedence, written once, of those that transformers knows too: the call > the GenerationConfig given to the call >
the defaults of `enable` > the target's generation_config > the draft's > the defaults below. Ours come from the call,
or from `enable`.
"""

from dataclasses import dataclass, fields
from typing import Any

import torch

from .errors import SpecUnsupportedError
from .lengths import SCHEDULES
from .session import SpecSession
from .verifiers import STRATEGIES

FALLBACKS = ("plain",)


@dataclass(frozen=True)
class SpecConfig:
    """Settings of one call.

    Attributes:
        spec_strategy: acceptance rule, one of `STRATEGIES`. All of them keep the target's own law.
        spec_fallback: None raises `SpecUnsupportedError` for what cannot be decoded exactly; "plain" warns once and
            decodes without the draft.
        num_assistant_tokens: draft tokens per round, K (the initial K under the heuristic schedule).
        num_assistant_tokens_schedule: one of `SCHEDULES`; kept in the call, never written back to a model.
        assistant_confidence_threshold: a row stops drafting, before drawing, once the draft's most probable token has
            less than this probability. None or 0 = off.
        generator: a `torch.Generator`, or a list of one (or None) per row; None = torch's global one.
        spec_session: keeps both models' caches from call to call, so that a turn reads only what is new.
    """

    spec_strategy: str
    spec_fallback: str | None = None
    num_assistant_tokens: int = 5
    num_assistant_tokens_schedule: str = "constant"
    assistant_confidence_threshold: float | None = None
    generator: torch.Generator | list[torch.Generator | None] | None = None
    spec_session: SpecSession | None = None

    def __post_init__(self):
        def unless(ok: bool, name: str, ask: str) -> None:
            if not ok:
                raise SpecUnsupportedError(f"{name}={getattr(self, name)!r}: {ask}")

        def named(name: str, choices) -> bool:
            return isinstance(getattr(self, name), str) and getattr(self, name) in choices

        unless(named("spec_strategy", STRATEGIES), "spec_strategy", f"choose one of {', '.join(STRATEGIES)}.")
        unless(
            self.spec_fallback is None or named("spec_fallback", FALLBACKS),
            "spec_fallback",
            'leave it out, or pass "plain".',
        )
        k = self.num_assistant_tokens
        unless(
            isinstance(k, int) and not isinstance(k, bool) and k > 0,
            "num_assistant_tokens",
            "pass an integer of at least 1 (to decode without drafts, leave out spec_strategy).",
        )
        unless(
            named("num_assistant_tokens_schedule", SCHEDULES),
            "num_assistant_tokens_schedule",
            f"choose one of {', '.join(SCHEDULES)}.",
        )
        threshold = self.assistant_confidence_threshold
        unless(
            threshold is None
            or (isinstance(threshold, (int, float)) and not isinstance(threshold, bool) and 0 <= threshold <= 1),
            "assistant_confidence_threshold",
            "pass a probability between 0 and 1, or None for off.",
        )
        session = self.spec_session
        unless(session is None or isinstance(session, SpecSession), "spec_session", "pass a hf_specgen.SpecSession().")


_OURS = ("spec_strategy", "spec_fallback", "generator", "spec_session")  # arguments that transformers does not know
SHARED = tuple(f.name for f in fields(SpecConfig) if f.name not in _OURS)  # also fields of GenerationConfig


def take_settings(kwargs: dict[str, Any], *configs) -> SpecConfig:
    """Take the speculative settings out of a call's keyword arguments (in place) and resolve each by the precedence.

    Args:
        kwargs: of `generate`; must hold `spec_strategy`.
        configs: GenerationConfigs (or None), most important first. None in a config means "not set"; None in the call
            means what it says (for the threshold: off).
    """
    found = {name: kwargs.pop(name) for name in _OURS if name in kwargs}
    for name in SHARED:
        set_in = (value for c in configs if (value := getattr(c, name, None)) is not None)
        if name in kwargs:
            found[name] = kwargs.pop(name)
            if found[name] is None and name != "assistant_confidence_threshold":
                del found[name]
        elif (value := next(set_in, None)) is not None:
            found[name] = value
    return SpecConfig(**found)
