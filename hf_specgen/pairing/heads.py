"""Checkpoints that are no causal LM: drafting heads and adapters, told by their config."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# What gives a head away: keys that only heads carry, and words in class names ("Eagle2_5_VL…" is a vision model).
HEAD_KEYS = (
    "speculators_model_type",
    "speculators_config",
    "medusa_num_heads",
    "eagle_config",
    "dflash_config",
    "draft_vocab_size",
)
HEAD_CLASS = re.compile(r"[Ee]agle(?![\d_.]*VL)|EAGLE|[Mm]edusa|D[Ff]lash|MTP|NextN|Draft(er|Model)|Speculator")
HEAD_KINDS = {
    "eagle3": "an EAGLE-3 head",
    "eagle": "an EAGLE head",
    "medusa": "a Medusa head",
    "dflash": "a DFlash drafter",
    "mtp": "an MTP head",
    "nextn": "an MTP head",
    "draft_vocab_size": "an EAGLE-3 head",
}
EAGLE3_TENSORS = ("d2t", "t2d")
MEDUSA_TENSOR = re.compile(r"(medusa_head\.)?\d+\.\d+\.linear\.weight")


def describe_head(name: str, get: Callable[[str], Any], loaded_as: str | None) -> str | None:
    """What the checkpoint is instead of a causal LM, with a way out; None for a causal LM.

    AutoModel loads a head's folder as a plain model of its `model_type` and drops the head's own tensors without a
    word. So a loaded model is a head, too, when its config names a head's class and it was loaded as another.
    """
    architectures = [str(name) for name in get("architectures") or ()]
    marks = [key for key in HEAD_KEYS if get(key)]
    marks += [architecture for architecture in architectures if HEAD_CLASS.search(architecture)]
    model_type = str(get("model_type"))
    if model_type.endswith("_assistant"):  # transformers' own drafters (Gemma 4), which need the target's hidden states
        marks.append(model_type)
    elif loaded_as in marks:
        marks.remove(loaded_as)
    if not marks:
        return None
    told = " ".join([*marks, str(get("speculators_model_type"))]).lower()
    kind = next((kind for word, kind in HEAD_KINDS.items() if word in told), "a drafter")
    verifier = (get("speculators_config") or {}).get("verifier") or {}
    base = verifier.get("name_or_path") or get("base_model_name_or_path")
    return (
        f"{name} is {kind}{f' for {base}' if base else ''}, not a causal LM (its config says {', '.join(marks)}). "
        "Loaded as one, it loses its own tensors. Pass a whole causal LM instead."
    )


def head_by_tensors(tensors: list[str]) -> str | None:
    """The kind of head that a checkpoint's tensors are, where its config does not say; None for a whole model."""
    names = {tensor.removeprefix("model.") for tensor in tensors}
    if names & set(EAGLE3_TENSORS) or any(name.startswith("midlayer.") for name in names):
        return "an EAGLE-3 head"
    if "fc.weight" in names and not any(name.startswith("layers.1.") for name in names):
        return "an EAGLE head"
    return "a Medusa head" if any(MEDUSA_TENSOR.fullmatch(name) for name in names) else None


def describe_adapter(name: str, config: dict[str, Any]) -> str:
    base = config.get("base_model_name_or_path")
    return (
        f"{name} is a PEFT adapter{f' for {base}' if base else ''}, not a whole model. Load the base model with the "
        f"adapter, AutoPeftModelForCausalLM.from_pretrained({name!r}), and pass that."
    )
