"""A model's config.json, as a dict whose values have the types that are counted on here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Where a multimodal config keeps the config of its language model.
TEXT_CONFIGS = ("text_config", "decoder", "language_config", "llm_config")

# What models call the same number.
CONTEXTS = ("max_position_embeddings", "max_target_positions", "n_positions", "n_ctx", "max_seq_len")
LAYERS = ("decoder_layers", "num_decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
HEADS += ("decoder_attention_heads", "num_decoder_attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_n_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim")
INNER = ("intermediate_size", "n_inner", "ffn_dim", "d_ff")


def read_json(path: Path) -> dict[str, Any]:
    """
    Raises:
        ValueError: not a JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """config.json or generation_config.json.

    Raises:
        ValueError: not a JSON object, or a value of a type that no model has there.
    """
    config = read_json(folder / name)
    _check(folder / name, config, "")
    return config


def text_facts(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the keys of its language model in reach."""
    return next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), dict)), {}) | config


def _check(path: Path, config: dict[str, Any], inside: str) -> None:
    for key, value in config.items():
        if value is not None and key in TYPES:
            wanted, fits = TYPES[key]
            if not fits(value):
                raise ValueError(f"{path}: {inside}{key} is {value!r}, not {wanted}. Take the model's own file.")
        if key in NESTED and isinstance(value, dict):
            _check(path, value, f"{inside}{key}.")


def _is_integer(value: Any) -> bool:
    return type(value) is int  # True is an int, too


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_size(value: Any) -> bool:
    return _is_integer(value) and value > 0


def _is_count(value: Any) -> bool:
    return _is_integer(value) and value >= 0


def _list_of(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_string(value: Any) -> bool:
    return isinstance(value, str)


def _is_rope(value: Any) -> bool:
    """Settings, or settings per type of layer."""
    if not _is_object(value):
        return False
    kinds = (value.get("rope_type"), value.get("type"))
    factor = value.get("factor")
    finite = factor is None or (type(factor) in (int, float) and abs(factor) < float("inf"))
    return finite and all(kind is None or _is_string(kind) for kind in kinds)


def _is_speculators(value: Any) -> bool:
    return _is_object(value) and _is_object(value.get("verifier") or {})


def _is_quantization(value: Any) -> bool:
    groups = (value.get("config_groups") or {}) if _is_object(value) else None
    if not _is_object(groups):
        return False
    return all(_is_object(group) and _is_object(group.get("weights") or {}) for group in groups.values())


def _or_list(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: fits(value) or _list_of(fits)(value)


INTEGER, SIZE = ("an integer", _is_integer), ("a positive integer", _is_size)
COUNTS = ("an integer from 0 on, or a list of them", _or_list(_is_count))
IDS = ("an integer or a list of integers", _or_list(_is_integer))
STRING, STRINGS = ("a string", _is_string), ("a list of strings", _list_of(_is_string))
OBJECT, BOOLEAN = ("an object", _is_object), ("true or false", lambda value: isinstance(value, bool))
ROPE = ("an object with a rope_type (a string) and perhaps a factor (a number)", _is_rope)
QUANTIZATION = ("an object, as the quantization's own library writes it", _is_quantization)

NESTED = (*TEXT_CONFIGS, "attn_config")
# A value may always be null: that is as if it were not there.
TYPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("vocab_size", "head_dim", *LAYERS, *HIDDEN), SIZE),
    **dict.fromkeys((*HEADS, *KV_HEADS, *INNER), COUNTS),  # one number, or one per layer
    **dict.fromkeys((*CONTEXTS, "num_kv_shared_layers"), INTEGER),
    "sliding_window": IDS,
    "eos_token_id": IDS,
    "model_type": STRING,
    "architectures": STRINGS,
    "layer_types": STRINGS,
    "layers_block_type": STRINGS,
    "tie_word_embeddings": BOOLEAN,
    "is_encoder_decoder": BOOLEAN,
    "rope_parameters": ROPE,
    "rope_scaling": ROPE,
    "speculators_config": ("an object, whose verifier is one, too", _is_speculators),
    "quantization_config": QUANTIZATION,
    "compression_config": QUANTIZATION,
    **dict.fromkeys(("text_config", "attn_config", "per_layer_config"), OBJECT),
}
