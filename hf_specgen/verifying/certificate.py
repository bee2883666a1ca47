"""What was found, as a file for cards and CI and as text."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..files import write_whole
from . import telling
from .greedy import FAULT, SAME, TIE, Flips, Noise, TextCheck
from .law import Law
from .texts import DEFAULT

LOSSLESS, ROUNDING, FAULTY = "LOSSLESS", "LOSSLESS UP TO ROUNDING", "FAULT"
FORMAT = 2


def verdict_of(texts: Iterable[str], tests: Iterable[bool]) -> str:
    """
    Args:
        texts: verdict on each greedy text.
        tests: of the number of ties and of each sampled law, whether it was passed.
    """
    found = {*texts}
    if FAULT in found or not all(tests):
        return FAULTY
    return ROUNDING if TIE in found else LOSSLESS


@dataclass
class Certificate:
    """The verdict on a pair, and what it rests on.

    Attributes:
        texts: every greedy text.
        noise: plain decoding's own, on the same texts, "alone" and in a "batch" (where there was one).
        flips: tokens below the best one, ours and plain decoding's own.
        laws: of each strategy; empty where nothing was sampled.
        target, draft: facts and hashes, see `Side.fingerprint` and `described`.
        machine: versions, device, threads. `settings`: of the verification, and of the calls that it made.
        prompts: how many, a hash of them, and how many tokens each has.
        date: UTC, ISO 8601. `command`: that made it, where one did.
    """

    texts: list[TextCheck]
    noise: dict[str, Noise]
    flips: Flips
    laws: list[Law]
    target: dict[str, Any]
    draft: dict[str, Any]
    machine: dict[str, Any]
    settings: dict[str, Any]
    prompts: dict[str, Any]
    seconds: float
    date: str
    command: str | None = None

    @property
    def drafted(self) -> int:
        """Tokens in the greedy texts."""
        return sum(text.drafted for text in self.texts)

    @property
    def accepted(self) -> int:
        return sum(text.accepted for text in self.texts)

    @property
    def faults(self) -> list[str]:
        """One line for each."""
        greedy = [f"{_place(t)}: {t.why}" for t in self.texts if t.verdict == FAULT]
        greedy += [] if self.flips.passed else [f"greedy: {self.flips}"]
        return greedy + [fault for law in self.laws for fault in telling.faults(law)]

    @property
    def verdict(self) -> str:
        tests = [self.flips.passed, *(law.passed for law in self.laws)]
        return verdict_of((text.verdict for text in self.texts), tests)

    @property
    def lossless(self) -> bool:
        return self.verdict != FAULTY

    def to_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "format": FORMAT,
            "verdict": self.verdict,
            "lossless": self.lossless,
            "faults": self.faults,
            "greedy": {
                "drafted": self.drafted,
                "accepted": self.accepted,
                "noise": {how: noise.to_dict() for how, noise in self.noise.items()},
                "flips": self.flips.to_dict(),
                "texts": [{name: _finite(x) for name, x in asdict(text).items()} for text in self.texts],
            },
            "sampling": [telling.to_dict(law) for law in self.laws],
        } | {
            name: getattr(self, name)
            for name in ("target", "draft", "machine", "settings", "prompts", "seconds", "date", "command")
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it as JSON, whole or not at all.

        Raises:
            OSError: it cannot be written there.
        """
        path = Path(os.path.expanduser(path))
        write_whole(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        return path

    def __str__(self) -> str:
        lines = [f"verdict   {self.verdict}", *(f"- {fault}" for fault in self.faults)]
        lines += [*self._greedy(), *(line for law in self.laws for line in telling.summary(law))]
        if not self.laws:
            lines.append("sampling  not tested (temperature 0)")
        dtype, device = self.target["dtype"], self.machine["device"]
        lengths = lengths_of(self.prompts, self.settings)
        lines.append(f"lengths   {lengths}; caches that grow and windows that fill later were not reached")
        return "\n".join([*lines, f"where     {dtype} on {device}, {self.seconds:.0f} s"])

    def _repr_html_(self) -> str:
        from ..display.certificate import html_of

        return html_of(self)

    def _greedy(self) -> list[str]:
        same = sum(text.verdict == SAME for text in self.texts)
        lines = [
            f"greedy    {same} of {len(self.texts)} texts are plain decoding's own, token by token "
            f"({self.accepted} of {self.drafted} drafted tokens accepted)",
            *(f"  {_place(text)}, {_by_default(text)}" for text in self.texts if text.how == DEFAULT),
        ]
        for how, noise in self.noise.items():
            ways = ", ".join(f"{way} {moved:.2g}" for way, moved in noise.by_way.items())
            lines.append(
                f"noise     {how}: plain decoding's own scores move by up to {noise.largest:.2g} ({ways}); a token may "
                f"be {noise.tolerance:.2g} below the best one, which is further ahead at {noise.decided:.0%} of the "
                "positions"
            )
        lines.append(f"ties      {self.flips}; from {self.flips.visible:.1%} of our tokens on it would be a fault")
        for text in self.texts:
            if text.verdict == TIE and text.diverged_at is not None:
                lines.append(
                    f"  {_place(text)}: parts from plain at token {text.diverged_at}, gap {text.gap:.3g}: a tie; "
                    f"{text.others} of the {text.tokens - text.diverged_at - 1} tokens after it are ties, too"
                )
        return lines


def _finite(value: Any) -> Any:
    """None for what JSON has no number for: a token that the target excludes is infinitely far below its best one."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _by_default(text: TextCheck) -> str:
    if not text.drafted:
        return "where generate() decides: nothing was drafted"
    return f"where generate() decides: {text.accepted} of {text.drafted} drafted tokens accepted"


def lengths_of(prompts: dict[str, Any], settings: dict[str, Any]) -> str:
    """How long the greedy texts were; see `Certificate.prompts` and `Certificate.settings`."""
    shortest, longest = min(prompts["tokens"]), max(prompts["tokens"])
    of = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
    return f"prompts of {of} tokens and up to {settings['max_new_tokens']} new ones"


def _place(text: TextCheck) -> str:
    return f"prompt {text.prompt}, {text.how}"
