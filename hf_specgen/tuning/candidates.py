"""What is tried: sources, constant lengths, a smaller draft vocabulary, another acceptance rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..benchmarking.calls import Answer, Call, Models
from ..benchmarking.names import KNOWN, Entrant, Kind
from ..benchmarking.ours import Ours
from ..benchmarking.summary import PLAIN
from ..config import SOURCES, SpecConfig
from ..lengths import Knowledge
from ..lengths.planner import LONGEST

LARGEST_K, CONSTANTS = 8, 2
"""Constant lengths that are thought about, and how many of them are run."""
VOCABULARIES = (32768, 16384)
"""Draft tokens that are kept: the first ids, and those seen in the target's answers."""


class Tried(Ours):
    """Ours with a configuration. Collects in `seen` the ids of its answers, which are the target's own."""

    def __init__(self, models: Models, config: SpecConfig, seen: set[int]):
        super().__init__(models, strategy=config.spec_strategy)
        self.config, self.seen = config, seen

    def options(self) -> dict[str, Any]:
        return {**super().options(), "spec_config": self.config}

    def decode(self, call: Call) -> Answer:
        answer = super().decode(call)
        self.seen.update(*answer.ids)
        return answer


@dataclass(frozen=True)
class Candidate(Entrant):
    """A row of the race."""

    config: SpecConfig = field(default=None, compare=False, repr=False)
    seen: set[int] = field(default_factory=set, compare=False, repr=False)

    def make(self, models: Models) -> Tried:
        return Tried(models, self.config, self.seen)

    @property
    def drafts(self) -> bool:
        """Whether the draft model takes part."""
        return self.config.spec_source != "lookup"

    def but(self, label: str, **settings: Any) -> Candidate:
        """The same with some settings changed."""
        return replace(self, name=f"{self.name}, {label}", config=replace(self.config, **settings))


PLAIN_DECODING = Entrant(PLAIN, KNOWN[PLAIN])


def candidate(name: str, seen: set[int], **settings: Any) -> Candidate:
    settings = {"spec_strategy": "rejection", "assistant_confidence_threshold": 0.0} | settings
    return Candidate(name, Kind("tuning", draft=True), config=SpecConfig(**settings), seen=seen)


def sources(with_draft: bool, knowledge: Knowledge, seen: set[int]) -> list[Candidate]:
    """As many tokens as pay, from each source; the default first."""
    goodput = {"num_assistant_tokens_schedule": "goodput", "num_assistant_tokens": LONGEST, "knowledge": knowledge}
    names = [name for name in SOURCES if name != "none"] if with_draft else ["lookup"]
    return [candidate(name, seen, spec_source=name, **goodput) for name in names]


def constants(knowledge: Knowledge, seen: set[int], batch_sizes: Iterable[int]) -> list[Candidate]:
    """The draft alone with the Ks that promise most at any of these numbers of rows."""
    return [
        candidate(
            f"draft, K={k}",
            seen,
            spec_source="draft",
            num_assistant_tokens_schedule="constant",
            num_assistant_tokens=k,
        )
        for k in sorted({k for rows in batch_sizes for k in best_constants(knowledge, rows)})
    ]


def best_constants(knowledge: Knowledge, rows: int = 1) -> list[int]:
    """The best Ks of so many rows by E_K / T_K (see `lengths.planner`), as far as they are expected to beat plain
    decoding."""
    target = {width: seconds for known, width, seconds in knowledge.costs["target"] if known == rows}
    draft = {known: seconds for known, seconds in knowledge.costs["draft"]}
    if 1 not in target or rows not in draft:
        return []
    expected = knowledge.acceptance.chain("draft", 0, LARGEST_K)
    seen = [k for k in range(1, LARGEST_K + 1) if k + 1 in target]
    speeds = {k: expected[k] * target[1] / (target[k + 1] + k * draft[rows]) for k in seen}
    paying = [k for k, speed in speeds.items() if speed > 1]
    return sorted(paying, key=lambda k: -speeds[k])[:CONSTANTS]


def vocabulary_sizes(tokens: int) -> list[int]:
    """Those of `VOCABULARIES` that leave out at least half of so many tokens."""
    return [size for size in VOCABULARIES if 2 * size <= tokens]


def kept_ids(size: int, seen: Iterable[int], tokens: int) -> list[int]:
    """The first ids, which BPE has learned from what is frequent, and others that the target has written."""
    return [*range(size), *sorted({id_ for id_ in seen if size <= id_ < tokens})]
