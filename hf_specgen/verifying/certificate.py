"""What was found, as a file for cards and CI and as text."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..files import write_whole
from ..tuning.fingerprint import fingerprint
from . import telling
from .greedy import FAULT, SAME, TIE, Noise, TextCheck
from .law import Law

LOSSLESS, ROUNDING, FAULTY = "LOSSLESS", "LOSSLESS UP TO ROUNDING", "FAULT"
FORMAT = 1
SAMPLED = 256
"""Elements of each tensor that its fingerprint reads."""


@dataclass
class Certificate:
    """The verdict on a pair, and what it rests on.

    Attributes:
        texts: every greedy text. `noise`: plain decoding's own, on the same texts.
        laws: of each strategy; empty where nothing was sampled.
        drafted, accepted: tokens in the greedy texts.
        target, draft: facts, a hash of the config and one of the weights, see `Side.fingerprint` and `described`.
        machine: versions, device, threads. `settings`: of the verification. `prompts`: how many, and a hash of them.
        date: UTC, ISO 8601. `command`: that made it, where one did.
    """

    texts: list[TextCheck]
    noise: Noise
    laws: list[Law]
    drafted: int
    accepted: int
    target: dict[str, Any]
    draft: dict[str, Any]
    machine: dict[str, Any]
    settings: dict[str, Any]
    prompts: dict[str, Any]
    seconds: float
    date: str
    command: str | None = None

    @property
    def faults(self) -> list[str]:
        """One line for each."""
        greedy = [f"{_place(t)}: {t.why}" for t in self.texts if t.verdict == FAULT]
        return greedy + [fault for law in self.laws for fault in telling.faults(law)]

    @property
    def verdict(self) -> str:
        if self.faults:
            return FAULTY
        return ROUNDING if any(text.verdict == TIE for text in self.texts) else LOSSLESS

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
                "noise": self.noise.to_dict(),
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
        return "\n".join([*lines, f"where     {dtype} on {device}, {self.seconds:.0f} s"])

    def _repr_html_(self) -> str:
        from ..display.certificate import html_of

        return html_of(self)

    def _greedy(self) -> list[str]:
        same = sum(text.verdict == SAME for text in self.texts)
        ways = ", ".join(f"{way} {moved:.2g}" for way, moved in self.noise.by_way.items())
        lines = [
            f"greedy    {same} of {len(self.texts)} texts are plain decoding's own, token by token "
            f"({self.accepted} of {self.drafted} drafted tokens accepted)",
            f"noise     plain decoding's own scores move by up to {self.noise.largest:.2g} ({ways}); a token may be "
            f"{self.noise.tolerance:.2g} below the best one",
        ]
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


def _place(text: TextCheck) -> str:
    return f"prompt {text.prompt}, {text.how}"


def described(model) -> dict[str, Any]:
    """Facts of a loaded model, and a hash over its tensors' names, types, shapes and some of their elements."""
    return fingerprint(model) | {"weights": _weights(model)}


def _weights(model) -> str | None:
    """None where tensors are not in memory (offloaded)."""
    digest = hashlib.sha256()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        if tensor.device.type == "meta":
            return None
        flat = tensor.detach().flatten()
        some = flat[:: max(1, len(flat) // SAMPLED)][:SAMPLED].contiguous().cpu()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(some.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
