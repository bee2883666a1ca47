"""Speculative decoding as a custom generation method: what transformers runs for `custom_generate=`."""

from hf_specgen import SpecGenerationMixin


def generate(model, **kwargs):
    """`model.generate(...)`, decoded by hf-specgen; the model need not be enabled and is left as it was.

    Args:
        spec_strategy: "rejection", "block" or "coupled"; None decodes plainly.
        kwargs: every other argument of `generate`, and those of hf-specgen (see the README of this repository).
    """
    if "spec_config" not in kwargs:
        kwargs.setdefault("spec_strategy", "rejection")
    return SpecGenerationMixin.generate(model, **kwargs)
