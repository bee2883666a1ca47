"""One tiny model per architecture family: what differs in attention, cache and positions, at hidden size 32.

Sliding windows and chunks are 8 positions, so that a text of 50 tokens crosses them several times.
"""

import functools
from dataclasses import dataclass, field

import pytest
import torch
import transformers
from toys import noisy, plain, tiny

WINDOW = 8
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]


@dataclass(frozen=True)
class Family:
    """`noise`: of the draft's weights, so that it agrees often, not always. `grouped`: rows of different length cannot
    share a forward."""

    config: str
    settings: dict = field(default_factory=dict)
    noise: float = 0.05
    grouped: bool = False


FAMILIES = {
    "llama": Family("LlamaConfig"),
    "llama_mha": Family("LlamaConfig", {"num_key_value_heads": 4}),
    "qwen2": Family("Qwen2Config", {"seed": 1}),
    "qwen2_sliding": Family(
        "Qwen2Config", {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": WINDOW}
    ),
    "qwen3": Family("Qwen3Config", {"head_dim": 8}),
    "mistral": Family("MistralConfig", {"sliding_window": WINDOW}),
    "gemma2": Family(
        "Gemma2Config",
        {
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "sliding_window": WINDOW,
            "layer_types": MIXED,
            "attn_implementation": "eager",
        },
    ),
    "gemma3_text": Family(
        "Gemma3TextConfig",
        {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": WINDOW, "layer_types": MIXED},
    ),
    "cohere2": Family("Cohere2Config", {"sliding_window": WINDOW, "layer_types": MIXED, "logit_scale": 1.0}),
    "gpt_oss": Family(
        "GptOssConfig",
        {
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": MIXED,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        noise=0.03,
    ),
    "phi3": Family("Phi3Config"),
    "olmo2": Family("Olmo2Config"),
    "mixtral": Family("MixtralConfig", {"num_local_experts": 4, "seed": 2}, noise=0.1),
    "deepseek_v3": Family(
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
    "granite": Family("GraniteConfig"),
    "falcon": Family("FalconConfig", {"new_decoder_architecture": True, "num_kv_heads": 2, "seed": 1}),
    "falcon_alibi": Family("FalconConfig", {"alibi": True, "multi_query": False}, grouped=True),
    "starcoder2": Family("Starcoder2Config", {"seed": 1}),
    "stablelm": Family("StableLmConfig"),
    "gpt_neox": Family("GPTNeoXConfig"),
    "gpt2": Family("GPT2Config", {"n_embd": 32, "n_layer": 3, "n_head": 4}, noise=0.1),
    "opt": Family("OPTConfig", {"ffn_dim": 64, "word_embed_proj_dim": 32}),
    "bloom": Family("BloomConfig", {"n_layer": 3, "n_head": 4, "seed": 1}, noise=0.1, grouped=True),
    "mpt": Family(
        "MptConfig",
        {"d_model": 32, "n_heads": 4, "n_layers": 3, "max_seq_len": 512, "use_cache": True, "seed": 2},
        noise=0.1,
        grouped=True,
    ),
    "llama4_text": Family(
        "Llama4TextConfig",
        {
            "head_dim": 8,
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
        },
    ),
}


@functools.cache
def build(name: str, eos: int | tuple[int, ...] | None = None, **overrides):
    """The family's target (shared by all tests that ask for the same one: leave it as it is)."""
    family = FAMILIES[name]
    if not hasattr(transformers, family.config):
        pytest.skip(f"this transformers has no {family.config}")
    settings = {"tie_word_embeddings": False, "eos_token_id": eos} | family.settings | overrides
    return tiny(getattr(transformers, family.config), **settings)


@functools.cache
def draft_of(name: str, eos: int | tuple[int, ...] | None = None):
    """A noisy copy of `build(name, eos)`."""
    return noisy(build(name, eos), FAMILIES[name].noise)


@functools.cache
def alone(name: str, row: tuple[int, ...], new: int):
    """The oracle: plain greedy `generate` of a row of `build(name)`, unpadded: new ids, logits `[new, vocabulary]`."""
    ids = torch.tensor([row])
    out = plain(
        build(name),
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    return out.sequences[0, len(row) :].tolist(), torch.cat(out.logits)
