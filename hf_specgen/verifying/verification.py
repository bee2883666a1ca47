"""A verification: what it is to look at, checked; then greedy texts, sampled laws, and the certificate."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from ..benchmarking.bench import hash_of
from ..benchmarking.calls import Models, settings_of
from ..benchmarking.loading import Side, load
from ..benchmarking.machine import device_name, versions
from ..benchmarking.tasks import own_tasks, spread
from ..cache.reader import device_of
from ..errors import SpecUnsupportedError
from ..measuring.prompts import encode, read_prompts
from ..pairing.places import device_at
from ..verifiers import STRATEGIES
from . import sampled
from .certificate import Certificate
from .fingerprints import described, packages_of
from .greedy_texts import GreedyTexts
from .law import Law
from .table import Rounding
from .texts import MODES

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..measuring.prompts import Messages

    ModelOrName: TypeAlias = PreTrainedModel | str | os.PathLike[str]
    Prompts: TypeAlias = Sequence[str | Messages] | str | os.PathLike[str] | None

Listener = Callable[[str, int, int], None]
"""Told what was done last, and how many steps of how many are done."""


class Verification:
    """Made, it has checked what can be checked without weights; `run` loads, decodes and judges.

    Args:
        target, draft: folders, Hub ids or models.
        tokenizer: the target's; None: the one beside its checkpoint.
        prompts: a list, a file (see `read_prompts`), or None: short ones of the package's own.
        limit: at most so many of them.
        max_new_tokens: of each greedy text.
        temperature: of the sampled tokens; 0 leaves sampling out.
        strategies: whose laws are tested. Greedily, all of them are one.
        num_assistant_tokens: drafted in a round (in the law test three at most).
        samples: continuations that are drawn for each strategy, at least four a prompt: four times as many see half as
            large an error.
        seed: of the draws.
        dtype, device, draft_quantization: as in `load_pair`, for what is not loaded yet.

    Raises:
        ValueError, OSError, ImportError: what is wrong, before anything is loaded.
    """

    def __init__(
        self,
        target: ModelOrName,
        draft: ModelOrName,
        tokenizer: PreTrainedTokenizerBase | None = None,
        prompts: Prompts = None,
        *,
        limit: int = 4,
        max_new_tokens: int = 48,
        temperature: float = 1.0,
        strategies: Sequence[str] = ("rejection",),
        num_assistant_tokens: int = 5,
        samples: int = 384,
        seed: int = 0,
        dtype: str = "auto",
        device: str | None = None,
        draft_quantization: str | None = None,
    ):
        least = {"limit": 1, "max_new_tokens": 3, "num_assistant_tokens": 1, "samples": 1, "seed": 0}
        given = {"limit": limit, "max_new_tokens": max_new_tokens, "samples": samples, "seed": seed}
        for name, value in (given | {"num_assistant_tokens": num_assistant_tokens}).items():
            if not isinstance(value, int) or isinstance(value, bool) or value < least[name]:
                raise ValueError(f"{name}={value!r}: pass a whole number of at least {least[name]}.")
        if not (isinstance(temperature, (int, float)) and math.isfinite(temperature) and temperature >= 0):
            raise ValueError(f"temperature={temperature!r}: pass a number from 0 (no sampling) on.")
        strategies = tuple(strategies)
        if not strategies or len({*strategies}) < len(strategies) or not {*strategies} <= STRATEGIES.keys():
            raise ValueError(f"strategies={strategies!r}: choose among {', '.join(STRATEGIES)}, each once.")
        if draft is None:
            raise ValueError("There is no draft to verify: pass one.")
        self.settings: dict[str, Any] = {
            "max_new_tokens": max_new_tokens,
            "temperature": float(temperature),
            "strategies": list(strategies),
            "num_assistant_tokens": num_assistant_tokens,
            "samples": samples,
            "seed": seed,
            "greedy": MODES,
            "sampled": sampled.settings(num_assistant_tokens),
        }
        self.device = device
        device_at(device, "device")
        prompts = _chosen(prompts, limit)
        self.target, self.draft = Side("target", target, dtype), Side("draft", draft, dtype, draft_quantization)
        self.tokenizer = tokenizer or self.target.tokenizer()
        if temperature and samples < (fewest := sampled.LEAST * len(prompts)):
            raise ValueError(f"samples={samples}: draw at least {fewest}, {sampled.LEAST} for each prompt.")
        self.rows = [encode(self.tokenizer, prompt)["input_ids"][0].tolist() for prompt in prompts]
        self.prompts = {"count": len(prompts), "sha256": hash_of(prompts), "tokens": [*map(len, self.rows)]}
        room = self.target.context_length()
        if (longest := max(map(len, self.rows))) + max_new_tokens + sampled.NEW > room:
            raise ValueError(
                f"A prompt of {longest} tokens and {max_new_tokens} new ones do not fit into the target's {room} "
                "positions: leave it out, or ask for less."
            )

    @torch.no_grad()
    def run(self, listener: Listener = lambda *step: None) -> Certificate:
        """Load and verify.

        Raises:
            SpecUnsupportedError: the pair cannot be decoded speculatively, or not be verified here.
            ValueError, OSError, ImportError: the models cannot be loaded.
        """
        start = time.monotonic()
        models = load(self.target, self.draft, self.tokenizer, self.device)
        if models.target.config.is_encoder_decoder:
            raise SpecUnsupportedError(
                f"{type(models.target).__name__} reads prompts with an encoder, and verify reads prompt and answer as "
                "one text. Compare calls of generate() with and without the draft."
            )
        device = device_of(models.target, torch.device("cpu"))
        forked = [device] if device.type == "cuda" else []
        steps = _Steps(listener, self._steps())
        with torch.random.fork_rng(forked), settings_of(models.target), settings_of(models.draft):
            target, draft = described(models.target), described(models.draft)  # before anything is decoded with them
            greedy = GreedyTexts(models, self.rows, self.settings, steps.done)
            greedy.run()
            laws = self._laws(models, greedy, steps) if self.settings["temperature"] else []
        packages = sorted(packages_of(models.target) | packages_of(models.draft))
        return Certificate(
            greedy.checks,
            greedy.noise,
            greedy.flips,
            laws,
            target=_told(self.target, target),
            draft=_told(self.draft, draft),
            machine={
                "versions": versions(*packages),
                "device": device_name(device),
                "threads": torch.get_num_threads(),
            },
            settings=self.settings,
            prompts=self.prompts,
            seconds=round(time.monotonic() - start, 1),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        )

    def _steps(self) -> int:
        """Texts that are decoded or read, and batches that are drawn."""
        prompts = len(self.rows)
        greedy = GreedyTexts.steps(prompts)
        if not self.settings["temperature"]:
            return greedy
        return greedy + sampled.steps(prompts, self.settings["samples"], self.settings["strategies"])

    def _laws(self, models: Models, greedy: GreedyTexts, steps: _Steps) -> list[Law]:
        names = ("temperature", "strategies", "samples", "num_assistant_tokens", "seed")
        noises = greedy.noise.values()
        return sampled.check_laws(
            models,
            [(ids, plain.taken) for ids, plain in zip(self.rows, greedy.plain, strict=True)],
            Rounding(max(noise.typical for noise in noises), max(noise.largest for noise in noises)),
            steps.done,
            **{name: self.settings[name] for name in names},
        )


class _Steps:
    def __init__(self, listener: Listener, total: int):
        self.listener, self.total, self.count = listener, total, 0

    def done(self, what: str) -> None:
        self.count += 1
        self.listener(what, self.count, self.total)


def _told(side: Side, described: dict[str, Any]) -> dict[str, Any]:
    """What was asked for and what came of it, in one. The name is the Hub's where it is on the Hub."""
    asked = side.fingerprint()
    return asked | described | {"name": asked["name"], "dtype asked for": asked["dtype"]}


def verify(
    target: ModelOrName,
    draft: ModelOrName,
    tokenizer: PreTrainedTokenizerBase | None = None,
    prompts: Prompts = None,
    **options: Any,
) -> Certificate:
    """Bug or rounding? Whether a pair decodes losslessly here, greedy and sampled: `print(verify(target, draft))`.

    Args:
        options: those of `Verification`, which says what all of them mean.

    Raises:
        SpecUnsupportedError, ValueError, OSError, ImportError: see `Verification`.
    """
    return Verification(target, draft, tokenizer, prompts, **options).run()


def _chosen(prompts: Prompts, limit: int) -> list[str | Messages]:
    if prompts is None:  # each task's shortest: what matters here is the answer
        shortest = [min(texts, key=lambda text: len(str(text))) for texts in own_tasks().values()]
        return sorted(shortest, key=lambda text: len(str(text)))[:limit]
    if isinstance(prompts, (str, os.PathLike)):
        return read_prompts(prompts, limit)
    found = list(prompts)
    for prompt in found:
        if not isinstance(prompt, (str, list)) or not prompt:
            raise ValueError(f"A prompt is {prompt!r:.60}: pass a text, or a list of chat messages.")
    if not found:
        raise ValueError("There are no prompts to verify with.")
    return [found[i] for i in spread(len(found), limit)]
