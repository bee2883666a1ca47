"""Which positions a model is asked for the logits of: picked or cut, it makes no difference to them."""

import pytest
import torch
from toys import noisy, plain, prompts, spec, tiny

from hf_specgen.cache.kept import last_positions


@pytest.mark.parametrize("keep, width", [(1, 3), (2, 3), (3, 3), (0, 3), (1, 1)])
def test_positions_are_picked_where_weights_take_no_gradients(keep, width):
    model = tiny()
    assert last_positions(model, keep, width) == keep
    asked = last_positions(model.requires_grad_(False), keep, width)
    ids = prompts([width])["input_ids"]
    same = model(ids, logits_to_keep=keep).logits
    assert torch.equal(model(ids, logits_to_keep=asked).logits, same)
    assert isinstance(asked, torch.Tensor) == (0 < keep < width)


@pytest.mark.parametrize("frozen", [True, False])
def test_a_frozen_drafts_head_gets_no_views(frozen):
    """Others may: by weights that take gradients torch multiplies them at once."""
    target = tiny()
    draft, batch, whole = noisy(target).requires_grad_(not frozen), prompts([4, 9, 6]), []
    draft.lm_head.register_forward_pre_hook(lambda _, given: whole.append(_as_if_new(given[0])))
    out = spec(target, draft, **batch, max_new_tokens=24, num_assistant_tokens=4)
    assert torch.equal(out.sequences, plain(target, **batch, max_new_tokens=24))
    assert len(whole) > 8 and all(whole) == frozen


def _as_if_new(x: torch.Tensor) -> bool:
    """Whether its strides are a new tensor's; `is_contiguous` does not look at those of axes of length 1."""
    return x.stride() == torch.empty(x.shape).stride()
