"""What a certificate says of models: weights are told apart, whatever kind of tensor holds them."""

import copy

import pytest
import torch
from toys import tiny

from hf_specgen.verifying.fingerprints import described, packages_of


class Wrapped(torch.Tensor):
    """A weight in two tensors, as quantized ones are; nothing but taking it apart (and detach) is allowed."""

    @staticmethod
    def __new__(cls, packed, scale):
        return torch.Tensor._make_wrapper_subclass(cls, packed.shape, dtype=torch.float32)

    def __init__(self, packed, scale):
        self.packed, self.scale = packed, scale

    def __tensor_flatten__(self):
        return ["packed", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].packed, args[0].scale)
        raise NotImplementedError(func)


def wrapped(scale: float):
    model = tiny()
    packed = (torch.arange(64 * 32) % 100).to(torch.int8).reshape(64, 32)
    weight = Wrapped(packed, torch.full((64, 1), scale))
    model.lm_head.weight = torch.nn.Parameter(weight, requires_grad=False)
    return model


def test_weights_are_told_apart():
    model = tiny()
    changed = copy.deepcopy(model)
    assert described(model) == described(changed)
    with torch.no_grad():
        changed.get_output_embeddings().weight.mul_(1.01)
    assert described(model)["weights"] != described(changed)["weights"]
    assert described(tiny().to(torch.bfloat16))["weights"] != described(model)["weights"]
    assert described(tiny().to("meta"))["weights"] is None


def test_weights_of_another_kind_are_taken_apart():
    assert described(wrapped(1.0))["weights"] == described(wrapped(1.0))["weights"] is not None
    assert described(wrapped(1.0))["weights"] != described(wrapped(2.0))["weights"]


def test_a_kind_that_cannot_be_taken_apart_is_not_known(monkeypatch):
    monkeypatch.delattr(Wrapped, "__tensor_flatten__")
    assert described(wrapped(1.0))["weights"] is None


def test_buffers_that_no_checkpoint_holds_do_not_count():
    model = tiny()
    before = described(model)["weights"]
    model.register_buffer("cached", torch.ones(3), persistent=False)
    assert described(model)["weights"] == before
    model.register_buffer("kept", torch.ones(3))
    assert described(model)["weights"] != before


def test_how_it_was_run_is_told():
    model = tiny()
    assert described(model)["attention"] == "sdpa" and packages_of(model) == set()


def test_packages_that_hold_the_weights_are_named():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = tiny()
    model.lm_head = bitsandbytes.nn.Linear4bit(32, 64)
    assert packages_of(model) == {"bitsandbytes"}
