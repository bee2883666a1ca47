"""Every knob of speculative decoding: its default, its meaning, its check, and where its value comes from.

Precedence, written once: the call > the `spec_config` of the call > the GenerationConfig given to the call > the
defaults of `enable` > the `spec_config` of `enable` > the target's generation_config > the draft's > the defaults
below. GenerationConfigs are asked for what transformers knows too (`SHARED`). A call with a `spec_config` of its own
does not look at that of `enable`.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from .errors import SpecUnsupportedError
from .lengths import SCHEDULES, ConstantLength, HeuristicLength, Knowledge, Length
from .lengths.undrafted import Undrafted
from .session import SpecSession
from .verifiers import STRATEGIES

if TYPE_CHECKING:
    from .tuning.tuned import Tuned

FALLBACKS = ("plain",)
SOURCES = ("hybrid", "draft", "lookup", "none")


@dataclass(frozen=True)
class SpecConfig:
    """Settings of calls: of one, or those that `hf-specgen tune` has found by temperature and batch size (`tuned`).

    ```python
    target.generate(**inputs, assistant_model=draft, spec_config="folder")  # that of save_pretrained, or of tune --out
    ```

    Attributes:
        spec_strategy: acceptance rule, one of `STRATEGIES`. All of them keep the target's own law.
        spec_fallback: None raises `SpecUnsupportedError` for what cannot be decoded exactly; "plain" warns once and
            decodes without the draft; where tokens are drawn and there is a `generator`, which plain decoding does not
            take, it raises all the same.
        spec_source: where drafts come from, one of `SOURCES`: "hybrid" (per row and round the text's own repetitions or
            the draft, whichever promises more), "draft", "lookup" (needs no draft), "none" (decodes token by token).
            None: "draft" with a constant or the heuristic schedule and no `prompt_lookup_num_tokens`, else
            "hybrid".
        num_assistant_tokens: draft tokens per round, K: at most (goodput), at first (heuristic, target-rate), always
            (constant).
        num_assistant_tokens_schedule: one of `SCHEDULES`, alone or with its arguments (`{"name": "target-rate", "rate":
            0.8}`), or a `Length`; kept in the call, never written back to a model. None: "constant" where a number of
            tokens was given, else "goodput".
        prompt_lookup_num_tokens: tokens that are copied from the text in a round, at most. Without a draft, it asks for
            lookup.
        max_matching_ngram_size: the longest n-gram that lookup searches for first.
        draft_vocab_size: the draft computes logits for so many of its tokens only (or for a list of ids), and for those
            of the prompt. None: all; of a large vocabulary, where the schedule is "goodput" and the head is much of a
            draft's step, the frequent ones while the text is made of them (see `drafters.frequent`).
        assistant_confidence_threshold: a row stops drafting, before drawing, once the draft's most probable token has
            less than this probability. None or 0 = off.
        compile: True compiles the steps of both models (torch.compile; CUDA graphs on a GPU), once per model and shape
            of a step. What cannot be compiled decodes as without it, with one warning. None: False.
        generator: a `torch.Generator`, or a list of one (or None) per row; None = torch's global one.
        spec_session: keeps both models' caches from call to call, so that a turn reads only what is new.
        knowledge: costs and acceptance to start from, where a session does not know better.
        off_reason: why nothing is to be drafted, where `spec_source` is "none".
        tuned: which pair was tuned, and all the settings that were found; the ones above are then the first of them.
    """

    spec_strategy: str
    spec_fallback: str | None = None
    spec_source: str | None = None
    num_assistant_tokens: int | None = None
    num_assistant_tokens_schedule: str | Mapping[str, Any] | Length | None = None
    prompt_lookup_num_tokens: int | None = None
    max_matching_ngram_size: int | None = None
    draft_vocab_size: int | list[int] | None = None
    assistant_confidence_threshold: float | None = None
    compile: bool | None = None
    generator: torch.Generator | list[torch.Generator | None] | None = None
    spec_session: SpecSession | None = None
    knowledge: Knowledge | None = field(default=None, repr=False)
    off_reason: str | None = None
    tuned: Tuned | None = field(default=None, repr=False)

    def __post_init__(self):
        def unless(ok: bool, name: str, ask: str) -> None:
            if not ok:
                raise SpecUnsupportedError(f"{name}={getattr(self, name)!r:.100}: {ask}")

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
        size = self.draft_vocab_size
        listed = isinstance(size, (list, tuple)) and len(size) > 0 and all(type(i) is int for i in size)
        unless(
            size is None or listed or (type(size) is int and size > 0),
            "draft_vocab_size",
            "pass how many of the first tokens to keep, at least 1, or a list of token ids that is not empty.",
        )
        schedule = self.num_assistant_tokens_schedule
        if isinstance(schedule, Mapping):
            _check_schedule(schedule)
        else:
            unless(
                schedule is None or isinstance(schedule, Length) or named("num_assistant_tokens_schedule", SCHEDULES),
                "num_assistant_tokens_schedule",
                f"choose one of {', '.join(SCHEDULES)}, or pass a hf_specgen Length.",
            )
        if not isinstance(schedule, Length):
            self.length  # noqa: B018 (a rule may refuse its numbers)
        threshold = self.assistant_confidence_threshold
        unless(
            threshold is None
            or (isinstance(threshold, (int, float)) and not isinstance(threshold, bool) and 0 <= threshold <= 1),
            "assistant_confidence_threshold",
            "pass a probability between 0 and 1, or None for off.",
        )
        unless(self.compile is None or isinstance(self.compile, bool), "compile", "pass True or False.")
        session = self.spec_session
        unless(session is None or isinstance(session, SpecSession), "spec_session", "pass a hf_specgen.SpecSession().")

    @property
    def length(self) -> Length:
        """A fresh rule for one call."""
        schedule, k = self.num_assistant_tokens_schedule, self.num_assistant_tokens
        if self.spec_source == "none":
            return Undrafted(self.off_reason or 'spec_source="none" was asked for')
        if isinstance(schedule, Length):
            return copy.deepcopy(schedule)
        if not isinstance(schedule, Mapping):
            schedule = {"name": schedule or ("goodput" if k is None else "constant")}
        options = {name: value for name, value in schedule.items() if name != "name"}
        rule = SCHEDULES[schedule["name"]]
        if k is not None:
            options[next(iter(inspect.signature(rule).parameters))] = k
        return rule(**options)

    @property
    def source(self) -> str:
        """Where drafts come from, if there is a draft."""
        constant = isinstance(self.length, (ConstantLength, HeuristicLength)) and self.prompt_lookup_num_tokens is None
        return self.spec_source or ("draft" if constant else "hybrid")

    @property
    def looks_up(self) -> bool:
        """Whether the text itself was asked for as a source, so that no draft is needed."""
        return self.spec_source == "lookup" or (self.spec_source is None and self.prompt_lookup_num_tokens is not None)

    def at(self, temperature: float, rows: int = 1) -> SpecConfig:
        """The settings for calls at this temperature (0: greedy) with so many rows: of those that were tuned, the
        nearest ones' (see `Tuned.at`)."""
        return self if self.tuned is None else self.tuned.at(temperature, rows)

    @classmethod
    def from_pretrained(cls, path: str | os.PathLike[str], task: str | None = None) -> SpecConfig:
        """What `save_pretrained` or `hf-specgen tune` has written.

        Args:
            path: the folder, or the file.
            task: take the settings of this task, where they differ from those of all.

        Raises:
            FileNotFoundError: there is none.
            SpecUnsupportedError: it is broken, of another version, or knows no such task.
        """
        from .tuning.file import read

        return read(path, task)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write `spec_config.json` into the folder, whole or not at all, and return its path.

        Raises:
            SpecUnsupportedError: a setting that belongs to one call (a generator, a session, a `Length` object).
        """
        from .tuning.file import write

        return write(self, folder)

    @classmethod
    def of(cls, given: Any) -> SpecConfig:
        """What was passed as `spec_config=`: itself, or read.

        Raises:
            FileNotFoundError, SpecUnsupportedError: see `from_pretrained`; neither a config nor a path.
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, (str, os.PathLike)):
            return cls.from_pretrained(given)
        raise SpecUnsupportedError(f"spec_config={given!r:.100}: pass a SpecConfig, or the folder that holds one.")


def _check_schedule(schedule: Mapping[str, Any]) -> None:
    """Raises SpecUnsupportedError for a schedule with arguments that is none."""
    told, name = f"num_assistant_tokens_schedule={dict(schedule)!r:.100}", schedule.get("name")
    if not isinstance(name, str) or name not in SCHEDULES:
        raise SpecUnsupportedError(f'{told}: give it a "name", one of {", ".join(SCHEDULES)}.')
    known = list(inspect.signature(SCHEDULES[name]).parameters)
    for option, value in schedule.items():
        if option not in ("name", *known):
            raise SpecUnsupportedError(f"{told}: {name} takes no {option!r}. It takes {', '.join(known)}.")
        if option != "name" and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise SpecUnsupportedError(f"{told}: {option!r} is {value!r}. Pass a number.")


FOUND = ("knowledge", "off_reason", "tuned")
"""What a configuration knows besides its settings."""
ARGUMENTS = tuple(f.name for f in fields(SpecConfig) if f.name not in FOUND)
"""Settings that `generate` takes."""
OURS = ("spec_strategy", "spec_fallback", "spec_source", "draft_vocab_size", "compile", "generator", "spec_session")
"""Those that transformers does not know."""
SHARED = tuple(name for name in ARGUMENTS if name not in OURS)
"""Also fields of GenerationConfig."""


def take_settings(kwargs: dict[str, Any], *layers) -> SpecConfig:
    """Take the speculative settings out of a call's keyword arguments (in place) and resolve each by the precedence.

    Args:
        kwargs: of `generate`.
        layers: GenerationConfigs, `SpecConfig`s (see `SpecConfig.at`), `enable`'s defaults or None, most important
            first. None in a layer means "not set"; None in the call means what it says (for the threshold: off).
    """
    found = {name: kwargs.pop(name) for name in ARGUMENTS if name in kwargs}
    for name in (*ARGUMENTS, "knowledge", "off_reason"):
        if name not in found:
            asked = layers if name in SHARED else [x for x in layers if not isinstance(x, GenerationConfig)]
            found[name] = next((value for x in asked if (value := getattr(x, name, None)) is not None), None)
    return SpecConfig(**found)


def temperature_of(kwargs: dict[str, Any], *configs) -> float:
    """A call's temperature; 0 for greedy ones.

    Args:
        configs: GenerationConfigs (or None), most important first.
    """

    def value(name: str, default):
        found = (kwargs.get(name), *(getattr(config, name, None) for config in configs))
        return next((x for x in found if x is not None), default)

    temperature = value("temperature", 1.0)
    if not value("do_sample", False):
        return 0.0
    return float(temperature) if isinstance(temperature, (int, float)) else 1.0  # Whisper takes several


def rows_of(kwargs: dict[str, Any]) -> int:
    """Rows of a call's inputs; 1 where they cannot be counted."""
    inputs = (kwargs.get(name) for name in ("inputs", "input_ids", "inputs_embeds", "input_features"))
    return next((len(x) for x in inputs if isinstance(x, torch.Tensor) and x.dim()), 1)
