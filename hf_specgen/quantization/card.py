"""The model card of a quantized draft."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ..cards.parts import (
    DRAFTS_PART,
    QUANTIZATION,
    QUANTIZED_LIMITS,
    TAGS,
    THE_DRAFT,
    THE_TARGET,
    Section,
    facts,
    rendered,
    usage,
)
from ..checkpoints.hub import name_of, split_name
from ..environment import version_of
from .writing import IN_AWQ_FORMAT, METHODS

if TYPE_CHECKING:
    from .writing import Written

PACKAGES = ("hf-specgen", "torch", "transformers", "bitsandbytes", "torchao", "gptqmodel")


def card(written: Written) -> str:
    """The whole file."""
    from huggingface_hub import ModelCardData

    snapshot = name_of(written.source)
    base_model = None if snapshot is None else split_name(snapshot)[0]
    name, base = written.folder.name, base_model or written.source.name
    group = written.quantization.get("group_size")
    method = METHODS[written.method] + (f"; groups of {group} weights" if group else "")
    same = f"same best token at {written.same_choice:.0%} of {written.positions} positions"
    if written.method in IN_AWQ_FORMAT:
        head = (
            "stored as it was; loaded by hf-specgen on a CPU, it is rounded to 4-bit integers "
            f"(`{written.head}`), elsewhere it stays dense"
        )
    else:
        head = f"quantized like the rest (`{written.head}`); the input embedding is dense"
    made = facts(
        [
            ("base model", base),
            ("method", method),
            ("head", head),
            ("weights on disk", f"{written.bytes_after / 1e6:.1f} MB, before {written.bytes_before / 1e6:.1f} MB"),
            ("nearness", f"cosine of the logits {written.likeness:.3f}, {same}"),
            ("made with", ", ".join(f"{name} {found}" for name in PACKAGES if (found := version_of(name)))),
            ("command", f"`{command(written)}`"),
        ]
    )
    return rendered(
        ModelCardData(
            base_model=base_model,  # no id is known of a local folder
            base_model_relation=base_model and "quantized",
            library_name="transformers",
            pipeline_tag="text-generation",
            tags=[*TAGS, "draft", "quantized"],
        ),
        name,
        f"{base}, quantized as a draft for speculative decoding. {DRAFTS_PART}",
        [Section(QUANTIZATION, made), usage(THE_TARGET, THE_DRAFT), Section("Limits", QUANTIZED_LIMITS)],
    )


def command(written: Written) -> str:
    group = f" --group-size {written.quantization['group_size']}" if written.method in IN_AWQ_FORMAT else ""
    text = "" if written.calibration is None else f" --calibration {shlex.quote(written.calibration.name)}"
    source, out = shlex.quote(written.source.name), shlex.quote(written.folder.name)
    return f"hf-specgen quantize {source} --to {written.method}{group}{text} --out {out}"
