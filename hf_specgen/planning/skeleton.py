"""A model on the meta device whose every tensor is as many bytes as it will take: what accelerate plans with.

accelerate counts parameters and buffers by module. Here each of them is replaced by bytes (uint8): a quantized weight
has the size of its codes and scales, and every decoder layer has its share of the KV cache, as a buffer.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.expected import HEAD, model_class
from ..checkpoints.memory import DTYPE_BYTES, WeightFormat, dtype_name, kv_bytes_by_layer, tensor_bytes

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from .devices import Device

KV, STORED = "_kv_cache", "_stored"


class Skeleton:
    """One model's bytes.

    Args:
        config: of transformers.
        form: how linear weights will be quantized when they are loaded; a checkpoint that is quantized stays as it is.
        batch_size, length: rows and positions of the KV cache.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        checkpoint: Checkpoint,
        dtype: Any,
        *,
        form: WeightFormat | None,
        batch_size: int,
        length: int,
    ):
        self.facts = config.to_dict()
        self.model = _on_meta(config, self.facts)
        self.dtype = dtype_name(dtype, self.facts, checkpoint)
        if checkpoint.quantization is None or not checkpoint.tensors:
            _in_memory(self.model, DTYPE_BYTES[self.dtype], form)
        else:
            _as_stored(self.model, checkpoint)
        shares = kv_bytes_by_layer(self.facts, batch_size, length, self.dtype)
        layers = _decoder_layers(self.model, len(shares))
        if len(layers) != len(shares):  # layers that run several times, or share their cache
            shares = [-(-sum(shares) // len(layers))] * len(layers)
        for layer, share in zip(layers, shares, strict=True):
            layer.register_buffer(KV, _bytes(share))
        self.no_split = set(getattr(self.model, "_no_split_modules", None) or ()) | {type(x).__name__ for x in layers}
        self.sizes = {name: x.numel() for name, x in (*self.model.named_parameters(), *self.model.named_buffers())}
        modules = [name for name, _ in self.model.named_modules()]
        self.order = {name: i for i, name in enumerate((*modules, *self.sizes))}
        self.kv = sum(shares)
        self.weights = sum(self.sizes.values()) - self.kv

    @property
    def head(self) -> str:
        """Name of the module that gives the logits."""
        head = self.model.get_output_embeddings()
        return next((name for name, module in self.model.named_modules() if module is head), "")

    def place(self, limits: Mapping[Device, int]) -> dict[str, Device]:
        """accelerate's device map under these limits, filling devices in order; what fits nowhere is on "disk". Room to
        bring offloaded layers back is kept on the first device."""
        from accelerate import infer_auto_device_map

        limits = {device: max(0, limit) for device, limit in limits.items()}
        with _without_warnings():
            found = infer_auto_device_map(
                self.model,
                max_memory=limits,
                no_split_module_classes=sorted(self.no_split),
                offload_buffers=True,  # else it warns of our caches, which it takes for buffers
            )
        return {name: found[name] for name in sorted(found.keys() - {KV, STORED}, key=self.order.get)}

    def place_whole(self, limits: Mapping[Device, int]) -> dict[str, Device] | None:
        """A device map without offloading; None if these devices cannot hold the model.

        Nothing has to come back then, so no room is kept: accelerate is told of a first device without memory.
        """
        numbered = dict(enumerate(limits, start=1))
        found = self.place({0: 0} | {number: limits[device] for number, device in numbered.items()})
        if "disk" in found.values():
            return None
        return {name: numbered[number] for name, number in found.items()}


@dataclass(frozen=True)
class Loaded:
    """A model that is in memory already: of it, only the KV cache is to come."""

    facts: Mapping[str, Any]
    dtype: str
    kv: int
    device: torch.device
    weights: int = 0

    @classmethod
    def of(cls, model: PreTrainedModel, batch_size: int, length: int) -> Loaded:
        facts = model.config.to_dict()
        dtype = dtype_name(model.dtype, facts)
        kv = sum(kv_bytes_by_layer(facts, batch_size, length, dtype))
        return cls(facts, dtype, kv, model.get_input_embeddings().weight.device)


def device_of(name: str, device_map: Mapping[str, Device]) -> Device | None:
    """Where a device map puts a module or tensor; None if it does not name it or a module around it."""
    while name not in device_map and name:
        name = name.rpartition(".")[0]
    return device_map.get(name)


def _on_meta(config: PreTrainedConfig, facts: Mapping[str, Any]) -> PreTrainedModel:
    cls = model_class(facts)
    if cls is None:
        raise ValueError(f"This transformers has no causal LM of model_type {facts.get('model_type')!r}.")
    build = getattr(cls, "from_config", None) or cls._from_config
    with torch.device("meta"):
        model = build(config)
    model.tie_weights()
    return model


def _in_memory(model: nn.Module, itemsize: int, form: WeightFormat | None) -> None:
    """Tied weights stay tied, unless the head becomes a quantized copy."""
    made: dict[int, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        for name, old in list(module._parameters.items()):
            if old is None:
                continue
            full = f"{prefix}.{name}"
            new = _parameter(tensor_bytes(full, tuple(old.shape), itemsize, form))
            copied = form is not None and form.head and HEAD.search(full)
            module._parameters[name] = new if copied else made.setdefault(id(old), new)
    _buffers_to_bytes(model)


def _as_stored(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Each tensor of the checkpoint is counted for the innermost module that its name leads to."""
    modules = dict(model.named_modules())
    owners: dict[int, str] = {}
    tied: dict[str, str] = {}
    for name, module in modules.items():
        for parameter in (p for p in module._parameters.values() if p is not None):
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                tied[name] = owner
    held: Counter[str] = Counter()
    for name, tensor in checkpoint.tensors.items():
        if name.partition(".")[0] not in modules:  # saved from the model without its head
            name = f"{model.base_model_prefix}.{name}"
        while name not in modules:
            name = name.rpartition(".")[0]
        held[name] += tensor.bytes
    for name, owner in tied.items():  # saved once, or twice: held once
        held[owner] = max(held[owner], held.pop(name, 0))
    for module in modules.values():
        module._parameters.clear()
    for name, size in held.items():
        modules[name].register_parameter(STORED, _parameter(size))
    for name, owner in tied.items():
        modules[name].register_parameter(STORED, modules[owner]._parameters[STORED])
    _buffers_to_bytes(model)


def _buffers_to_bytes(model: nn.Module) -> None:
    for module in model.modules():
        for name, old in module._buffers.items():
            if old is not None:
                module._buffers[name] = _bytes(old.numel() * old.element_size())


def _bytes(count: int) -> torch.Tensor:
    return torch.empty(count, dtype=torch.uint8, device="meta")


def _parameter(count: int) -> nn.Parameter:
    return nn.Parameter(_bytes(count), requires_grad=False)


def _decoder_layers(model: nn.Module, count: int) -> list[nn.Module]:
    """The outermost list of `count` modules, of several (encoder and decoder) the last; without one, the longest."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    found = [(-name.count("."), i, m) for i, (name, m) in enumerate(lists) if len(m) == count]
    found = found or [(len(m), i, m) for i, (_, m) in enumerate(lists)]
    if not found:
        raise ValueError(f"{type(model).__name__} has no list of layers, so its cache cannot be planned for.")
    return list(max(found, key=lambda item: item[:2])[2])


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """accelerate warns of devices that this machine does not have: here they are imagined."""
    logger = logging.getLogger("accelerate.utils.modeling")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled
