"""Architectures that nobody has told us about are asked, once, before the first token."""

import pytest
import torch
from toys import Doubting, assert_as_alone, noisy, plain, prompts, row_alone, spec
from transformers import LlamaConfig, LlamaForCausalLM

from hf_specgen import SpecUnsupportedError
from hf_specgen.cache import probe


class StrangeConfig(LlamaConfig):
    model_type = "strange"


class LooksAhead(LlamaForCausalLM):
    """In a block of several tokens behind a cache, each position sees the next one."""

    config_class = StrangeConfig

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        out = super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)
        if input_ids.shape[1] > 1 and position_ids[0, 0] > 0:
            out.logits[:, :-1] += 0.5 * out.logits[:, 1:]
        return out


class ReadsPadding(LlamaForCausalLM):
    """Without a mask of its own: padding is text."""

    config_class = StrangeConfig

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        if attention_mask is not None and attention_mask.dim() == 2:
            attention_mask = None
        return super().forward(input_ids, attention_mask, position_ids, **kwargs)


class NamesNothing(LlamaForCausalLM):
    """Takes what its parent takes without saying so: `generate` gives it no positions, so that padding counts."""

    config_class = StrangeConfig

    def forward(self, input_ids=None, *args, **kwargs):
        return super().forward(input_ids, *args, **kwargs)


class RefusesBlocks(LlamaForCausalLM):
    config_class = StrangeConfig

    def forward(self, input_ids=None, position_ids=None, **kwargs):
        if input_ids.shape[1] > 1 and position_ids[0, 0] > 0:
            raise ValueError("one token at a time, please")
        return super().forward(input_ids=input_ids, position_ids=position_ids, **kwargs)


def strange(cls):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = cls(StrangeConfig(vocab_size=64, pad_token_id=0, eos_token_id=None, **sizes)).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(6)
    return model


@pytest.fixture(autouse=True)
def forget(monkeypatch):
    monkeypatch.setattr(probe, "_verdicts", {})


@pytest.mark.parametrize(
    "cls, reason",
    [
        (LooksAhead, "deviations off those of single tokens"),
        (RefusesBlocks, r"raises ValueError \(one token at a time"),
    ],
)
def test_blocks_that_are_not_what_single_tokens_are_are_refused(cls, reason):
    model = strange(cls)
    for target, draft, whose in (
        (model, noisy(strange(LlamaForCausalLM)), "target"),
        (strange(LlamaForCausalLM), model, "draft"),
    ):
        with pytest.raises(
            SpecUnsupportedError, match=rf"The {whose} \({cls.__name__}\) cannot check several.*{reason}"
        ):
            spec(target, draft, **prompts([5]), max_new_tokens=4)


@pytest.mark.parametrize("cls", [ReadsPadding, NamesNothing])
def test_rows_of_a_model_that_reads_padding_are_read_without_any(cls):
    model, batch = strange(cls), prompts([9, 4, 6])
    assert probe.padding_counts(model)
    out = spec(model, noisy(model), **batch, max_new_tokens=12)
    assert_as_alone(model, out, batch)
    for b in range(3):
        alone = spec(model, noisy(model), **row_alone(batch, b), max_new_tokens=12, output_scores=True)
        assert alone.spec_stats.accepted > 0


def test_a_class_is_asked_once_for_each_config(monkeypatch):
    asked = []
    fault = probe._block_fault
    monkeypatch.setattr(probe, "_block_fault", lambda model: asked.append(model) or fault(model))
    model, draft = strange(LlamaForCausalLM), noisy(strange(LlamaForCausalLM))
    for _ in range(3):
        spec(model, draft, **prompts([5]), max_new_tokens=4)
    assert len(asked) == 1, "target and draft are of one class and config"


class Usual(LlamaForCausalLM):
    config_class = StrangeConfig


class SeesAllSlots(LlamaForCausalLM):
    """Sees what stands beside its text: only a mask of two dimensions counts."""

    config_class = StrangeConfig

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        if attention_mask is not None and attention_mask.dim() == 4:
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask, **kwargs)


class Refuses4d(LlamaForCausalLM):
    config_class = StrangeConfig

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        if attention_mask is not None and attention_mask.dim() == 4:
            raise ValueError("two dimensions, please")
        return super().forward(input_ids, attention_mask, **kwargs)


@pytest.mark.parametrize(
    "cls, reads",
    [
        (Usual, True),
        (SeesAllSlots, False),
        (Refuses4d, False),
    ],
    ids=["usual", "sees all", "refuses"],
)
def test_a_family_that_is_not_known_is_asked_whether_tokens_may_stand_beside_the_text(cls, reads):
    model, batch = strange(cls), prompts([9])
    rule = Doubting()
    out = spec(model, noisy(model), **batch, num_assistant_tokens_schedule=rule, max_new_tokens=40)
    assert out.spec_stats.accepted and (out.spec_stats.alternatives > 0) == reads
    assert out.sequences.tolist() == plain(model, **batch, max_new_tokens=40, do_sample=False).tolist()
