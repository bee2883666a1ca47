"""Every knob of speculative decoding: its default, its meaning, its check, and where its value comes from.

Precedence, written once, of those that transformers knows too: the call > the GenerationConfig given to the call >
the defaults of `enable` > the target's generation_config > the draft's > the defaults below. Ours come from the call,
or from `enable`.
"""

import copy
from dataclasses import dataclass, fields
from typing import Any

import torch

from .errors import SpecUnsupportedError
from .lengths import SCHEDULES, ConstantLength, HeuristicLength, Length
from .session import SpecSession
from .verifiers import STRATEGIES

FALLBACKS = ("plain",)
SOURCES = ("hybrid", "draft", "lookup")


@dataclass(frozen=True)
class SpecConfig:
    """Settings of one call.

    Attributes:
        spec_strategy: acceptance rule, one of `STRATEGIES`. All of them keep the target's own law.
        spec_fallback: None raises `SpecUnsupportedError` for what cannot be decoded exactly; "plain" warns once and
            decodes without the draft.
        spec_source: where drafts come from, one of `SOURCES`: "hybrid" (per row and round the text's own repetitions or
            the draft, whichever promises more), "draft", "lookup" (needs no draft). None: "draft" with a constant
            schedule, else "hybrid".
        num_assistant_tokens: draft tokens per round, K: at most (goodput), at first (heuristic, target-rate), always
            (constant).
        num_assistant_tokens_schedule: one of `SCHEDULES`, or a `Length`; kept in the call, never written back to a
            model. None: "constant" where a number of tokens was given, else "goodput".
        prompt_lookup_num_tokens: tokens that are copied from the text in a round, at most. Without a draft, it asks for
            lookup.
        max_matching_ngram_size: the longest n-gram that lookup searches for first.
        draft_vocab_size: the draft computes logits for so many of its tokens only (or for a list of ids), and for those
            of the prompt.
        assistant_confidence_threshold: a row stops drafting, before drawing, once the draft's most probable token has
            less than this probability. None or 0 = off.
        generator: a `torch.Generator`, or a list of one (or None) per row; None = torch's global one.
        spec_session: keeps both models' caches from call to call, so that a turn reads only what is new.
    """

    spec_strategy: str
    spec_fallback: str | None = None
    spec_source: str | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | Length | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None
    draft_vocab_size: int | list[int] | None = None
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
        for name in ("num_assistant_tokens", "prompt_lookup_num_tokens", "max_matching_ngram_size"):
            k = getattr(self, name)
            unless(
                k is None or (isinstance(k, int) and not isinstance(k, bool) and k > 0),
                name,
                "pass an integer of at least 1 (to decode without drafts, leave out spec_strategy).",
            )
        unless(
            self.spec_source is None or named("spec_source", SOURCES),
            "spec_source",
            f"choose one of {', '.join(SOURCES)}.",
        )
        schedule = self.num_assistant_tokens_schedule
        unless(
            schedule is None or isinstance(schedule, Length) or named("num_assistant_tokens_schedule", SCHEDULES),
            "num_assistant_tokens_schedule",
            f"choose one of {', '.join(SCHEDULES)}, or pass a hf_specgen Length.",
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

    @property
    def length(self) -> Length:
        """A fresh rule for one call."""
        schedule, k = self.num_assistant_tokens_schedule, self.num_assistant_tokens
        if isinstance(schedule, Length):
            return copy.deepcopy(schedule)
        rule = SCHEDULES[schedule or ("goodput" if k is None else "constant")]
        return rule() if k is None else rule(k)

    @property
    def source(self) -> str:
        """Where drafts come from, if there is a draft."""
        constant = isinstance(self.length, (ConstantLength, HeuristicLength)) and self.prompt_lookup_num_tokens is None
        return self.spec_source or ("draft" if constant else "hybrid")

    @property
    def looks_up(self) -> bool:
        """Whether the text itself was asked for as a source, so that no draft is needed."""
        return self.spec_source == "lookup" or (self.spec_source is None and self.prompt_lookup_num_tokens is not None)


_OURS = (
    "spec_strategy",
    "spec_fallback",
    "spec_source",
    "draft_vocab_size",
    "generator",
    "spec_session",
)  # arguments that transformers does not know
SHARED = tuple(f.name for f in fields(SpecConfig) if f.name not in _OURS)
"""Also fields of GenerationConfig."""


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
