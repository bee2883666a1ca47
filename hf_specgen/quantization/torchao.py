"""torchao: weight-only 8 and 4 bits, quantized while loading.

4 bits on a CPU are a prototype of torchao's, which cannot be saved; a layer whose inputs are no multiple of its group
stays as it is. All tensors report the size of their dense form (`get_memory_footprint`).
"""

from __future__ import annotations

from .base import Backend, dense_head, replace_head
from .int4_linear import GROUPS, group_of


class TorchAo(Backend):
    packages = ("torchao>=0.18", "accelerate>=1.10")
    devices = frozenset({"cpu", "cuda", "xpu"})

    def _recipe(self, device, *inputs: int):
        """torchao's config for layers with these numbers of inputs."""
        raise NotImplementedError

    def config(self, model, dtype, device, draft):
        from transformers import TorchAoConfig

        text = model.get_text_config(decoder=True)
        names = ("hidden_size", "intermediate_size", "d_model", "d_ff")
        return TorchAoConfig(self._recipe(device, *(n for name in names if (n := getattr(text, name, None)))))

    def quantize_head(self, model):
        import torch
        from torchao.quantization import quantize_

        head = dense_head(model)
        if head is None:
            return
        new = torch.nn.Linear(head.in_features, head.out_features, head.bias is not None, device="meta")
        new.weight, new.bias = torch.nn.Parameter(head.weight.data.clone(), requires_grad=False), head.bias
        quantize_(new, self._recipe(head.weight.device, head.in_features))
        replace_head(model, new)
        for config in (model.hf_quantizer.quantization_config, model.config.quantization_config):
            config.modules_to_not_convert = ["none"]  # None or [] would leave the head of a saved model out


class Int8(TorchAo):
    name = "torchao-int8"

    def _recipe(self, device, *inputs):
        from torchao.quantization import Int8WeightOnlyConfig

        return Int8WeightOnlyConfig()


class Int4(TorchAo):
    name = "int4"
    devices = frozenset({"cpu", "cuda"})

    def dtype(self, asked, device):
        import torch

        return torch.bfloat16  # the only one that its kernels are fast in

    def _recipe(self, device, *inputs):
        group = group_of(*inputs) or GROUPS[-1]
        if device.type == "cpu":
            from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig

            return PrototypeInt4WeightOnlyConfig(group_size=group)
        from torchao.quantization import Int4WeightOnlyConfig

        return Int4WeightOnlyConfig(group_size=group, int4_packing_format="tile_packed_to_4d")
