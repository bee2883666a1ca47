"""Checkpoints in AutoAWQ's format, which transformers loads through gptqmodel.

gptqmodel patches transformers and safetensors when it is imported: transformers does so in `load`, and nobody before.
"""

from __future__ import annotations

from .base import Backend, dense_head, replace_head


class Awq(Backend):
    name = "awq"
    quantizes = True
    packages = ("gptqmodel>=7.6.0", "accelerate>=1.10")
    devices = frozenset({"cpu", "cuda", "xpu"})

    def dtype(self, asked, device):
        """The kernels' own: on a CPU any other is unpacked in every forward, 8 s a step for 0.5 billion weights."""
        import torch

        return torch.bfloat16 if device.type == "cpu" else torch.float16

    def quantize_head(self, model):
        """The format leaves it dense. On a CPU torch's own 4-bit kernel serves; elsewhere it stays."""
        from .int4_linear import Int4Linear, group_of

        head = dense_head(model)
        if head is not None and head.weight.device.type == "cpu" and group_of(head.in_features):
            replace_head(model, Int4Linear(head))
