"""What measure_pair found: figures for each K, the best one, and a verdict in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .forecast import Forecast, Outlook, break_even, total


@dataclass
class Sample:
    """One prompt, measured. Seconds of whole calls' parts; `rounds` as in `timing.Sweep`.

    `step_seconds`: one token of plain decoding after the first; None where the answer had only that.
    """

    prompt_tokens: int
    expected: Outlook
    prefill_seconds: float
    step_seconds: float | None
    draft_prefill_seconds: float
    rounds: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def new_tokens(self) -> int:
        return self.expected.forecasts[0].emitted


@dataclass(frozen=True)
class Expected:
    """One K. Costs and speed-ups are None where no round of this K could be timed.

    Attributes:
        forecast: expected counts over all prompts.
        round_cost: time of a round (draft, target forward, acceptance) / time of one token in plain decoding.
        decode_speedup: of everything after the prefills.
        call_speedup: of whole calls, both prefills included.
    """

    k: int
    forecast: Forecast
    round_cost: float | None
    decode_speedup: float | None
    call_speedup: float | None

    def to_dict(self) -> dict[str, Any]:
        places = self.forecast.acceptance_by_position
        return {
            "num_assistant_tokens": self.k,
            "acceptance_rate": self.forecast.acceptance_rate,
            "acceptance_by_position": {"conditional": places.conditional, "unconditional": places.unconditional},
            "tokens_per_round": self.forecast.tokens_per_round,
            "tokens_per_target_forward": self.forecast.tokens_per_target_forward,
            "round_cost": self.round_cost,
            "decode_speedup": self.decode_speedup,
            "call_speedup": self.call_speedup,
        }


@dataclass(frozen=True)
class Measurement:
    """What to expect of a draft, from prompts decoded one at a time.

    Attributes:
        prompt_tokens: of the shortest and the longest prompt.
        new_tokens: of all answers; `max_new_tokens` of each, at most.
        teacher_forced: whether the counts come from one reading of each answer; else the draft, which writes text of
            its own, has drafted against it once for each K.
        acceptance: of a drafted token that follows the target's own text: 1 − TV when sampling, else the share of equal
            tokens.
        cost_ratio: c = time of one draft step / time of one token in plain decoding.
        target_step_seconds: that token, in the median over the prompts.
        target_prefill_seconds, draft_prefill_seconds: means over the prompts.
        lengths: for each K from 1 on.

    None stands for what could not be measured.
    """

    prompts: int
    prompt_tokens: tuple[int, int]
    max_new_tokens: int
    new_tokens: int
    do_sample: bool
    teacher_forced: bool
    acceptance: float | None
    cost_ratio: float | None
    target_step_seconds: float
    target_prefill_seconds: float
    draft_prefill_seconds: float
    lengths: tuple[Expected, ...]

    @property
    def draft_step_seconds(self) -> float | None:
        return None if self.cost_ratio is None else self.cost_ratio * self.target_step_seconds

    @property
    def fastest(self) -> Expected | None:
        """The K of the highest speed-up, which may be below 1; None if no round could be timed."""
        timed = [expected for expected in self.lengths if expected.decode_speedup is not None]
        return max(timed, key=lambda expected: expected.decode_speedup, default=None)

    @property
    def best_k(self) -> int | None:
        """Draft tokens per round; 0 where calls of this length are faster without a draft."""
        fastest = self.fastest
        return None if fastest is None else fastest.k if fastest.call_speedup > 1 else 0

    @property
    def break_even(self) -> float | None:
        """The acceptance at which `fastest` would decode as fast as plain; None if none would do."""
        return None if self.fastest is None else break_even(self.fastest.k, self.fastest.round_cost)

    @property
    def verdict(self) -> str:
        best = self.fastest
        if best is None:
            return "nothing could be measured: no text lies within the draft's context"
        if best.call_speedup > 1:
            return (
                f"K = {best.k} is best: {best.decode_speedup:.2f}× plain decoding after the prefills, "
                f"{best.call_speedup:.2f}× in whole calls"
            )
        if best.decode_speedup > 1:
            saved = self.target_step_seconds * (1 - 1 / best.decode_speedup)
            return (
                f"cannot win in calls of {self.max_new_tokens} new tokens: {best.decode_speedup:.2f}× plain decoding "
                f"(K = {best.k}) does not pay for the draft's prefill; from about "
                f"{self.draft_prefill_seconds / saved + 1:.0f} new tokens on it does"
            )
        needed = "no acceptance would pay for that"
        if self.break_even is not None:
            needed = f"that takes an acceptance of {self.break_even:.0%}, and it is {self.acceptance:.0%}"
        return (
            f"cannot win: a draft step costs {self.cost_ratio:.2f} of a target step. At best (K = {best.k}) a round "
            f"costs {best.round_cost:.2f} target steps and gives {best.forecast.tokens_per_round:.2f} tokens; {needed}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, dicts and numbers, for JSON."""
        plain = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("lengths", "prompt_tokens")
        }
        return {
            **plain,
            "prompt_tokens": list(self.prompt_tokens),
            "draft_step_seconds": self.draft_step_seconds,
            "best_num_assistant_tokens": self.best_k,
            "break_even_acceptance": self.break_even,
            "verdict": self.verdict,
            "lengths": [expected.to_dict() for expected in self.lengths],
        }

    def __str__(self) -> str:
        low, high = self.prompt_tokens
        kind = "sampled" if self.do_sample else "greedy"
        longest = self.lengths[-1].forecast.acceptance_by_position
        places = " ".join(_show(x, ".0%") for x in longest.conditional)
        how = "teacher-forced: one reading of each answer"
        if not self.teacher_forced:
            how = "free-running: drafting against each answer with every K"
        draft_step = None if self.draft_step_seconds is None else 1000 * self.draft_step_seconds
        lines = [
            f"measured {self.prompts} prompt{'s' if self.prompts > 1 else ''} "
            f"of {low} to {high} tokens, {self.new_tokens} new tokens, {kind}",
            f"step     target {1000 * self.target_step_seconds:.1f} ms, draft {_show(draft_step, '.1f')} ms: "
            f"cost ratio {_show(self.cost_ratio, '.2f')}",
            f"prefill  target {1000 * self.target_prefill_seconds:.0f} ms, "
            f"draft {1000 * self.draft_prefill_seconds:.0f} ms",
            f"accepted {_show(self.acceptance, '.0%')} after right tokens; by position {places}",
            f"         ({how})",
            "   K  accepted of drafted  tokens per round  cost in target steps  speed-up",
        ]
        for e in self.lengths:
            lines.append(
                f"{e.k:4}  {_show(e.forecast.acceptance_rate, '.0%'):>19}  "
                f"{_show(e.forecast.tokens_per_round, '.2f'):>16}  {_show(e.round_cost, '.2f'):>20}  "
                f"{_show(e.decode_speedup, '.2f'):>8}"
            )
        return "\n".join([*lines, f"result   {self.verdict}"])

    def _repr_html_(self) -> str:
        from ..display.measurement import html_of

        return html_of(self)


def measurement_of(samples: Sequence[Sample], largest: int, *, max_new_tokens: int, do_sample: bool) -> Measurement:
    """Put together what was measured, for K = 1 … `largest`.

    Raises:
        ValueError: every answer ended with its first token.
    """
    drafted = [s for s in samples if s.step_seconds is not None]
    if not drafted:
        raise ValueError("Every answer ended with its first token: there was nothing to draft. Pass other prompts.")
    costs: list[float | None] = [1.0]  # a round that drafts nothing is a plain step
    for k in range(1, largest + 1):
        timed = [seconds / s.step_seconds for s in drafted for width, seconds, _ in s.rounds if width == k]
        costs.append(statistics.median(timed) if timed else None)
    draft_steps = [drafting / width / s.step_seconds for s in drafted for width, _, drafting in s.rounds if width]
    overlaps = [x for s in drafted for x in s.expected.overlap]
    lengths = [s.prompt_tokens for s in samples]
    return Measurement(
        prompts=len(samples),
        prompt_tokens=(min(lengths), max(lengths)),
        max_new_tokens=max_new_tokens,
        new_tokens=sum(s.new_tokens for s in samples),
        do_sample=do_sample,
        teacher_forced=samples[0].expected.teacher_forced,
        acceptance=statistics.mean(overlaps) if overlaps else None,
        cost_ratio=statistics.median(draft_steps) if draft_steps else None,
        target_step_seconds=statistics.median(s.step_seconds for s in drafted),
        target_prefill_seconds=statistics.mean(s.prefill_seconds for s in samples),
        draft_prefill_seconds=statistics.mean(s.draft_prefill_seconds for s in samples),
        lengths=tuple(_expected(samples, drafted, k, costs) for k in range(1, largest + 1)),
    )


def _expected(samples: Sequence[Sample], drafted: Sequence[Sample], k: int, costs: list[float | None]) -> Expected:
    everything = total([s.expected.forecasts[k - 1] for s in samples])
    if None in costs[: k + 1]:
        return Expected(k, everything, costs[k], None, None)
    decode = [s.step_seconds * (s.new_tokens - 1) for s in drafted]
    rounds = [s.step_seconds * s.expected.forecasts[k - 1].cost(costs) for s in drafted]
    prefills, draft_prefills = sum(s.prefill_seconds for s in drafted), sum(s.draft_prefill_seconds for s in drafted)
    return Expected(
        k,
        everything,
        costs[k],
        decode_speedup=sum(decode) / sum(rounds),
        call_speedup=(prefills + sum(decode)) / (prefills + draft_prefills + sum(rounds)),
    )


def _show(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"
