"""hf-specgen: as it is by default, with one source of candidates only, with a constant K."""

from __future__ import annotations

from typing import Any

from ..api import SpecGenerationMixin
from ..measuring.timing import Watch
from ..stats import collect_stats
from .calls import Answer, Call
from .contenders import Contender


class Ours(Contender):
    """The default: whatever source promises most, as many tokens as pay."""

    def options(self) -> dict[str, Any]:
        options = {"assistant_model": self.models.draft, **self.models.tokenizers}
        if self.k is not None:
            options |= {"num_assistant_tokens": self.k, "num_assistant_tokens_schedule": "constant"}
            options["spec_source"] = "draft"
        return options

    def decode(self, call: Call) -> Answer:
        watch, target = Watch(len(call.input_ids)), self.models.target
        with collect_stats() as stats:
            out = SpecGenerationMixin.generate(
                target, **call.options(), **self.options(), spec_strategy=self.strategy, streamer=watch
            )
        return Answer(
            call.new_ids(out),
            watch.first_token_seconds,
            stats.decode_seconds,
            stats,
            (stats.draft_seconds, stats.verify_seconds, stats.rest_seconds),
            draft_forwards=stats.drafting_forwards,
        )


class Draft(Ours):
    """The draft model alone, as many tokens as pay."""

    def options(self) -> dict[str, Any]:
        return {**super().options(), "spec_source": "draft"}


class Lookup(Ours):
    """Tokens that followed the same words earlier in the text; no draft."""

    def options(self) -> dict[str, Any]:
        return {"spec_source": "lookup"}
