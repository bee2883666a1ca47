"""Where candidates come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers.generation.candidate_generator import CandidateGenerator

from ..compat import ends_of
from ..errors import SpecUnsupportedError
from .base import Drafter
from .encoder import Source, check_encoder
from .frequent import FrequentTokens
from .generator import GeneratorDrafter
from .hybrid import HybridDrafter
from .lookup import LookupDrafter
from .model import ModelDrafter
from .reading import MappedIds, OtherVocabulary, OtherVocabularyAsText
from .text import TextDrafter
from .trimmed import Trimmed

if TYPE_CHECKING:
    from ..pairing.vocabulary import VocabularyMap


def drafter_for(
    draft,
    config,
    threshold: float | None,
    device: torch.device,
    rows: int,
    source: Source | None,
    never: list[int],
    vocabulary: VocabularyMap | None,
    draft_vocab_size: int | list[int] | None = None,
    may_trim: bool = False,
) -> Drafter | None:
    """The drafter for what the caller passed as `assistant_model`.

    Args:
        draft: a `Drafter`, a transformers `CandidateGenerator`, a causal LM, or None.
        config: the prepared GenerationConfig of the call.
        threshold: `assistant_confidence_threshold`.
        device, rows: of the prompts.
        source: what the target's encoder read, if it has one.
        never: ids that are not to be drafted (placeholders of images and sound).
        vocabulary: what the draft's ids stand for; None where both use the same.
        draft_vocab_size: see `SpecConfig`.
        may_trim: whether a draft may do without its rare tokens where nothing was asked for.
    """
    if draft_vocab_size is not None and (draft is None or isinstance(draft, CandidateGenerator)):
        what = "there is no draft" if draft is None else f"a {type(draft).__name__} is no model"
        raise SpecUnsupportedError(f"draft_vocab_size trims a draft model's vocabulary, and {what}. Leave it out.")
    if draft is None or isinstance(draft, Drafter):
        return draft
    if isinstance(draft, CandidateGenerator):
        if rows > 1:
            raise SpecUnsupportedError(
                f"{type(draft).__name__} proposes for one row, and this call has {rows}. "
                "Pass one prompt at a time, or a hf_specgen Drafter."
            )
        return GeneratorDrafter(draft, config.do_sample)
    check_encoder(draft, source, vocabulary)
    own_ends = getattr(draft.generation_config, "eos_token_id", None)
    own_ends = [] if own_ends is None else torch.as_tensor(own_ends).flatten().tolist()
    if vocabulary is not None:
        own_ends = [vocabulary.pairs[id_] for id_ in own_ends if id_ in vocabulary.pairs]
    ends = ends_of(config)
    kind, reading = ModelDrafter, None
    if vocabulary is not None and vocabulary.one_to_one:
        reading = MappedIds(vocabulary, device)
    elif vocabulary is not None and (config.do_sample or vocabulary.by_tokens):
        reading = OtherVocabulary(vocabulary, device)
    elif vocabulary is not None:
        kind, reading = TextDrafter, OtherVocabularyAsText(vocabulary, device)
    trimmed = None
    if draft_vocab_size is not None:
        if kind is TextDrafter:
            raise SpecUnsupportedError(
                "draft_vocab_size: a draft with another vocabulary that writes text cannot be trimmed. "
                "Leave it out, or use a draft with the target's tokenizer."
            )
        trimmed = Trimmed.of(draft, draft_vocab_size, reading.own(ends) if reading else ends)
    elif may_trim and vocabulary is None:
        trimmed = FrequentTokens.of_large(draft)
    return kind(draft, threshold, sorted({*ends, *own_ends}), device, source, never, reading, trimmed)


def with_lookup(drafter: Drafter | None, settings, config, never: list[int]) -> Drafter | None:
    """The source that the call asks for: the drafter, the text's own repetitions, or both.

    Args:
        drafter: of the draft, or None. Those that are no models stay alone: they are what the caller wanted.
        settings: of the call, a `SpecConfig`.
        config: the prepared GenerationConfig of the call.
    """
    hybrid = isinstance(drafter, ModelDrafter) and settings.source == "hybrid"
    if not hybrid and (drafter is not None or not settings.looks_up):
        return drafter
    limits = {"most": settings.prompt_lookup_num_tokens, "ngram": settings.max_matching_ngram_size}
    lookup = LookupDrafter(
        **{name: value for name, value in limits.items() if value is not None}, eos=ends_of(config), never=never
    )
    return HybridDrafter(drafter, lookup) if isinstance(drafter, ModelDrafter) else lookup


__all__ = [
    "Drafter",
    "GeneratorDrafter",
    "HybridDrafter",
    "LookupDrafter",
    "ModelDrafter",
    "Source",
    "drafter_for",
    "with_lookup",
]
