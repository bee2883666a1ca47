"""Weights as 4-bit integers, AutoAWQ's packing, and the layer that runs them on a CPU."""

import pytest
import torch
from quantization_toys import make
from transformers import AutoModelForCausalLM

from hf_specgen.quantization.awq_format import input_powers, pack, quantized
from hf_specgen.quantization.int4_linear import Int4Linear, group_of
from hf_specgen.quantization.rounding import restore, round_for_inputs, round_to_nearest
from hf_specgen.quantization.steps import Steps


def unpack(words: torch.Tensor) -> torch.Tensor:
    """The format's definition, read the other way: nibbles low to high, then AutoAWQ's order undone."""
    nibbles = torch.stack([(words >> (4 * i)) & 15 for i in range(8)], -1)
    return nibbles[..., [0, 4, 1, 5, 2, 6, 3, 7]].flatten(1)


def weight(rows=96, columns=256, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def test_rounding_is_to_the_nearest_level():
    w = weight()
    codes, scale, zero = round_to_nearest(w, 64)
    assert codes.min() == 0 and codes.max() == 15 and scale.shape == zero.shape == (96, 4)
    error = (restore(codes, scale, zero) - w).unflatten(1, (-1, 64)).abs()
    inside = error <= scale[..., None] * 0.501
    assert inside.float().mean() > 0.99, "the ends of a range may be clipped, as the zero point is rounded too"
    assert (error <= scale[..., None] * 1.01).all()


def test_groups_of_one_sign_and_of_zeros():
    w = torch.cat([weight().abs() + 1, torch.zeros(2, 256)])
    codes, scale, zero = round_to_nearest(w, 64)
    assert ((restore(codes, scale, zero) - w).abs() <= scale.repeat_interleave(64, 1)).all()


def test_ranges_chosen_for_the_inputs_cost_the_outputs_less():
    w, power = weight(), torch.full((256,), 0.01)
    power[::8] = 100  # a few inputs are all that matters
    x = torch.randn(500, 256, generator=torch.Generator().manual_seed(1)) * power.sqrt()
    costs = [
        ((x @ (restore(*r) - w).t()) ** 2).mean() for r in (round_to_nearest(w, 64), round_for_inputs(w, 64, power))
    ]
    assert costs[1] < 0.95 * costs[0]


def test_packing_is_the_formats():
    codes = torch.randint(0, 16, (5, 64))
    words = pack(codes)
    assert words.dtype == torch.int32 and words.shape == (5, 8)
    assert torch.equal(unpack(words), codes.int())


def test_packed_tensors_stand_for_the_rounded_weight():
    w = weight(rows=64)
    power = torch.ones(256)
    found = quantized(w, 128, power)
    assert {k: tuple(x.shape) for k, x in found.items()} == {"qweight": (256, 8), "qzeros": (2, 8), "scales": (2, 64)}
    q, z, s = unpack(found["qweight"]), unpack(found["qzeros"]), found["scales"].float()
    dense = ((q - z.repeat_interleave(128, 0)) * s.repeat_interleave(128, 0)).t()
    torch.testing.assert_close(dense, restore(*round_for_inputs(w, 128, power)))


@pytest.mark.parametrize("rows, columns, bias", [(96, 128, False), (100, 64, True), (50, 96, False)])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.bfloat16, 0.1)])
def test_the_layer_is_the_rounded_dense_one(rows, columns, bias, dtype, tolerance):
    dense = torch.nn.Linear(columns, rows, bias=bias)
    layer = Int4Linear(dense.to(dtype))
    with torch.no_grad():
        dense.weight.copy_(restore(*round_to_nearest(dense.weight, group_of(columns))))
        x = torch.randn(2, 3, columns, dtype=dtype)
        torch.testing.assert_close(layer(x), dense(x), atol=tolerance, rtol=0)
    assert (layer.out_features, layer.in_features, layer.weight.device.type) == (rows, columns, "cpu")


def test_the_layer_takes_the_last_positions_of_a_batch():
    """A prefill asks for these logits alone: a view whose rows lie apart."""
    layer = Int4Linear(torch.nn.Linear(128, 96).bfloat16())
    hidden = torch.randn(3, 5, 128).bfloat16()
    with torch.no_grad():
        torch.testing.assert_close(layer(hidden[:, -1:]), layer(hidden)[:, -1:])


def test_groups():
    assert group_of(128, 256) == 128 and group_of(576, 1536) == 64 and group_of(96) == 32 and group_of(128, 100) is None


def test_powers_are_the_mean_squares_of_the_inputs(tmp_path):
    model = AutoModelForCausalLM.from_pretrained(make(tmp_path / "model"))
    layers = {"model.layers.0.mlp.gate_proj": model.model.layers[0].mlp.gate_proj}
    seen = []
    hook = layers["model.layers.0.mlp.gate_proj"].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    powers = input_powers(model, layers, torch.randint(2, 250, (3, 8)), Steps())
    hook.remove()
    torch.testing.assert_close(powers["model.layers.0.mlp.gate_proj"], sum(x.square().mean((0, 1)) for x in seen))
    assert not layers["model.layers.0.mlp.gate_proj"]._forward_pre_hooks
