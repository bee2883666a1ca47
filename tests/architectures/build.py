"""A tiny random model of every architecture that transformers registers as a causal LM.

One generic rule shrinks whatever size fields a config class has; `OVERRIDES` holds what it cannot know, and why.
"""

import copy
import zlib

import torch
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCAB = 64
LAYERS = 3  # at least, and more where a family has more kinds of layers
WIDTH, INNER, HEADS, HEAD_DIM = 32, 64, 4, 8
WINDOW = 8  # texts of 30 tokens cross it several times
POSITIONS = 256

LAYER_FIELDS = [
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "num_blocks",
    "decoder_layers",
    "encoder_layers",
    "num_decoder_layers",
    "num_encoder_layers",
    "depth",
]
HEAD_FIELDS = [
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "decoder_attention_heads",
    "encoder_attention_heads",
    "num_decoder_attention_heads",
    "num_encoder_attention_heads",
]
_GROUPS = [
    (
        VOCAB,
        "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input pronunciation_vocab_size "
        "shape_vocab_size",
    ),
    (
        WIDTH,
        "hidden_size n_embd d_model embedding_size dim_model word_embed_proj_dim emb_dim embedding_dim "
        "input_embedding_size output_embedding_size lru_width attention_hidden_size embed_dim",
    ),
    (
        INNER,
        "intermediate_size intermediate_size_mlp n_inner dff dim_ff ffn_dim decoder_ffn_dim encoder_ffn_dim d_inner "
        "moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size dense_intermediate_size "
        "moe_shared_expert_intermediate_size shared_experts_intermediate_size expert_ffn_hidden_size ffn_hidden_size "
        "feed_forward_size mlp_dim prefix_dense_intermediate_size mamba_d_ssm",
    ),
    (
        HEADS,
        "mamba_n_heads mamba_num_heads linear_num_value_heads swa_num_attention_heads linear_num_heads "
        "num_query_groups",
    ),
    (
        HEAD_DIM,
        "head_dim attention_head_dim kv_channels dim_head d_head d_kv attention_head_size qk_rope_head_dim "
        "qk_nope_head_dim v_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim swa_head_dim rotary_dim "
        "query_pre_attn_scalar hidden_size_per_layer_input laurel_rank "
        "mamba_d_state state_size ssm_state_size mamba_dt_rank time_step_rank",
    ),
    (
        2 * HEAD_DIM,
        "q_lora_rank kv_lora_rank o_lora_rank index_head_dim mamba_d_head mamba_head_dim hc_lowrank "
        "router_hidden_size qk_head_dim",
    ),
    (
        WINDOW,
        "sliding_window sliding_window_size attention_chunk_size local_attention attention_window_size chunk_size "
        "mamba_chunk_size window_size index_topk block_size",
    ),
    (
        POSITIONS,
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions context_length model_max_length "
        "rel_extent position_bias_max_distance relative_max_distance",
    ),
    (16, "index_n_heads"),  # with few, scores are often exactly zero, and which keys are picked is a tie
    (4, "num_experts num_local_experts moe_num_experts n_routed_experts"),
    (
        2,
        "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k linear_num_key_heads n_group "
        "num_expert_group",
    ),
    (
        1,
        "topk_group first_k_dense_replace num_dense_layers n_groups mamba_n_groups mamba_ngroups n_shared_experts "
        "num_shared_experts moe_num_shared_experts num_nextn_predict_layers",
    ),
]
SIZES = {name: size for size, names in _GROUPS for name in names.split()}
SIZES |= dict.fromkeys(LAYER_FIELDS, LAYERS) | dict.fromkeys(HEAD_FIELDS, HEADS)
KV_HEADS = ["num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads"]
# Texts are to run to their full length, and a decoder without an encoder has no forced tokens.
ALWAYS = {
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "forced_eos_token_id": None,
    "is_decoder": True,
    "use_cache": True,
    "tie_word_embeddings": False,
}

_MIX = ["sliding_attention", "full_attention", "sliding_attention"]
_RECURRENT_MIX = ["linear_attention", "full_attention", "linear_attention"]
_CONV_MIX = ["conv", "full_attention", "conv"]
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_QWEN4_INDEXER = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
}
_GEMMA4_DRAFT = {
    "hidden_size_per_layer_input": 0,
    "vocab_size_per_layer_input": 0,
    "num_hidden_layers": 2,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"],
    "per_layer_config": {1: {"head_dim": 16}},
}
_DOTS3_SLIDING = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}
# model_type -> settings that the generic rule cannot know, and why.
OVERRIDES: dict[str, dict] = {
    # the defaults have no attention layer at all, or none among the first
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": _RECURRENT_MIX},
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": _CONV_MIX, "full_attn_idxs": [1], "block_multiple_of": 8},
    "lfm2_moe": {"layer_types": _CONV_MIX},
    # the defaults are all full attention, the family also has sliding or sparse layers
    "cohere_compass_text": {
        "layer_types": _MIX,
        "rope_parameters": {"sliding_attention": _ROPE | {"mrope_section": [2, 1, 1]}, "full_attention": None},
    },
    "minimax_m3_vl_text": {
        "layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
        "index_block_size": 4,
        "index_topk_blocks": 3,
        "index_n_heads": 2,
    },
    # their indexers have exact ties on our texts, which topk breaks by the number of keys: let them pick all
    "deepseek_v32": {"index_topk": 64},
    # scores of a width that can be told apart
    "cohere": {"logit_scale": 1.0},
    "cohere2": {"logit_scale": 1.0},
    "cohere2_moe": {"logit_scale": 1.0},
    # blocks small enough to be crossed
    "deepseek_v4": {"compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}},
    # sizes that have no default
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "layer_types": _MIX},
    "hunyuan_v1_dense": {"head_dim": HEAD_DIM},
    "hunyuan_v1_moe": {"head_dim": HEAD_DIM},
    "ministral": {"head_dim": HEAD_DIM},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": _QWEN4_INDEXER,
    "xmod": {"default_language": "en_XX"},
    # sizes that must fit each other
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "dory": {
        "layer_types": ["sliding_attention", "full_attention"] * 3,
        "num_hidden_layers": 6,
        "n_input_layers": 2,
        "n_recurrent_layers": 2,
        "n_output_layers": 2,
    },
    "dots3_note": {
        "vision_config": {"adapter_in_dim": WIDTH, "adapter_out_dim": WIDTH},
        "audio_config": {"adapter_input_size": WIDTH, "adapter_out_dim": WIDTH},
    },
    "dots3_note_text": {"index_topk": 64, "layer_types": None, "head_dim": 16, "per_layer_config": {2: _DOTS3_SLIDING}},
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "intermediate_size": INNER,
        "activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
    },
    "gemma4_assistant": {"_default": {"text_config": _GEMMA4_DRAFT}, "text_config": _GEMMA4_DRAFT},
    "gemma4_unified_assistant": {"text_config": _GEMMA4_DRAFT},
    "hrm_text": {"num_layers_per_stack": 1, "num_hidden_layers": 8},
    "llama4_text": {"moe_layers": [1, 2]},
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"head_dim": 16},
    "mllama": {"text_config": {"cross_attention_layers": [1]}},
    "reformer": {
        "attn_layers": ["local", "lsh", "local"],
        "axial_pos_shape": [16, 16],
        "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": WINDOW,
        "lsh_attn_chunk_length": WINDOW,
        "num_buckets": 4,
        "hash_seed": 0,  # else every run hashes differently
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},  # query widths are rounded up to 64
    "zamba": {"attention_hidden_size": 2 * WIDTH, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 2 * WIDTH, "attention_head_dim": 16, "mamba_headdim": 8},
    "zaya": {"num_experts_per_tok": 1},
}


class NotBuilt(Exception):
    """This architecture has no tiny text model here; the message says why."""


def architectures() -> list[str]:
    """Every registered `model_type`, sorted."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _layer_lists(default: dict, settled: dict) -> tuple[int, dict[str, list]]:
    """Of a default config: its number of layers, and its fields that hold one value per layer."""
    names = [n for n in LAYER_FIELDS if isinstance(default.get(n), int)]
    layers = default[names[0]] if names else 0
    lists = {n: v for n, v in default.items() if isinstance(v, (list, tuple)) and len(v) == layers and n not in settled}
    return layers, lists if layers > 2 else {}


def _chosen_layers(layers: int, lists: dict[str, list]) -> list[int]:
    """Which layers of the default model to keep: one of each kind, in their order, and at least `LAYERS`."""
    kinds = {}
    for i in range(layers):
        kinds.setdefault(tuple(str(values[i]) for values in lists.values()), i)
    chosen = sorted(kinds.values())
    chosen += [i for i in range(layers) if i not in chosen][: max(0, LAYERS - len(chosen))]
    return sorted(chosen)


def shrink(config_class: type[PreTrainedConfig], overrides: dict | None = None) -> PreTrainedConfig:
    """A tiny config of this class."""
    overrides = OVERRIDES.get(config_class.model_type, {}) | (overrides or {})
    required = overrides.get("_default", {})  # what the class's own defaults lack
    default = config_class(**required).to_dict()
    settings = dict(required)
    layers, lists = _layer_lists(default, overrides)
    chosen = _chosen_layers(layers, lists) if lists else range(LAYERS)
    heads = next((default[n] for n in HEAD_FIELDS if isinstance(default.get(n), int)), 0)
    for name, value in default.items():
        if name in ALWAYS:
            settings[name] = ALWAYS[name]
        elif name == "per_layer_config":
            kept = {new: value.get(f"{old:02}") for new, old in enumerate(chosen)}
            settings[name] = {i: {n: 2 * SIZES.get(n, v) for n, v in own.items()} for i, own in kept.items() if own}
        elif name in lists:
            kept = [value[i] for i in chosen]
            settings[name] = [SIZES.get(name, v) for v in kept]
        elif name in LAYER_FIELDS and isinstance(value, int):
            settings[name] = len(chosen)
        elif name in SIZES and isinstance(value, int) and not isinstance(value, bool):
            settings[name] = SIZES[name] if value else value
        elif name in KV_HEADS and isinstance(value, int):
            settings[name] = HEADS if value >= heads else min(value, HEADS // 2)
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int):
            # Placeholders of images and sound are no text: a target that says one is never followed by its draft.
            placeholder = name.startswith(("image", "video", "audio", "vision"))
            settings[name] = VOCAB if placeholder else min(value, VOCAB - 1)
    for name, sub_class in config_class.sub_configs.items():
        if isinstance(default.get(name), dict):
            inner = CONFIG_MAPPING[default[name]["model_type"]] if sub_class.__name__ == "AutoConfig" else sub_class
            settings[name] = shrink(inner, overrides.get(name))
    nested = set(config_class.sub_configs)
    settings |= {n: v for n, v in overrides.items() if n != "_default" and not (n in nested and isinstance(v, dict))}
    return config_class(**settings)


def _text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """Musicgen's causal LM is built from one of its sub-configs."""
    wanted = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)].config_class
    if wanted is type(config):
        return config
    return next((getattr(config, n) for n, c in config.sub_configs.items() if c is wanted), config)


def sharpen(model, floor: float = 0.15) -> None:
    """Make the argmax decisive: matrices are scaled up to a standard deviation that lets every layer matter."""
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2 and p.is_floating_point() and 0 < p.std() < floor:
                p.mul_(floor / p.std())


def build(name: str):
    """The tiny model of architecture `name`: float32, eval, on the CPU; the same weights every time.

    Raises:
        NotBuilt: with the reason.
    """
    torch.manual_seed(zlib.crc32(name.encode()))
    try:
        config = shrink(CONFIG_MAPPING[name])
        model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(_text_part(config), dtype=torch.float32)
    except Exception as error:
        raise NotBuilt(f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error) else ''}") from error
    model = model.float().eval()
    sharpen(model)
    model.generation_config = type(model.generation_config)(pad_token_id=0, bos_token_id=1)
    return model


def noisy_copy(model, noise: float = 0.05, seed: int = 1):
    """A draft that agrees often, not always. `noise=0` is an exact copy."""
    draft = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in draft.parameters():
            if noise and p.dim() >= 2 and p.is_floating_point():
                p.add_(torch.randn(p.shape, generator=generator) * p.std() * noise)
    return draft
