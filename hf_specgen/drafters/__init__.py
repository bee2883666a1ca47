"""Where candidates come from."""

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..errors import SpecUnsupportedError
from .base import Drafter
from .generator import GeneratorDrafter
from .model import ModelDrafter


def drafter_for(draft, config, threshold: float | None, device: torch.device, rows: int) -> Drafter | None:
    """The drafter for what the caller passed as `assistant_model`.

    Args:
        draft: a `Drafter`, a transformers `CandidateGenerator`, a causal LM, or None.
        config: the prepared GenerationConfig of the call.
        threshold: `assistant_confidence_threshold`.
        device, rows: of the prompts.
    """
    if draft is None or isinstance(draft, Drafter):
        return draft
    if isinstance(draft, CandidateGenerator):
        if rows > 1:
            raise SpecUnsupportedError(
                f"{type(draft).__name__} proposes for one row, and this call has {rows}. "
                "Pass one prompt at a time, or a hf_specgen Drafter."
            )
        return GeneratorDrafter(draft, config.do_sample)
    ends = [config._eos_token_tensor, getattr(draft.generation_config, "eos_token_id", None)]
    eos = {int(i) for end in ends if end is not None for i in torch.as_tensor(end).flatten()}
    return ModelDrafter(draft, threshold, sorted(eos), device)


__all__ = ["Drafter", "GeneratorDrafter", "ModelDrafter", "drafter_for"]
