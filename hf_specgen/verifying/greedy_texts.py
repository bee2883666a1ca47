"""Greedy texts of the prompts, alone, in one batch and by default settings, and plain decoding's readings of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import compat
from ..benchmarking.calls import Call, Models
from ..cache.widths import fast_width, slow_counts
from ..errors import SpecUnsupportedError
from .greedy import FAULT, Counts, Flips, Noise, TextCheck, judge
from .reading import Reading, decode, follow, in_blocks
from .texts import ALONE, BATCH, DEFAULT, MODES, Text, call_of, speculate

LEAST_DECIDED = 0.5
"""Share of positions at which another token than the best one must be a fault, for a verdict to mean something."""


class GreedyTexts:
    """
    Args:
        rows: the prompts' ids.
        settings: of a `Verification`.
        listener: told what was decoded or read.

    Attributes:
        plain: plain's texts. checks, noise, flips: see `Certificate`.
    """

    def __init__(
        self, models: Models, rows: list[list[int]], settings: dict[str, Any], listener: Callable[[str], None]
    ):
        self.models, self.listener = models, listener
        self.k, self.strategy = settings["num_assistant_tokens"], settings["strategies"][0]
        self.calls = [call_of(models, [row], settings["max_new_tokens"]) for row in rows]
        self.together = call_of(models, rows, settings["max_new_tokens"]) if len(rows) > 1 else None
        self.longest = max(range(len(rows)), key=lambda prompt: len(rows[prompt]))
        self.noise = {ALONE: Noise()}
        if self.together is not None:
            self.noise[BATCH] = Noise(beside=self.noise[ALONE])
        self.plain: list[Reading] = []
        self.checks: list[TextCheck] = []
        self.flips = Flips({})

    @staticmethod
    def steps(prompts: int) -> int:
        """How often the listener is told something, at least."""
        return 3 * prompts + 1 + (2 if prompts > 1 else 0)

    def run(self) -> None:
        """
        Raises:
            SpecUnsupportedError: nothing was drafted, or rounding hides what is to be seen.
        """
        texts: list[Text] = []
        for prompt, call in enumerate(self.calls):
            self.plain.append(decode(self.models, call))
            self.listener("plain text")
            texts += self._speculated(call, ALONE, [prompt])
        if self.together is not None:
            texts += self._speculated(self.together, BATCH, range(len(self.calls)))
        if not any(text.drafted for text in texts):
            raise SpecUnsupportedError(
                "Nothing was drafted, so that there is nothing to verify: ask for more new tokens, or other prompts."
            )
        texts += self._speculated(self.calls[self.longest], DEFAULT, [self.longest])
        readings = self._readings(texts)
        self.checks = [
            judge(text, self.plain[text.prompt].taken, reading, self._noise(text).tolerance)
            for text, reading in zip(texts, readings, strict=True)
        ]
        self.flips = Flips({how: self._counts(noise) for how, noise in self.noise.items()})
        if self.flips.passed and all(check.verdict != FAULT for check in self.checks):
            for noise in self.noise.values():
                _require_decided(noise)

    def _speculated(self, call: Call, how: str, prompts: Sequence[int]) -> list[Text]:
        k = None if how == DEFAULT else self.k
        decoded = speculate(self.models, call, self.strategy, k, MODES[how]["spec_source"])
        self.listener(f"speculative text, {how}")
        rows = zip(prompts, decoded.ids, decoded.problems, decoded.stats.rows, strict=True)
        return [
            Text(prompt, how, ids, problem, row.drafted, row.accepted, max((d for d, _ in row.trace), default=0))
            for prompt, ids, problem, row in rows
        ]

    def _readings(self, texts: list[Text]) -> list[Reading | None]:
        """Plain decoding's reading of each text that is not plain's own; the noise of all readings is counted."""
        for noise in self.noise.values():
            noise.leads = [text.lead for text in self.plain]
        most = max(text.most for text in texts)
        for prompt, text in enumerate(self.plain):
            self._read_alone(prompt, text, most)
            self.listener("noise of wider blocks")
        if self.together is not None:
            self._read_together()
            self.listener("noise in a batch")
        known: dict[tuple[int, tuple[int, ...]], Reading] = {}
        for text in texts:
            key = text.prompt, tuple(text.ids)
            if text.ids and text.ids != self.plain[text.prompt].taken and key not in known:
                (known[key],) = follow(self.models, self.calls[text.prompt], [text.ids])
                self._read_alone(text.prompt, known[key], most)
        return [known.get((text.prompt, tuple(text.ids))) for text in texts]

    def _read_alone(self, prompt: int, text: Reading, most: int) -> None:
        """With as many positions per forward as there were: two, K + 1, and those of the longest draft."""
        slow, dtype = slow_counts(self.models.target), self.models.target.dtype
        for width in sorted({fast_width(1, drafted + 1, slow) for drafted in (1, self.k, most)}):
            (other,) = in_blocks(self.models, self.calls[prompt], [text], width)
            self.noise[ALONE].add(f"{width} positions", text, other, dtype)

    def _read_together(self) -> None:
        rows, target = len(self.calls), self.models.target
        others = {f"batch of {rows}": follow(self.models, self.together, self.plain)}
        if not compat.keeps_state(target):  # whose padding a block in the middle of a text has no place for
            width = fast_width(rows, self.k + 1, slow_counts(target))
            others[f"batch of {rows}, {width} positions"] = in_blocks(self.models, self.together, self.plain, width)
        for way, readings in others.items():
            for plain, other in zip(self.plain, readings, strict=True):
                self.noise[BATCH].add(way, plain, other, target.dtype)

    def _noise(self, text: Text | TextCheck) -> Noise:
        return self.noise[BATCH if text.how == BATCH else ALONE]

    def _counts(self, noise: Noise) -> Counts:
        mine = [check for check in self.checks if self._noise(check) is noise]
        return Counts(
            sum(check.flips for check in mine), sum(check.tokens for check in mine), noise.flips, noise.positions
        )


def _require_decided(noise: Noise) -> None:
    if noise.decided < LEAST_DECIDED:
        way, moved = max(noise.by_way.items(), key=lambda item: item[1])
        raise SpecUnsupportedError(
            f"Read with {way}, plain decoding's own scores move by {moved:.2g}: at only {noise.decided:.0%} of the "
            "positions its best token is further ahead than rounding explains, so that greedy text cannot be verified "
            "here. Load the models in float32 (--dtype float32), or pass other prompts."
        )
