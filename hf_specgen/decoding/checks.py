"""What cannot be decoded speculatively *and* exactly is refused here, by name, before the first token."""

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.generation.candidate_generator import CandidateGenerator

from .. import compat
from ..cache.stock import refuse_unknown_layers
from ..errors import SpecUnsupportedError
from ..unwrap import unwrap

PLAIN = 'Decode without spec_strategy, or pass spec_fallback="plain".'


def _refuse(message: str, way_out: str = PLAIN):
    raise SpecUnsupportedError(f"{message} {way_out}")


def check_draft(target, draft, strategy: str):
    """The draft, unwrapped, or None where the strategy needs none."""
    if draft is None:
        if strategy != "coupled":
            _refuse(f'spec_strategy="{strategy}" needs a draft.', "Pass assistant_model=, or drop spec_strategy.")
        return None
    if isinstance(draft, CandidateGenerator):
        if getattr(draft, "requires_model_outputs", False):
            _refuse(f"{type(draft).__name__} reads the target's hidden states, which are not handed to it here.")
        return draft
    if isinstance(draft, type):
        _refuse(f"assistant_model is the class {draft.__name__}.", "Pass an instance: a model or a Drafter.")
    if isinstance(draft, (str, bytes)) or hasattr(draft, "__fspath__"):
        _refuse(f"assistant_model={draft!r} is a path.", "Load it: AutoModelForCausalLM.from_pretrained(...).")
    draft = unwrap(draft)
    if draft is unwrap(target):
        _refuse("The draft is the target object itself: it cannot be cheaper than itself.", "Pass a smaller model.")
    if not isinstance(draft, PreTrainedModel) or draft.get_output_embeddings() is None or not draft.can_generate():
        _refuse(f"assistant_model is a {type(draft).__name__}.", "Pass a causal language model (AutoModelForCausalLM).")
    check_model(draft, "draft")
    return draft


def check_model(model, whose: str) -> None:
    """Architectures whose state cannot be rolled back, and models that would not compute the same twice."""
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        _refuse(f"The {whose} ({name}) is an encoder-decoder, which is not supported.")
    if not compat.takes_cache(type(model)) or not type(model)._supports_default_dynamic_cache():
        _refuse(f"The {whose} ({name}) has no KV cache that can be rolled back.")
    if getattr(model, "_is_stateful", False):
        _refuse(f"The {whose} ({name}) keeps a recurrent state, which cannot be rolled back.")
    config = compat.text_config(model)
    refuse_unknown_layers(DynamicCache(config=config), whose)
    if "mrope_section" in (getattr(config, "rope_parameters", None) or {}):
        _refuse(f"The {whose} ({name}) uses multimodal rotary positions, whose offsets are not handled.")
    if model.training:
        rates = [getattr(config, n, 0) for n in ("attention_dropout", "attn_pdrop", "attention_dropout_prob")]
        rates += [m.p for m in model.modules() if isinstance(m, torch.nn.Dropout) and m.training]
        if any(rates):
            _refuse(f"The {whose} is in training mode with active dropout.", f"Call {whose}.eval() first.")


def check_arguments(kwargs: dict, *configs) -> None:
    """What transformers would act on, trip over or warn about before our loop sees it.

    Args:
        kwargs: of `generate`. `configs`: GenerationConfigs (or None), most important first.
    """

    def effective(name: str):
        values = (getattr(c, name, None) for c in configs)
        return kwargs[name] if name in kwargs else next((v for v in values if v is not None), None)

    for name in ("custom_generate", "negative_prompt_ids", "negative_prompt_attention_mask"):
        if kwargs.get(name) is not None:
            _refuse(f"{name}= cannot be combined with spec_strategy.", "Drop one of the two.")
    if effective("cache_implementation") not in (None, "dynamic", "hybrid"):  # transformers drops "hybrid" as well
        _refuse(f'cache_implementation="{effective("cache_implementation")}": the cache here is our own.', "Drop it.")
    if effective("use_cache") is False:
        _refuse("use_cache=False: drafting needs the cache.", "Drop it, or pass use_cache=True.")
    if effective("token_healing"):
        _refuse("token_healing=True changes the prompt.", "Heal the prompt first and drop it.")
    ids = compat.prompt_of(kwargs)
    if kwargs.get("inputs_embeds") is not None and ids is None:
        _refuse("inputs_embeds without input_ids: the draft has nothing to read.", "Pass input_ids as well.")
    if isinstance(ids, torch.Tensor) and ids.numel() == 0:
        _refuse(f"The prompt is empty (input_ids of shape {tuple(ids.shape)}).", "Pass at least one token.")


def check_call(config, model_kwargs: dict, synced_gpus: bool) -> None:
    """Options of the call that are not decoded here. `config`: the prepared GenerationConfig."""
    if synced_gpus:
        _refuse("synced_gpus=True (FSDP, ZeRO-3) needs every rank in step, which uneven acceptance breaks.")
    if (config.num_beams or 1) > 1:
        _refuse(f"num_beams={config.num_beams}: beam search is not sampled token by token.", "Use num_beams=1.")
    if config.guidance_scale not in (None, 1, 1.0):
        _refuse(f"guidance_scale={config.guidance_scale} runs a second, guided pass with its own cache.")
    if getattr(config, "penalty_alpha", None):
        _refuse(f"penalty_alpha={config.penalty_alpha}: contrastive search ranks hidden states.")
    if getattr(config, "dola_layers", None):
        _refuse(f"dola_layers={config.dola_layers!r} contrasts layers.")
    if getattr(config, "constraints", None) or getattr(config, "force_words_ids", None):
        _refuse("Constrained beam search is not sampled token by token.")
    for name in (
        "prompt_lookup_num_tokens",
        "assistant_early_exit",
        "use_mtp",
        "speculation_type",
        "assistant_ensemble_weight",
    ):
        if getattr(config, name, None):
            _refuse(f"{name}={getattr(config, name)!r} asks for another source of drafts or a lossy mix.", "Drop it.")
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        _refuse("output_attentions / output_hidden_states are not collected here.", "Drop them.")
    known = {"output_attentions", "output_hidden_states"}  # plain decoding ignores them without a dict
    known |= {
        "attention_mask",
        "position_ids",
        "cache",
        "past_key_values",
        "use_cache",
        "logits_to_keep",
        "inputs_embeds",
    }
    extra = sorted(k for k, v in model_kwargs.items() if v is not None and k not in known)
    if extra:
        _refuse(f"Extra model inputs {extra} are not carried through drafted blocks.")


def check_prompt(input_ids: torch.Tensor, mask: torch.Tensor | None, embeds, pad_token) -> None:
    """Prompts that have no exact place in the ragged cache. `mask`: `[rows, columns]` or None."""
    if input_ids.dim() != 2 or input_ids.shape[1] == 0:
        _refuse(f"The prompt is empty (input_ids of shape {tuple(input_ids.shape)}).", "Pass at least one token.")
    if embeds is not None and embeds.shape[1] != input_ids.shape[1]:
        _refuse(
            "inputs_embeds without the matching input_ids: the draft has nothing to read.", "Pass input_ids as well."
        )
    if len(input_ids) > 1 and pad_token is None:
        _refuse("A batch needs a pad token and the model has none.", "Pass pad_token_id=.")
    if mask is not None:
        if mask.shape != input_ids.shape:
            _refuse(
                f"attention_mask has shape {tuple(mask.shape)}, input_ids {tuple(input_ids.shape)}.",
                "Pass the whole text and its mask: the draft has to read it too.",
            )
        mask = mask.bool()
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        if empty:
            _refuse(f"Row {empty[0]} of the attention mask is all zero: its prompt is empty.", "Drop the row.")
        runs = mask[:, 0].long() + (mask[:, 1:] & ~mask[:, :-1]).sum(1)
        holes = (runs > 1).nonzero()
        if len(holes):
            _refuse(
                f"Row {holes[0, 0].item()} of the attention mask has a hole.",
                "Mask only padding, on the left or on the right.",
            )


_READS_MASK = ("bloom", "mpt")  # without position_ids, but their biases are built from the mask


def check_lengths(model, pads: list[int], columns: int, max_length: int) -> None:
    """Position schemes under which a row's numbers depend on its padding, or on how far the forward reaches."""
    config = compat.text_config(model)
    blind = "position_ids" not in compat.forward_parameters(type(model)) and config.model_type not in _READS_MASK
    if blind and any(pads):
        _refuse(
            f"{type(model).__name__} takes no position_ids, so that padding would shift a row's positions.",
            "Pass prompts of one length, or one at a time.",
        )
    rope = getattr(config, "rope_parameters", None) or {}
    for scheme in [rope, *(v for v in rope.values() if isinstance(v, dict))]:
        kind = scheme.get("rope_type")
        if kind not in ("dynamic", "longrope"):
            continue
        turn = scheme.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        turn = turn or config.max_position_embeddings
        longest, shortest = max_length - min(pads), columns - max(pads)
        if longest > turn and (kind == "dynamic" or shortest <= turn):
            _refuse(
                f'Rotary positions of type "{kind}" change for a whole forward once it passes {turn} tokens, and this '
                f"call may reach {longest}: a drafted block would change them too early.",
                f"Keep prompt and new tokens within {turn}, or decode without spec_strategy.",
            )
