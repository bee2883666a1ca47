"""Which tensors a checkpoint must hold to be the whole model that transformers would load.

transformers' own loader knows it exactly, and takes seconds to import. tensors.json knows it for the families that
people pair, whose layers are all alike (tests/checkpoints/tensor_table.py writes it). It is believed only where it
agrees with the checkpoint.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from .headers import CheckpointError

TABLE = Path(__file__).with_name("tensors.json")
# Buffers that older versions saved; transformers drops them without a word.
IGNORED = re.compile(r"rotary_emb\.inv_freq$")

TOKENS = re.compile(r"(^|\.)(embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)\.weight$")
OWN_HEAD_DIM = ("gemma", "gemma2", "gemma3_text", "qwen3")
"""Families of the table whose head_dim, where the config does not say it, is a number and not hidden / heads."""
EMBEDDING = re.compile(rf"{TOKENS.pattern}|(^|\.)(embed_positions|wpe)\.weight$")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")

Difference = tuple[tuple[str, ...], tuple[str, ...]]
"""Names that are missing, and names that are unexpected, sorted."""
Misfit = tuple[str, tuple[int, ...], tuple[int, ...]]
"""A tensor's name, its shape in the file, and its shape by the config."""


@lru_cache(maxsize=1)
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(TABLE.read_text(encoding="utf-8"))


def tensor_names(config: Mapping[str, Any]) -> tuple[set[str], set[str]] | None:
    """The tensors that the causal LM of this config needs, and those that it may have; None: not in the table."""
    family = _table().get(str(config.get("model_type")))
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    if family is None or not isinstance(layers, int):
        return None
    patterns = list(family["tensors"])
    for flag, (default, extra) in family["flags"].items():
        patterns += extra if config.get(flag, default) else []
    needed = {pattern.replace("*", str(i)) for pattern in patterns for i in range(layers)}
    head = set(family["head"])
    tied = config.get("tie_word_embeddings", family["tied"])
    return (needed, head) if tied else (needed | head, set())


def compare(names: Collection[str], config: Mapping[str, Any], by_module: bool = False) -> Difference | None:
    """By the table; None where it does not know the model.

    Args:
        names: of the checkpoint's tensors.
        by_module: the checkpoint is quantized: what counts is that a module has tensors, not what they are called.
    """
    known = tensor_names(config)
    if known is None:
        return None
    needed, allowed = known
    found = {name for name in names if not IGNORED.search(name)}
    if not by_module:
        return tuple(sorted(needed - found)), tuple(sorted(found - needed - allowed))
    modules = {_module(name) for name in needed | allowed}
    around = {prefix for name in modules for prefix in _prefixes(name)}
    held = {prefix for name in found for prefix in _prefixes(name)}
    missing = sorted(name for name in needed if _module(name) not in held)
    strange = {name for name in found if modules.isdisjoint(_prefixes(name)) and _module(name) not in around}
    return tuple(missing), tuple(sorted(strange))


def misfit(shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any]) -> Misfit | None:
    """The first tensor whose shape is not the config's, for models in the table: the config is another model's."""
    if str(config.get("model_type")) not in _table():
        return None
    wanted = {kind: shape for kind, shape in _shapes(config).items() if all(type(n) is int for n in shape)}
    for name, shape in shapes.items():
        kind = "embedding" if TOKENS.search(name) else name.removesuffix(".weight").rpartition(".")[2]
        if kind in wanted and name.endswith(".weight") and shape != wanted[kind]:
            return name, shape, wanted[kind]
    return None


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """By the last part of a module's name; None in it where the config does not say."""
    hidden, inner = config.get("hidden_size", config.get("n_embd")), config.get("intermediate_size")
    heads, kv_heads, width = (config.get(k) for k in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if width is None and hidden and type(heads) is int and heads and config["model_type"] not in OWN_HEAD_DIM:
        width = hidden // heads
    queries, keys = (n * width if n and width else None for n in (heads, kv_heads))
    return {
        "embedding": (config.get("vocab_size"), hidden),
        "q_proj": (queries, hidden),
        "k_proj": (keys, hidden),
        "v_proj": (keys, hidden),
        "o_proj": (hidden, queries),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def model_class(config: Mapping[str, Any]):
    """The class that loads this config: AutoModelForCausalLM, or an encoder-decoder's or a multimodal model's own. None
    if this transformers does not have it."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    own = next((getattr(transformers, str(name), None) for name in config.get("architectures") or ()), None)
    if own is not None and (config.get("is_encoder_decoder") or "text_config" in config):
        return own
    return transformers.AutoModelForCausalLM if config.get("model_type") in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES else own


def ask_transformers(folder: Path, config: Mapping[str, Any]) -> tuple[Difference, Misfit | None] | None:
    """By transformers' own loader, on the meta device: no weights are read. None where it cannot say: a class that it
    does not have (remote code is not run), or no accelerate, which it needs for this.

    Takes seconds, so an answer is kept under the folder's files: the pair check, `load_pair` and the planner all ask.
    """
    if importlib.util.find_spec("accelerate") is None:
        return None
    states = ((file.name, file.stat()) for file in folder.iterdir() if file.suffix in (".json", ".safetensors"))
    files = tuple(sorted((name, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for name, s in states))
    return _asked(folder, files, json.dumps(config, sort_keys=True))


@lru_cache(maxsize=16)
def _asked(folder: Path, files: tuple, config: str) -> tuple[Difference, Misfit | None] | None:
    from transformers.utils import logging

    cls = model_class(json.loads(config))
    if cls is None:
        return None
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        _, told = cls.from_pretrained(
            folder,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except ImportError:
        raise
    except Exception as error:  # whatever a config that does not fit, or that was edited, makes a model's code raise
        cause = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"transformers cannot make {folder}'s model from its config: {type(error).__name__}: {cause}"
        ) from error
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
    name, shape, wanted = next(iter(sorted(told["mismatched_keys"])), (None, (), ()))
    difference = tuple(sorted(told["missing_keys"])), tuple(sorted(told["unexpected_keys"]))
    return difference, (name, tuple(shape), tuple(wanted)) if name else None


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _prefixes(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:n]) for n in range(1, len(parts))}
