"""What transformers itself can do: plain decoding, compiled, and with a draft."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from transformers.generation import CompileConfig

from ..measuring.timing import Watch
from .calls import Answer, Call, Models, joined, settings_of, told


class Contender(ABC):
    """Decodes calls. `k`: a constant number of drafted tokens, `strategy`: an acceptance rule, where it has one."""

    def __init__(self, models: Models, k: int | None = None, strategy: str | None = None):
        self.models, self.k, self.strategy = models, k, strategy

    @abstractmethod
    def decode(self, call: Call) -> Answer: ...

    def close(self) -> None:  # noqa: B027 (most change nothing)
        """Leave the models as they were."""


class Plain(Contender):
    def decode(self, call: Call, **options: Any) -> Answer:
        """`options`: more for `generate`."""
        watch = Watch(len(call.input_ids))
        target = self.models.target
        out = type(target).generate(target, **call.options(), streamer=watch, **options)
        return Answer(call.new_ids(out), watch.first_token_seconds, watch.decode_seconds)


class Compiled(Plain):
    """Plain with a static cache and torch.compile, as transformers compiles it (on a CPU, too)."""

    _MARKS = ("_compiled_call", "_last_compile_config", "_previous_max_cache_length")

    def decode(self, call: Call, **options: Any) -> Answer:
        config = CompileConfig()
        config._compile_all_devices = True
        answer = super().decode(call, cache_implementation="static", compile_config=config, **options)
        if "_compiled_call" not in vars(self.models.target):
            raise RuntimeError(
                f"transformers does not compile {type(self.models.target).__name__} as it is loaded here (offloaded, "
                "quantized, or of a kind without a static cache)."
            )
        return answer

    def close(self) -> None:
        for mark in self._MARKS:
            vars(self.models.target).pop(mark, None)


class Stock(Contender):
    """Assisted decoding: as it is by default, or with K drafted tokens every round. It takes one row at a time."""

    def decode(self, call: Call) -> Answer:
        return joined([self._row(row) for row in call.rows()])

    def _row(self, call: Call) -> Answer:
        target, draft = self.models.target, self.models.draft
        settings = {}
        if self.k is not None:
            settings = {"num_assistant_tokens": self.k, "num_assistant_tokens_schedule": "constant"}
            settings["assistant_confidence_threshold"] = 0.0
        watch, widths = Watch(), []
        hook = target.register_forward_pre_hook(
            lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
        )
        try:
            with settings_of(draft, **settings):  # anew for each call: a schedule writes its length back
                out = type(target).generate(
                    target, **call.options(), assistant_model=draft, streamer=watch, **self.models.tokenizers
                )
        finally:
            hook.remove()
        widths[0] -= call.input_ids.shape[1] - 1  # its first forward reads the prompt, too
        rounds = [(width - 1, count - 1, "draft") for width, (_, count) in zip(widths, watch.seen, strict=True)]
        ids = call.new_ids(out)
        stats = told(rounds, len(ids[0]))
        return Answer(ids, watch.first_token_seconds, watch.decode_seconds, stats, draft_forwards=stats.drafted)
