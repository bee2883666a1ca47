"""bitsandbytes: 4 bits (nf4, fp4) and 8 bits, quantized while loading; or a checkpoint saved so.

On a CPU, the first forward repacks 4-bit weights (2 to 4 s for 0.5 billion). From then on `state_dict` returns garbage,
and leaves garbage in the model (0.50.2, without double quantization).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from .base import Backend, dense_head, refuse_float64, replace_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROWS, BLOCK = 32, 64  # the CPU's kernel wants a multiple of 32 outputs, and whole blocks along the inputs


class BitsAndBytes(Backend):
    quantizes = True
    packages = ("bitsandbytes>=0.48", "accelerate>=1.10")
    devices = frozenset({"cpu", "cuda", "xpu", "hpu"})

    def quantize_head(self, model):
        head = dense_head(model)
        if head is None or not self._runs(head):
            return
        with_bias = head.bias is not None
        new = self._linear(head, with_bias)
        if with_bias:
            new.bias = head.bias
        replace_head(model, new.to(head.weight.device))  # quantizes
        _say_what_is_dense(model)

    def _linear(self, head: torch.nn.Linear, with_bias: bool) -> torch.nn.Module:
        raise NotImplementedError

    def _runs(self, layer: torch.nn.Linear) -> bool:
        """Whether a layer of this shape runs, quantized, on its device."""
        return True


class FourBit(BitsAndBytes):
    def __init__(self, name: str, saved: bool = False):
        super().__init__(saved)
        self.name = name

    def dtype(self, asked, device):
        refuse_float64(self.name, asked)
        return asked

    def config(self, model, dtype, device, draft):
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type=self.name, bnb_4bit_compute_dtype=_compute_dtype(dtype)
        )

    def _linear(self, head, with_bias):
        from bitsandbytes.nn import Linear4bit, Params4bit

        kind = {"quant_type": self.name, "compress_statistics": False}
        compute_dtype = _compute_dtype(head.weight.dtype)
        new = Linear4bit(head.in_features, head.out_features, with_bias, compute_dtype=compute_dtype, **kind)
        new.weight = Params4bit(head.weight.data.clone(), requires_grad=False, **kind)
        return new

    def _runs(self, layer):
        return layer.weight.device.type != "cpu" or not (layer.out_features % ROWS or layer.in_features % BLOCK)

    def mend(self, model):
        """Layers that would fail in their first forward become dense, with the weights that their 4 bits stand for."""
        from bitsandbytes.functional import dequantize_4bit
        from bitsandbytes.nn import Linear4bit

        unfit = {n: m for n, m in model.named_modules() if isinstance(m, Linear4bit) and not self._runs(m)}
        for name, layer in unfit.items():
            dense = torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, device="meta")
            weight = dequantize_4bit(layer.weight.data, layer.weight.quant_state).to(model.dtype)
            dense.weight, dense.bias = torch.nn.Parameter(weight, requires_grad=False), layer.bias
            model.set_submodule(name, dense.eval())
        if unfit:
            _say_what_is_dense(model)


class EightBit(BitsAndBytes):
    name = "int8"

    def config(self, model, dtype, device, draft):
        from transformers import BitsAndBytesConfig

        # Without outliers kept in 16 bits, 8-bit layers take three quarters of the time; a target keeps its precision.
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_threshold=0.0 if draft else 6.0)

    def mend(self, model):
        logging.getLogger("bitsandbytes.autograd._functions").addFilter(_not_of_casts)

    def _linear(self, head, with_bias):
        from bitsandbytes.nn import Int8Params, Linear8bitLt

        new = Linear8bitLt(head.in_features, head.out_features, with_bias, has_fp16_weights=False, threshold=0.0)
        new.weight = Int8Params(head.weight.data.half(), requires_grad=False, has_fp16_weights=False)
        return new


def of_checkpoint(config: dict) -> BitsAndBytes:
    """The back end of a saved checkpoint, from its `quantization_config`."""
    if config.get("load_in_8bit"):
        return EightBit(saved=True)
    return FourBit(config.get("bnb_4bit_quant_type", "fp4"), saved=True)


def _not_of_casts(record: logging.LogRecord) -> bool:
    """8-bit layers compute in float16, and bitsandbytes says so for every layer of every forward."""
    return "inputs will be cast" not in record.getMessage()


def _say_what_is_dense(model: PreTrainedModel) -> None:
    """In its config, so that the model loads as it is when it is saved."""
    dense = [name for name, module in model.named_modules() if type(module) is torch.nn.Linear]
    for config in (model.hf_quantizer.quantization_config, model.config.quantization_config):
        config.llm_int8_skip_modules = dense


def _compute_dtype(dtype: torch.dtype | str) -> torch.dtype:
    return torch.float16 if dtype in (torch.float16, "float16") else torch.bfloat16
