"""Checkpoints of llm-compressor (the successor of AutoAWQ), which transformers loads through compressed-tensors.

On a CPU they are unpacked in the first forward: as fast as dense ones, and as large. From 0.18 on, compressed-tensors
makes place for unpacked zero points only, and no asymmetric (AWQ) checkpoint loads.
"""

from .base import Backend


class CompressedTensors(Backend):
    name = "compressed-tensors"
    quantizes = True
    packages = ("compressed-tensors>=0.15,<0.18", "accelerate>=1.10")
