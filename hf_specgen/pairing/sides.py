"""One side of a pair: what its model says, and where the meaning of its token ids comes from.

Everything here is a small hashable value that changes when the thing behind it changes, so that a verdict can be kept
under it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.checkpoint import holds_weights
from ..checkpoints.config import CONTEXTS, read_config, read_json, text_facts
from ..checkpoints.hub import name_of
from .heads import describe_adapter, describe_head
from .tokenizers import FolderSource, TokenizerSource

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    ModelOrFolder = PreTrainedModel | PreTrainedTokenizerBase | str | os.PathLike[str]
    """What stands for a side; a tokenizer alone says nothing but what its ids mean."""

# Model types whose state cannot go back, or whose forward cannot check several tokens at once. Loaded models are asked
# themselves (cache/probe.py); this spares a folder's user the loading. Kept by tests/architectures.
CANNOT_GO_BACK = frozenset(
    [
        "cpmant",
        "deepseek_v4",
        "falcon_mamba",
        "jamba",
        "mamba",
        "minimax",
        "moshi",
        "openai-gpt",
        "prophetnet",
        "recurrent_gemma",
        "reformer",
        "rwkv",
        "xlm",
        "xlnet",
        "xlstm",
        "zamba",
    ]
)


@dataclass(frozen=True)
class Side:
    """All that a verdict depends on, for one side. Cheap to take: it is taken before every generate()."""

    name: str
    rows: int | None
    """Rows of logits; None when a folder's config does not say."""
    eos: tuple[int, ...]
    not_a_model: str | None
    """What the checkpoint is instead of a causal LM, with a way out; None for a causal LM."""
    source: TokenizerSource | FolderSource | None
    model_type: str | None = None
    context: int | None = None
    """Positions that the config promises; None where it names none."""
    rope: str | None = None
    """How positions beyond the trained ones are reached, e.g. "yarn × 4"; None for plain rotary or other positions."""
    encoder_decoder: bool = False

    @classmethod
    def of(cls, model: ModelOrFolder, tokenizer: PreTrainedTokenizerBase | None = None) -> Side:
        source = TokenizerSource.of(tokenizer) if tokenizer is not None else None
        if isinstance(model, (str, os.PathLike)):
            return cls._of_folder(Path(model), source)
        if not hasattr(model, "config"):
            if not hasattr(model, "get_vocab"):
                kind = type(model).__name__
                raise TypeError(f"check_pair needs a transformers model, a model's folder or a tokenizer, not {kind}")
            return cls(model.name_or_path or type(model).__name__, None, (), None, TokenizerSource.of(model))
        config, loaded_as = model.config, type(model).__name__
        text = config.get_text_config(decoder=True)
        name = getattr(config, "name_or_path", None) or loaded_as
        eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)

        def fact(key: str) -> Any:
            return getattr(text, key, None)

        return cls(
            name=name,
            rows=_logits_rows(model),
            eos=_ids(eos if eos is not None else getattr(config, "eos_token_id", None)),
            not_a_model=describe_head(name, lambda key: getattr(config, key, None), loaded_as),
            source=source or _source_beside(config),
            encoder_decoder=bool(config.is_encoder_decoder),
            **_positions(fact),
        )

    @classmethod
    def _of_folder(cls, folder: Path, source: TokenizerSource | None) -> Side:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a local folder")
        name = str(folder)
        adapter, whole = folder / "adapter_config.json", (folder / "config.json").exists()
        # A snapshot of the Hub's small files lacks the weights that its repository holds.
        if adapter.exists() and not (whole and (holds_weights(folder) or name_of(folder))):
            return cls(name, None, (), describe_adapter(name, read_json(adapter)), None)
        if not whole:
            raise FileNotFoundError(f"{folder} holds no config.json, so it is not a model's folder")
        config = read_config(folder)
        facts = text_facts(config)
        generation = "generation_config.json"
        eos = (read_config(folder, generation) if (folder / generation).exists() else {}).get("eos_token_id")
        return cls(
            name=name,
            rows=facts.get("vocab_size"),
            eos=_ids(eos if eos is not None else facts.get("eos_token_id")),
            not_a_model=describe_head(name, config.get, loaded_as=None),
            source=source or FolderSource.of(folder),
            encoder_decoder=bool(config.get("is_encoder_decoder")),
            **_positions(facts.get),
        )


def _positions(fact: Callable[[str], Any]) -> dict[str, Any]:
    scaling = fact("rope_parameters") or fact("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")  # a dict per layer type has neither
    factor = scaling.get("factor")
    scaled = kind not in (None, "default")
    return {
        "model_type": fact("model_type"),
        "context": next((n for key in CONTEXTS if (n := fact(key))), None),
        "rope": f"{kind}{f' × {factor:g}' if factor else ''}" if scaled else None,
    }


def _logits_rows(model: PreTrainedModel) -> int | None:
    head = model.get_output_embeddings()
    # out_features first: the weight of a quantized head is packed, that of a sharded one can be empty.
    if getattr(head, "out_features", None):
        return head.out_features
    if hasattr(head, "weight"):
        return head.weight.shape[0]
    return getattr(model.config.get_text_config(decoder=True), "vocab_size", None)  # on another stage of a pipeline


def _source_beside(config: Any) -> FolderSource | None:
    """The tokenizer in the folder the model was loaded from, or in its snapshot in the local hub cache."""
    name = getattr(config, "name_or_path", None)
    if not name:
        return None
    try:
        if os.path.isdir(name):
            return FolderSource.of(Path(name))
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json", revision=getattr(config, "_commit_hash", None))
        return FolderSource.of(Path(cached).parent) if isinstance(cached, str) else None
    except (OSError, ValueError):  # a folder not ours to read, or gone (its path is no repository's name)
        return None


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
