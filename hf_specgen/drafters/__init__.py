"""Where candidates come from."""

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..errors import SpecUnsupportedError
from .base import Drafter
from .encoder import Source, check_encoder
from .generator import GeneratorDrafter
from .model import ModelDrafter


def drafter_for(
    draft, config, threshold: float | None, device: torch.device, rows: int, source: Source | None, never: list[int]
) -> Drafter | None:
    """The drafter for what the caller passed as `assistant_model`.

    Args:
        draft: a `Drafter`, a transformers `CandidateGenerator`, a causal LM, or None.
        config: the prepared GenerationConfig of the call.
        threshold: `assistant_confidence_threshold`.
        device, rows: of the prompts.
        source: what the target's encoder read, if it has one.
        never: ids that are not to be drafted (placeholders of images and sound).
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
    check_encoder(draft, source)
    return ModelDrafter(draft, threshold, sorted(eos), device, source, never)


__all__ = ["Drafter", "GeneratorDrafter", "ModelDrafter", "Source", "drafter_for"]
