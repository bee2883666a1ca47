"""What cannot be decoded speculatively *and* exactly is refused here, by name, before the first token."""

import torch
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache, DynamicIndexedLayer, DynamicLayer
from transformers.generation.candidate_generator import CandidateGenerator

from .. import compat
from ..cache import probe
from ..cache.reader import device_of, new_cache
from ..cache.states import keeps_state
from ..cache.stock import columns_held, holds_kv, own_part, refuse_unknown_layers, window_of
from ..config import SpecConfig
from ..errors import SpecUnsupportedError
from ..unwrap import unwrap
from .prompt import Prompt, later_inputs, mask_name, media_of

PLAIN = 'Decode without spec_strategy, or pass spec_fallback="plain".'


UNFIT = {
    "xlm-prophetnet": "reads one token at a time once it has a cache",
    "moshi": "reads a block of tokens with other windows than single tokens",
    "prophetnet": "reads one token at a time once it has a cache",
}
"""Architectures that a probe cannot judge (or only with long texts), and what is in the way."""


def _refuse(message: str, way_out: str = PLAIN):
    raise SpecUnsupportedError(f"{message} {way_out}")


def check_draft(target, draft, settings: SpecConfig):
    """The draft, unwrapped, or None where none is needed."""
    if draft is None:
        if settings.spec_strategy != "coupled" and not settings.looks_up:
            _refuse(
                f'spec_strategy="{settings.spec_strategy}" needs a draft.',
                'Pass assistant_model=, or spec_source="lookup" to draft from the text itself, or drop spec_strategy.',
            )
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
    if not compat.takes_cache(type(model)) or not type(model)._supports_default_dynamic_cache():
        _refuse(f"The {whose} ({name}) has no KV cache that can be rolled back.")
    config = compat.text_config(model)
    if reason := UNFIT.get(config.model_type):
        _refuse(f"The {whose} ({name}) {reason}.")
    keeps_positions = hasattr(DynamicIndexedLayer(), "indexer_position_ids")
    if config.model_type in ("qwen4_exp", "qwen4_exp_text") and not keeps_positions:
        _refuse(f"The {whose} ({name}) keeps the positions of what it has read elsewhere in this transformers.")
    refuse_unknown_layers(DynamicCache(config=config), whose)
    if reason := probe.cannot_read_blocks(model):
        _refuse(f"The {whose} ({name}) cannot check several tokens at once: {reason}.")
    if any(cls.__name__ == "FSDPModule" for cls in type(model).__mro__):
        _refuse(f"The {whose} is sharded by FSDP: its forwards wait for every rank, which uneven acceptance breaks.")
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
    ids = compat.prompt_of(kwargs)
    embeds = kwargs.get("inputs_embeds")
    if isinstance(ids, torch.Tensor) and ids.dim() == 2 and ids.numel() == 0 and embeds is None:
        _refuse(f"The prompt is empty (input_ids of shape {tuple(ids.shape)}).", "Pass at least one token.")


def check_outputs(model, config) -> None:
    """Outputs per layer whose layers are not the cache's."""
    if not config.return_dict_in_generate:
        return
    text, name = compat.text_config(model), type(model).__name__
    if config.output_attentions:
        layers = own_part(new_cache(model)).layers
        keyless = [not isinstance(layer, DynamicLayer) for layer in layers]
        if any(keyless) or len(layers) < text.num_hidden_layers or getattr(text, "cross_attention_layers", None):
            _refuse(f"output_attentions: layers of {name} have no keys of their own to show.", "Drop it.")
    if config.output_hidden_states and hasattr(text, "altup_num_inputs"):
        _refuse(f"output_hidden_states: {name} gives several versions of each.", "Drop it.")


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
        "assistant_early_exit",
        "use_mtp",
        "speculation_type",
        "assistant_ensemble_weight",
    ):
        if getattr(config, name, None):
            _refuse(f"{name}={getattr(config, name)!r} asks for another source of drafts or a lossy mix.", "Drop it.")


def check_prompt(model, input_ids: torch.Tensor, model_kwargs: dict, pad_token) -> None:
    """Prompts that have no exact place in the ragged cache."""
    mask, embeds = model_kwargs.get(mask_name(model)), model_kwargs.get("inputs_embeds")
    decoder_only = not model.config.is_encoder_decoder
    if input_ids.dim() != 2 or (input_ids.shape[1] == 0 and (embeds is None or not embeds.shape[1])):
        _refuse(f"The prompt is empty (input_ids of shape {tuple(input_ids.shape)}).", "Pass at least one token.")
    if embeds is not None and decoder_only:
        if input_ids.shape[1] not in (0, embeds.shape[1]):
            _refuse(
                f"inputs_embeds has {embeds.shape[1]} columns and input_ids {input_ids.shape[1]}.",
                "Pass ids for all of them, or no ids (then the draft reads only the new tokens).",
            )
        width = model.get_input_embeddings().weight.shape[-1]
        if embeds.dim() != 3 or embeds.shape[-1] != width:
            _refuse(
                f"inputs_embeds has shape {tuple(embeds.shape)}; the target's embeddings are {width} wide.",
                f"Pass [rows, columns, {width}].",
            )
    if len(input_ids) > 1 and pad_token is None:
        _refuse("A batch needs a pad token and the model has none.", "Pass pad_token_id=.")
    if mask is not None:
        columns = embeds.shape[1] if embeds is not None and decoder_only else input_ids.shape[1]
        cached = compat.pop_cache(dict(model_kwargs))
        held = columns_held(cached) if cached is not None else 0
        if mask.dim() != 2 or len(mask) != len(input_ids) or mask.shape[1] not in (columns, held + columns):
            _refuse(
                f"The attention mask has shape {tuple(mask.shape)}, input_ids {tuple(input_ids.shape)}"
                + (f", and the cache holds {held} columns." if held else "."),
                "Pass one column per token of the whole text.",
            )
        mask = mask.bool()
        empty = (~mask.any(1)).nonzero().flatten().tolist()
        if empty:
            _refuse(f"Row {empty[0]} of the attention mask is all zero: its prompt is empty.", "Drop the row.")
        runs = mask[:, 0].long() + (mask[:, 1:] & ~mask[:, :-1]).sum(1)
        holes = (runs > 1).nonzero()
        if not len(holes):
            return
        windows = any(window_of(layer) is not None for layer in new_cache(model).layers) if decoder_only else False
        by_column = compat.text_config(model).model_type == "mpt" or probe.padding_counts(model)
        if windows or by_column:
            _refuse(
                f"Row {holes[0, 0].item()} of the attention mask has a hole, and {type(model).__name__} counts columns "
                f"({'sliding windows' if windows else 'no position_ids'}), so that its answer depends on the hole.",
                "Mask only padding, on the left or on the right.",
            )


def check_row_order(model, generator, streams_rows: bool) -> None:
    """A generate of the model's own may call ours for some of its rows only (Whisper: the audios that go on)."""
    given = "a list of generators" if isinstance(generator, (list, tuple)) else "a streamer of several rows"
    if isinstance(generator, (list, tuple)) or streams_rows:
        _refuse(
            f"{type(model).__name__} moves rows up when others have ended, so that {given} would lose track of them.",
            "Pass one audio at a time, or a single generator.",
        )


def check_images(model, prompt: Prompt, model_kwargs: dict) -> None:
    """Images and sound whose traces later forwards cannot be given row by row."""
    given = media_of(model, model_kwargs)
    name = type(model).__name__
    if given and model.config.model_type == "qwen4_exp":
        _refuse(f"{name} keeps the positions of images beside its cache, which is not followed here.")
    if model_kwargs.get("cross_attention_mask") is not None:
        _refuse(f"{name} attends to images through cross_attention_mask, which drafted blocks do not extend.")
    if given and any(prompt.layout.pads) and probe.padding_counts(model, by_probe=False):
        _refuse(
            f"{name} reads padding as text, and {given[0]} cannot be divided among rows of different length.",
            "Pass prompts of one length, or one at a time.",
        )
    if given and len(prompt.rows) > 1 and probe.drops_positions(model) and hasattr(model.base_model, "rope_deltas"):
        _refuse(
            f"{name} keeps the offsets of its rows' positions on the model, which rows that are decoded apart cannot "
            f"use ({given[0]} with {len(prompt.rows)} rows).",
            "Pass one row at a time.",
        )


def check_cache(model, config, cache: DynamicCache, prompt: Prompt) -> None:
    """A cache handed in must be of this model and batch, and hold a beginning of the text. One that holds all of it is
    shortened by its last column: the token after it is what the call has to find."""
    held, columns, rows = columns_held(cache), prompt.layout.columns, len(prompt.rows)
    layers = compat.text_config(model).num_hidden_layers
    filled = [x.keys for x in cache.layers if holds_kv(x) and x.keys.numel()]
    missing = new_cache(model).layers[len(cache.layers) :]
    if len(cache.layers) > layers or (filled and any(type(x) not in compat.DUMMY_LAYERS for x in missing)):
        _refuse(f"The cache has {len(cache.layers)} layers, the target {layers}.", "Pass a cache of this model.")
    if not filled:
        if any(keeps_state(layer) and any(layer.has_previous_state.values()) for layer in cache.layers):
            _refuse(
                f"The cache of a {type(model).__name__} holds states alone, which do not say how much they have read.",
                "Pass the whole text without a cache.",
            )
        return
    if hasattr(model, "_pp_stage"):
        _refuse(
            "A cache in the stages of a pipeline-parallel model does not say on every rank how much it has read.",
            "Pass a hf_specgen.SpecSession instead.",
        )
    if filled[0].shape[0] != rows:
        _refuse(
            f"The cache holds {filled[0].shape[0]} row(s) and this call has {rows}.",
            "Pass the cache of these rows (with num_return_sequences: one row per sequence).",
        )
    place = device_of(model, filled[0].device)
    if filled[0].device != place and not getattr(model, "hf_device_map", None):
        _refuse(f"The cache is on {filled[0].device}, the target on {place}.", "Move one of them.")
    if held > columns:
        _refuse(
            f"The cache holds {held} columns, the text has {columns}: it is longer than the prompt.",
            "Pass a cache that has read a beginning of the text, or a hf_specgen.SpecSession, which rewinds by itself.",
        )
    if not prompt.ids.shape[1] and held:
        _refuse("inputs_embeds with a filled cache and no input_ids.", "Pass input_ids as well, or an empty cache.")
    if probe.padding_counts(model) and any(prompt.layout.pads):
        _refuse(
            f"{type(model).__name__} takes no position_ids, so that a padded batch cannot go on from a cache.",
            "Pass one row at a time.",
        )
    if config.prefill_chunk_size is not None and held and not compat.CHUNKS_BEHIND_CACHE:
        _refuse(
            "prefill_chunk_size with a filled cache reads the text again in this transformers.", "Drop one of them."
        )
    if held == columns:
        for layer in cache.layers:
            if window_of(layer) is not None:
                _refuse(
                    "The cache has read the whole text, and its sliding layers cannot give the last token back.",
                    "Pass a cache of the text without its last token.",
                )
            if keeps_state(layer):
                _refuse(
                    "The cache has read the whole text, and its states cannot give the last token back.",
                    "Pass a cache of the text without its last token.",
                )
            if holds_kv(layer):
                layer.keys, layer.values = layer.keys[:, :, :-1], layer.values[:, :, :-1]


def cannot_be_kept(model) -> str | None:
    """Why no session can hold a cache of this target, or None."""
    if model.config.is_encoder_decoder:
        return "an encoder-decoder's text depends on its source"
    if compat.keeps_state(model):
        return "its states cannot go back to where two texts part"
    return None


def check_session(session, model, config, model_kwargs: dict, prompt: Prompt, cache) -> None:
    """A session goes by tokens: whatever else a cache depends on has no place in it."""
    if session is None:
        return
    way = "Drop spec_session, or the other."
    if reason := cannot_be_kept(model):
        _refuse(f"spec_session with a {type(model).__name__}: {reason}.", way)
    if cache is not None:
        _refuse("spec_session and a cache in one call.", way)
    extra = sorted(k for k, v in later_inputs(model, model_kwargs).items() if v is not None)
    extra += media_of(model, model_kwargs)
    if model_kwargs.get("inputs_embeds") is not None:
        extra.append("inputs_embeds")
    if extra:
        _refuse(f"spec_session with {extra}: a session compares token ids, and these change what they mean.", way)
    if prompt.shifts is not None:
        _refuse("spec_session with position_ids of the caller's own.", way)
    if config.return_dict_in_generate and (config.output_attentions or config.output_hidden_states):
        _refuse(
            "spec_session with output_attentions / output_hidden_states: a prompt that is not read again has none.", way
        )


def check_lengths(model, prompt: Prompt, max_length: int) -> None:
    """Position schemes under which a token's numbers depend on how far its forward reaches."""
    config = compat.text_config(model)
    rope = getattr(config, "rope_parameters", None) or {}
    for scheme in [rope, *(v for v in rope.values() if isinstance(v, dict))]:
        kind = scheme.get("rope_type")
        if kind not in ("dynamic", "longrope"):
            continue
        turn = scheme.get("original_max_position_embeddings") or getattr(
            config, "original_max_position_embeddings", None
        )
        turn = turn or config.max_position_embeddings
        longest = max(max_length - m + u for m, u in zip(prompt.masked, prompt.unseen, strict=True))
        shortest = min(prompt.layout.lengths)
        if longest > turn and (kind == "dynamic" or shortest <= turn):
            _refuse(
                f'Rotary positions of type "{kind}" change for a whole forward once it passes {turn} tokens, and this '
                f"call may reach {longest}: a drafted block would change them too early.",
                f"Keep prompt and new tokens within {turn}, or decode without spec_strategy.",
            )
