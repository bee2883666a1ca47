"""How many bytes a model takes: weights under a dtype and a quantization, KV cache, activations; and how many it reads
per token, from which a draft's cost follows. From a config and headers alone: no torch, no weights."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import Checkpoint, Tensor
from .config import HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, text_facts
from .expected import EMBEDDING, HEAD, TOKENS

Config = Mapping[str, Any]
"""The content of a config.json, or a transformers config's `to_dict()` (which also holds the defaults)."""

EXPERT = re.compile(r"\.experts\.")
READ_ONCE = re.compile(r"(^|\.)(encoder|vision_tower|vision_model|visual|audio_tower|multi_modal_projector)\.")
"""Parts that read a prompt, and no generated token."""

DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class WeightFormat:
    """How a quantization stores the weights `[rows, columns]` of linear layers; all else keeps its dtype."""

    bits: int
    group: int | None
    """Weights along a row that share one scale; None: the whole row."""
    group_bytes: float
    """Of a group's scale, and zero point if it has one."""
    head: bool = False
    """Whether the output head is quantized as well. A tied one becomes a quantized copy beside the embedding."""

    def bytes(self, shape: tuple[int, ...]) -> int:
        rows, columns = shape
        groups = rows * math.ceil(columns / self.group) if self.group else rows
        return math.ceil(rows * columns * self.bits / 8 + groups * self.group_bytes)


FORMATS = {
    "nf4": WeightFormat(4, 64, 4),  # bitsandbytes: a float32 absmax per 64 weights
    "fp4": WeightFormat(4, 64, 4),
    "int8": WeightFormat(8, None, 4),
    "awq": WeightFormat(4, 128, 2.5),  # a float16 scale and a 4-bit zero point per group
    "int4": WeightFormat(4, 128, 4),  # torchao: scale and zero point in bfloat16
    "torchao-int8": WeightFormat(8, None, 2),
}
DENSE = (None, "gguf")
"""GGUF weights are unpacked when transformers loads them."""


def weight_format(quantization: Any, *, head: bool = False) -> WeightFormat | None:
    """What a quantization (a name, or a transformers quantization config or its dict) makes of linear weights; None:
    they stay dense.

    Args:
        head: whether a quantization given by name takes the head too. AWQ never does; a config says it itself.

    Raises:
        ValueError: not a quantization whose sizes are known.
    """
    if quantization in DENSE:
        return None
    if isinstance(quantization, str):
        if quantization not in FORMATS:
            known = ", ".join(repr(name) for name in (*FORMATS, "gguf"))
            raise ValueError(f"{quantization!r} is no quantization known here: pass one of {known}, or a config.")
        return replace(FORMATS[quantization], head=head and quantization != "awq")
    told = quantization if isinstance(quantization, Mapping) else quantization.to_dict()
    method = str(getattr(told.get("quant_method"), "value", told.get("quant_method")))
    if method == "gguf":
        return None
    if method == "bitsandbytes":
        takes_head = told.get("llm_int8_skip_modules") == []
        if not (told.get("load_in_4bit") or told.get("_load_in_4bit")):
            return replace(FORMATS["int8"], head=takes_head)
        scale = 1 + 4 / 256 if told.get("bnb_4bit_use_double_quant") else 4
        return replace(FORMATS["nf4"], group_bytes=scale, head=takes_head)
    if method == "torchao":
        name = "int4" if "int4" in str(told.get("quant_type")).lower() else "torchao-int8"
        return replace(FORMATS[name], head="lm_head" not in (told.get("modules_to_not_convert") or ["lm_head"]))
    if told.get("bits"):
        return WeightFormat(told["bits"], told.get("group_size") or None, 2 + told["bits"] / 8)
    raise ValueError(f"The sizes under quantization {method!r} are not known here: pass one of {', '.join(FORMATS)}.")


def dtype_name(dtype: Any, config: Config, checkpoint: Checkpoint | None = None) -> str:
    """torch's name of the dtype that `from_pretrained(dtype=dtype)` loads in; "auto" is the config's, else the
    checkpoint's."""
    if dtype == "auto":
        facts = text_facts(config)
        dtype = config.get("dtype") or config.get("torch_dtype") or facts.get("dtype") or facts.get("torch_dtype")
        dtype = dtype or (checkpoint.dtype if checkpoint is not None else None) or "float32"
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPE_BYTES:
        raise ValueError(f"dtype {dtype!r} is none that a model is loaded in: pass 'auto' or {', '.join(DTYPE_BYTES)}.")
    return name


def tensor_bytes(name: str, shape: tuple[int, ...], itemsize: int, form: WeightFormat | None) -> int:
    """One weight in memory. Linear weights are two-dimensional; embeddings and fused experts are never quantized."""
    takes = form is not None and len(shape) == 2 and name.endswith(".weight") and not EMBEDDING.search(name)
    if takes and (form.head or not HEAD.search(name)):
        return form.bytes(shape)
    return math.prod(shape) * itemsize


def weight_bytes(
    config: Config, checkpoint: Checkpoint, *, dtype: Any = "auto", form: WeightFormat | None = None
) -> int | None:
    """All weights in memory, tied embeddings once. A quantized checkpoint takes what it takes on disk. None where the
    headers are not known (GGUF, pickles)."""
    if not checkpoint.tensors:
        return None
    sizes = _sizes(config, checkpoint, dtype, form)
    return sum(sizes.values()) + _tied_head(config, checkpoint, dtype, form, copy=True)


def bytes_per_token(
    config: Config, checkpoint: Checkpoint, *, dtype: Any = "auto", form: WeightFormat | None = None
) -> int | None:
    """Weight bytes that one token's forward reads: all but the input embedding and encoders; the head also where it is
    tied; of experts, the active ones. None where the headers are not known."""
    if not checkpoint.tensors:
        return None
    active = active_experts(text_facts(config))
    total = 0.0
    for name, size in _sizes(config, checkpoint, dtype, form).items():
        if not EMBEDDING.search(name) and not READ_ONCE.search(name):
            total += size * active if EXPERT.search(name) else size
    return int(total) + _tied_head(config, checkpoint, dtype, form, copy=False)


def kv_bytes_by_layer(config: Config, batch_size: int, length: int, dtype: Any = "auto") -> list[int]:
    """KV cache of each decoder layer for `batch_size` rows of `length` positions.

    As our own cache stores it: sliding layers hold their window and some positions behind it, latent attention what it
    compresses keys and values to. States of recurrent layers do not grow and are not counted. In an encoder-decoder,
    each layer also holds as many positions of the encoder.
    """
    facts = text_facts(config)
    facts = facts | (facts.get("attn_config") or {})
    own = {int(layer): settings for layer, settings in (facts.get("per_layer_config") or {}).items()}
    per_element = DTYPE_BYTES[dtype_name(dtype, config)] * batch_size * (2 if config.get("is_encoder_decoder") else 1)
    return [
        per_element * _kv_elements(facts | own.get(i, {}), kind) * _positions_held(kind, facts, length)
        for i, kind in enumerate(_layer_kinds(facts))
    ]


def kv_bytes(config: Config, batch_size: int, length: int, dtype: Any = "auto") -> int:
    """Of all layers."""
    return sum(kv_bytes_by_layer(config, batch_size, length, dtype))


def activation_bytes(
    config: Config, batch_size: int, length: int, num_assistant_tokens: int = 5, dtype: Any = "auto"
) -> int:
    """To first order, the larger of a prefill's widest layer (`[batch, length]` positions: residual, attention and
    MLP) with one position's logits, and a block's logits in float32, twice (raw and processed)."""
    facts = text_facts(config)
    hidden = _first(facts, *HIDDEN) or 0
    inner = _first(facts, *INNER) or 4 * hidden
    inner = max(inner) if isinstance(inner, (list, tuple)) else inner  # one per layer
    vocabulary = facts.get("vocab_size") or 0
    prefill = batch_size * length * (4 * hidden + 3 * inner) * DTYPE_BYTES[dtype_name(dtype, config)]
    prefill += batch_size * vocabulary * 4
    return max(prefill, 2 * batch_size * (num_assistant_tokens + 1) * vocabulary * 4)


def _sizes(config: Config, checkpoint: Checkpoint, dtype: Any, form: WeightFormat | None) -> dict[str, int]:
    """Bytes of each of the checkpoint's tensors in memory."""
    tied = _is_tied(config, checkpoint)
    kept = {name: t for name, t in checkpoint.tensors.items() if not (tied and HEAD.search(name))}
    if checkpoint.quantization is not None:
        return {name: tensor.bytes for name, tensor in kept.items()}
    itemsize = DTYPE_BYTES[dtype_name(dtype, config, checkpoint)]
    return {name: tensor_bytes(name, tensor.shape, itemsize, form) for name, tensor in kept.items()}


def _is_tied(config: Config, checkpoint: Checkpoint) -> bool:
    """A head is tied if the config says so; if it says nothing, if the checkpoint has none."""
    tied = config.get("tie_word_embeddings", text_facts(config).get("tie_word_embeddings"))
    return bool(tied) if tied is not None else not any(map(HEAD.search, checkpoint.tensors))


def _tied_head(config: Config, checkpoint: Checkpoint, dtype: Any, form: WeightFormat | None, copy: bool) -> int:
    """Bytes of a tied head: that of its quantized copy; without one, those of the embedding, or 0 for `copy`."""
    tensor = next((t for n, t in checkpoint.tensors.items() if TOKENS.search(n)), None)
    if tensor is None or not _is_tied(config, checkpoint):
        return 0
    if form is not None and form.head and checkpoint.quantization is None:
        return form.bytes(tensor.shape)
    return 0 if copy else _dense(tensor, config, checkpoint, dtype)


def _dense(tensor: Tensor, config: Config, checkpoint: Checkpoint, dtype: Any) -> int:
    return tensor.elements * DTYPE_BYTES[dtype_name(dtype, config, checkpoint)]


def active_experts(facts: Config) -> float:
    """The share of a mixture's experts that a token is sent to; 1 for dense models."""
    experts = _first(facts, "num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
    chosen = _first(facts, "num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k_experts")
    return chosen / experts if experts and chosen else 1.0


# ---- what a layer's cache holds -------------------------------------------------------------------------------------
STATES = ("linear_attention", "conv", "mamba", "recurrent", "moe", "mlp")
"""Kinds of layers without keys and values."""

FULL_EVERY = {"gemma2": 2, "gpt_oss": 2, "cohere2": 4, "olmo3": 4, "gemma3_text": 6, "gemma3": 6}
"""Models whose older configs do not list their layers: each n-th looks at everything, the others at a window."""

BEHIND_WINDOW = 64
"""Positions, at least, that a sliding layer of ours holds beyond its window: see RaggedCache.assemble."""


def _kv_elements(facts: Config, kind: str) -> int:
    """Keys and values of one position in one layer, in elements."""
    if facts.get("kv_lora_rank"):
        return facts["kv_lora_rank"] + facts["qk_rope_head_dim"]
    heads, hidden = _first(facts, *HEADS), _first(facts, *HIDDEN)
    kv_heads = _first(facts, *KV_HEADS) or heads
    if heads is None:
        return 0
    if "new_decoder_architecture" in facts:  # Falcon repeats its few heads before it caches them
        kv_heads = heads
    if facts.get("multi_query") and not facts.get("new_decoder_architecture"):
        kv_heads = 1
    head_dim = _first(facts, "head_dim", "d_kv", "kv_channels")
    if kind == "full_attention":  # Gemma 4's are wider
        head_dim = facts.get("global_head_dim") or head_dim
        kv_heads = facts.get("num_global_key_value_heads") or kv_heads
    return 2 * kv_heads * (head_dim or hidden // heads)


def _layer_kinds(facts: Config) -> list[str]:
    kinds = facts.get("layer_types") or facts.get("layers_block_type")
    layers = len(kinds) if kinds else _first(facts, *LAYERS)
    if layers is None:
        raise ValueError(f"The config of model_type {facts.get('model_type')!r} names no number of layers.")
    if not kinds:
        every = facts.get("sliding_window_pattern") or FULL_EVERY.get(str(facts.get("model_type")))
        kinds = ["full_attention"] * layers
        if _window(facts) is not None:
            kinds = ["sliding_attention" if not every or (i + 1) % every else "full_attention" for i in range(layers)]
    shared = facts.get("num_kv_shared_layers") or 0  # the last ones read the keys and values of earlier layers
    return [*kinds[: layers - shared], *["shared"] * shared]


def _window(facts: Config) -> int | None:
    if facts.get("use_sliding_window") is False:
        return None
    return _first(facts, "sliding_window", "attention_chunk_size")


def _positions_held(kind: str, facts: Config, length: int) -> int:
    if kind == "shared" or kind in STATES:
        return 0
    window = _window(facts)
    if window is None or not ("sliding" in kind or "chunked" in kind):
        return length
    return min(length, window + max(window // 4, BEHIND_WINDOW))


def _first(facts: Config, *names: str) -> int | None:
    """The first of these settings that is there and not None."""
    return next((facts[name] for name in names if facts.get(name) is not None), None)
