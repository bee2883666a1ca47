"""torchao: weight-only 8 and 4 bits, quantized while loading.

4 bits on a CPU are a prototype of torchao's, which cannot be saved; a layer whose inputs are no multiple of its group
stays as it is. All tensors report the size of their dense form (`get_memory_footprint`).
"""

from __future__ import annotations

from ..checkpoints.expected import model_class
from .base import Backend, dense_head, refuse_float64, replace_head
from .int4_linear import GROUPS, ROWS, group_of


class TorchAo(Backend):
    name = "torchao"
    quantizes = True
    packages = ("torchao>=0.18", "accelerate>=1.10")
    devices = frozenset({"cpu", "cuda", "xpu"})

    def _recipe(self, device, *inputs: int):
        """torchao's config for layers with these numbers of inputs."""
        raise NotImplementedError

    def dtype(self, asked, device):
        refuse_float64(self.name, asked)
        return asked

    def config(self, model, dtype, device, draft):
        from transformers import TorchAoConfig

        return TorchAoConfig(self._recipe(device))

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

        refuse_float64(self.name, asked)
        return torch.bfloat16  # the only one that its kernels are fast in

    def config(self, model, dtype, device, draft):
        """Layers of which group or kernel do not divide the sizes stay dense: they would not load."""
        from transformers import TorchAoConfig

        layers = _layers(model)
        group = group_of(*(layer.in_features for layer in layers.values())) or GROUPS[-1]
        unfit = [n for n, layer in layers.items() if layer.in_features % group or layer.out_features % ROWS]
        # With a list of our own, transformers does not leave the head out by itself.
        return TorchAoConfig(self._recipe(device, group), modules_to_not_convert=[*unfit, "lm_head"] if unfit else None)

    def quantize_head(self, model):
        head = dense_head(model)
        if head is not None and group_of(head.in_features) and not head.out_features % ROWS:
            super().quantize_head(model)

    def _recipe(self, device, *inputs):
        group = group_of(*inputs) or GROUPS[-1]
        if device.type == "cpu":
            from torchao.prototype.quantization.int4.inference_workflow import PrototypeInt4WeightOnlyConfig

            return PrototypeInt4WeightOnlyConfig(group_size=group)
        from torchao.quantization import Int4WeightOnlyConfig

        return Int4WeightOnlyConfig(group_size=group, int4_packing_format="tile_packed_to_4d")


def of_checkpoint(config: dict) -> TorchAo:
    """The back end of a saved checkpoint or a config, from its `quantization_config`."""
    kind = str(config.get("quant_type")).lower()
    return Int4() if "int4" in kind else Int8() if "int8weightonly" in kind else TorchAo()


def _layers(config) -> dict:
    """The Linear layers of the model that a config describes, without its head, by name; they have no weights."""
    import torch

    cls = model_class(config.to_dict())
    build = getattr(cls, "from_config", None) or cls._from_config
    with torch.device("meta"):
        model = build(config)
    head = model.get_output_embeddings()
    return {n: m for n, m in model.named_modules() if type(m) is torch.nn.Linear and m is not head}
