"""A quantization config of transformers, the caller's own or a checkpoint's: its quantizer decides everything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_specgen.errors import SpecUnsupportedError

from .base import Backend

if TYPE_CHECKING:
    from transformers.utils.quantization_config import QuantizationConfigMixin


class Given(Backend):
    """Args:
    like: the back end of the same method, if it is one of ours: its packages, devices, and default dtype.
    saved: the config is the checkpoint's. pre_quantized: the checkpoint has one of its own.
    """

    def __init__(
        self,
        config: QuantizationConfigMixin | dict,
        like: Backend | None,
        saved: bool = False,
        pre_quantized: bool = True,
    ):
        super().__init__(saved)
        self.quantizes = method_of(config) != "gguf"
        self._pre_quantized = pre_quantized
        self._config, self._like = config, like or Backend()
        self.name = method_of(config) if like is None else like.name
        self.packages, self.devices = self._like.packages, self._like.devices

    def check(self, devices=()):
        from transformers.quantizers import AutoHfQuantizer

        super().check(devices)
        try:
            quantizer = AutoHfQuantizer.from_config(self._config, pre_quantized=self._pre_quantized)
            quantizer.validate_environment(device_map=None, weights_only=True)
        except (RuntimeError, ValueError) as error:
            raise SpecUnsupportedError(f"{self.name} does not run here: {error}") from error

    def dtype(self, asked, device):
        return self._like.dtype(asked, device) if asked == "auto" else asked

    def config(self, model, dtype, device, draft):
        return self._config

    def mend(self, model):
        self._like.mend(model)


def method_of(config: QuantizationConfigMixin | dict) -> str:
    """The name transformers has for the method; the oldest configs that name none are bitsandbytes'."""
    method = config.get("quant_method", "bitsandbytes") if isinstance(config, dict) else config.quant_method
    return str(getattr(method, "value", method))
