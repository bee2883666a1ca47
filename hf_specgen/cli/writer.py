"""A target, with its draft or alone, that answers prompts as the options of `generate` and `chat` say."""

from __future__ import annotations

import secrets
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import typer

from ..api import SpecGenerationMixin
from ..benchmarking.loading import Side, load
from ..config import SpecConfig, take_settings
from ..decoding.checks import cannot_be_kept
from ..pairing.places import device_at
from ..session import SpecSession
from ..stats import SpecStats, collect_stats
from .streaming import Stream, Write, nowhere

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import BatchEncoding


class FullContext(ValueError):
    """A text is as long as the target's context, or longer."""


@dataclass(frozen=True)
class Answer:
    """One prompt's.

    Attributes:
        sources: what drafted each token; None: the target's own.
        seconds: of the whole call.
    """

    text: str
    ids: list[int]
    sources: list[str | None]
    prompt_tokens: int
    seconds: float
    seed: int | None
    stats: SpecStats


class Writer:
    """Checks what it is given; then `load`, then `answer` as often as wanted.

    Args:
        temperature: 0 is greedy.
        top_p, top_k: None: as the target's generation_config says.
        seed: of all sampled answers together; None: a new one.
        k: None: as many as pay.

    Raises:
        ValueError, OSError, ImportError: what is wrong, before anything is loaded.
    """

    def __init__(
        self,
        target: str,
        draft: str | None,
        *,
        max_new_tokens: int,
        temperature: float,
        top_p: float | None,
        top_k: int | None,
        seed: int | None,
        strategy: str | None,
        k: int | None,
        spec_config: Path | None,
        dtype: str,
        device: str | None,
        draft_quantization: str | None,
    ):
        if draft is None and draft_quantization is not None:
            raise ValueError("--draft-quantization is of a draft, and there is none.")
        if not 0 <= temperature < float("inf"):
            raise ValueError(f"--temperature {temperature}: pass a number from 0 (greedy) on.")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"--top-p {top_p}: pass a share above 0 and up to 1.")
        for name, given in (("--top-p", top_p), ("--top-k", top_k)):
            if given is not None and not temperature:
                raise ValueError(f"{name} {given} is of sampling: pass --temperature T above 0 with it, or drop it.")
        config = None if spec_config is None else SpecConfig.of(spec_config)
        speculation = {"num_assistant_tokens": k, "spec_strategy": strategy}
        if config is None:
            # With the other rules a row waits until it knows what forwards cost, on a CPU: see lengths.planner.
            speculation["spec_strategy"] = strategy or ("coupled" if temperature else "rejection")
            speculation["spec_source"] = None if draft else "lookup"
        self.speculation = {name: value for name, value in speculation.items() if value is not None}
        take_settings(dict(self.speculation), config)
        self.speculation |= {} if config is None else {"spec_config": config}
        sampling = {"temperature": temperature, "top_p": top_p, "top_k": top_k} if temperature else {}
        self.sampling = {name: value for name, value in sampling.items() if value is not None}
        self.seed = seed if seed is not None or not temperature else secrets.randbelow(2**31)
        self.max_new_tokens, self.device = max_new_tokens, device
        device_at(device, "--device")
        self.target = Side("target", target, dtype)
        self.draft = None if draft is None else Side("draft", draft, dtype, draft_quantization)
        self.tokenizer = self.target.tokenizer()
        self.room = self.target.context_length()

    def load(self) -> None:
        """
        Raises:
            SpecUnsupportedError: the pair is refused.
            ValueError, OSError, ImportError: the models cannot be loaded.
        """
        self.models = load(self.target, self.draft, self.tokenizer, self.device)
        if self.seed is not None:
            torch.manual_seed(self.seed)  # no generator=: what is decoded plainly has to go by the seed, too

    def new_session(self) -> SpecSession | None:
        """For the turns of a conversation; None where the target's cache cannot be kept: each turn is read anew."""
        return None if cannot_be_kept(self.models.target) else SpecSession()

    def answer(self, inputs: BatchEncoding, write: Write | None = None, session: SpecSession | None = None) -> Answer:
        """Decode, and `write` each piece of text as it comes. What the target cannot decode speculatively is decoded
        plainly, with a warning.

        Args:
            inputs: `input_ids` and `attention_mask`, `[1, length]`.

        Raises:
            FullContext: the prompt does not fit into the target's context.
        """
        columns = inputs["input_ids"].shape[1]
        if columns >= self.room:
            raise FullContext(f"The text of {columns} tokens fills the target's {self.room} positions.")
        stream = Stream(self.tokenizer, write or nowhere)
        start = time.perf_counter()
        with collect_stats() as stats:
            SpecGenerationMixin.generate(
                self.models.target,
                **inputs.to(self._home()),
                **self.models.tokenizers,
                **self.speculation,
                **self.sampling,
                do_sample=bool(self.sampling),
                max_new_tokens=int(min(self.max_new_tokens, self.room - columns)),
                assistant_model=self.models.draft,
                spec_session=session,
                spec_fallback="plain",
                streamer=stream,
            )
        seconds = time.perf_counter() - start
        return Answer("".join(stream.pieces), stream.ids, stream.sources, columns, seconds, self.seed, stats)

    def _home(self) -> torch.device:
        from ..cache.reader import device_of

        return device_of(self.models.target, torch.device("cpu"))


@contextmanager
def warnings_of_a_line(command: str) -> Iterator[None]:
    """On stderr, without the code that they came from."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        typer.echo(f"{command}: {' '.join(str(message).split())}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
