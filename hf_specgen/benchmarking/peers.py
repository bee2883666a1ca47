"""Other packages, through their public interfaces. Imported only when asked for."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Any

from .calls import Answer, Call, Models, joined, told
from .contenders import Contender

if TYPE_CHECKING:
    from economize import EfficientModel, TechniqueConfig
    from flashspec import SpeculativeEngine


class FlashSpec(Contender):
    """flashspec with its own choice of strategy ("auto"); one row at a time: its batches have no KV cache."""

    def __init__(self, models: Models, k: int | None = None, strategy: str | None = None):
        super().__init__(models, k, strategy)
        self.engines: dict[float, SpeculativeEngine] = {}

    def decode(self, call: Call) -> Answer:
        if call.top_k or call.top_p < 1:
            raise ValueError("flashspec samples without top_k and top_p: pass 0 and 1.")
        if call.temperature not in self.engines:
            self.engines[call.temperature] = self._engine(call.temperature)
        return joined([self._row(row) for row in call.rows()])

    def _row(self, call: Call) -> Answer:
        engine = self.engines[call.temperature]
        result = engine.generate(call.input_ids, max_new_tokens=call.max_new_tokens, eos_token_ids=call.eos)
        ids = [token for token in result.output_ids[0].tolist() if token >= 0]
        lookup = engine.arms[0].drafter
        rounds = [
            (step.proposed, step.accepted, "lookup" if step.drafter == lookup else "draft") for step in result.arm_steps
        ]
        drafted = sum(proposed for proposed, _, source in rounds if source == "draft")
        return Answer([ids], stats=told(rounds, len(ids)), draft_forwards=drafted)

    def _engine(self, temperature: float) -> SpeculativeEngine:
        from flashspec import FlashSpecConfig, SamplingConfig, SpeculativeEngine
        from flashspec.engine import HuggingFaceDrafter, TargetModel

        target, draft = self.models.target, self.models.draft
        dtype = str(target.dtype).removeprefix("torch.")
        config = FlashSpecConfig(
            device=str(target.device), dtype=dtype, sampling=SamplingConfig(temperature=temperature)
        )
        drafter = HuggingFaceDrafter("draft", draft.device, draft.dtype, temperature=temperature, model=draft)
        return SpeculativeEngine(config, [drafter], TargetModel("target", target.device, target.dtype, model=target))


class Economize(Contender):
    """economize's hybrid: prompt lookup, and the draft where that finds nothing. It loads the draft anew."""

    cycle = 5  # tokens per cycle: its own example's

    def technique(self, draft: TechniqueConfig) -> TechniqueConfig:
        from economize.techniques.hybrid import HybridConfig

        return HybridConfig(fallback=draft)

    def decode(self, call: Call) -> Answer:
        from economize import DecodeConfig, TopPSampler

        sampling: dict[str, Any] = {}
        if call.temperature:
            if call.top_k:
                raise ValueError(f"economize samples without top_k, and it is {call.top_k}: pass 0.")
            sampling["selector"] = TopPSampler(call.temperature, call.top_p, seed=call.seed)
        decoding = DecodeConfig(
            cycle_length=self.cycle,
            verifier="rejection" if call.temperature else "greedy",
            cuda_graphs=call.input_ids.device.type == "cuda",
        )
        results = self.model.decode_batch(
            [row.input_ids[0] for row in call.rows()],
            call.max_new_tokens,
            decoding=decoding,
            stop=call.eos,
            **sampling,
        )
        answers = []
        for result in results:
            ids = result.tokens.tolist()
            rounds = [(0, 0, None), *((*cycle, None) for cycle in result.acceptance)]  # the prefill is none of its own
            answers.append(Answer([ids], stats=told(rounds, len(ids))))
        return joined(answers)

    @cached_property
    def model(self) -> EfficientModel:
        import economize
        from economize.techniques.draft_model import DraftModelConfig

        folder = self.models.draft.config.name_or_path
        if not os.path.isdir(folder):
            raise ValueError(f"economize takes its draft from a folder, and this one has none ({folder!r}).")
        return economize.apply(self.models.target, self.technique(DraftModelConfig(model=folder)))


class EconomizeDraft(Economize):
    """economize with the draft alone."""

    def technique(self, draft: TechniqueConfig) -> TechniqueConfig:
        return draft
