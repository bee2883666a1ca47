"""Writes hf_specgen/checkpoints/tensors.json: `python tests/checkpoints/tensor_table.py`. test_checkpoint.py compares.

A family is in it if its layers are all alike and its checkpoints' names are its modules' names.
"""

import json
import re

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from hf_specgen.checkpoints.expected import TABLE

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi3",
    "smollm3",
    "olmo2",
    "granite",
    "gpt2",
    "gpt_neox",
)
FLAGS = ("attention_bias", "mlp_bias")
"""Settings that add tensors to every layer."""
HEADS = ("lm_head.weight", "embed_out.weight")
LAYERS = 3


def names(model_type: str, layers: int = LAYERS, **settings) -> set[str]:
    """What a checkpoint of this model holds, head included, whether tied or not."""
    config = CONFIG_MAPPING[model_type](num_hidden_layers=layers, **settings)
    with torch.device("meta"):
        return set(AutoModelForCausalLM.from_config(config).state_dict())


def patterns(found: set[str]) -> list[str]:
    """With "*" for a layer's number. Every layer must have the same."""
    every = {re.sub(r"\.\d+\.", ".*.", name) for name in found}
    assert {p.replace("*", str(i)) for p in every for i in range(LAYERS)} == found
    return sorted(every)


def family(model_type: str) -> dict:
    """One entry of the table: tensors that are always there, those of the head, and those that a setting adds."""
    defaults = CONFIG_MAPPING[model_type]()
    flags = [flag for flag in FLAGS if hasattr(defaults, flag)]
    off = dict.fromkeys(flags, False)
    base = names(model_type, **off)
    head = sorted(base & set(HEADS))
    return {
        "tensors": patterns(base - set(head)),
        "head": head,
        "tied": bool(defaults.tie_word_embeddings),
        "flags": {f: [getattr(defaults, f), patterns(names(model_type, **off | {f: True}) - base)] for f in flags},
    }


if __name__ == "__main__":
    TABLE.write_text(json.dumps({name: family(name) for name in FAMILIES}, indent=1) + "\n")
