"""Whose settings they are: a model is known again from a folder and in memory, and another one is told."""

import pytest
import torch
from toys import noisy, tiny
from transformers import AutoModelForCausalLM

from hf_specgen import SpecConfig, SpecUnsupportedError
from hf_specgen.drafters import LookupDrafter
from hf_specgen.tuning.fingerprint import differences, fingerprint
from hf_specgen.tuning.tuned import Entry, Tuned


@pytest.fixture(scope="module")
def target():
    return tiny()


def tuned_for(target, draft) -> Tuned:
    entries = (Entry(0.0, SpecConfig("rejection")),)
    return Tuned(fingerprint(target), None if draft is None else fingerprint(draft), entries)


def test_a_model_is_the_same_from_its_folder_after_its_first_call_and_fine_tuned(target, tmp_path):
    target.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    again.generate(torch.tensor([[3, 4]]), max_new_tokens=2, do_sample=False)
    again.config.pad_token_id = 5
    assert not differences(fingerprint(target), fingerprint(again)) and fingerprint(again)["name"] == tmp_path.name
    assert not differences(fingerprint(target), fingerprint(noisy(target)))
    assert not differences(fingerprint(target), fingerprint(torch.compile(target)))


@pytest.mark.parametrize(
    "other, what",
    [
        (lambda: tiny(num_hidden_layers=2), "layers 3 there and 2 here"),
        (lambda: tiny(hidden_size=64), "hidden size 32 there and 64 here"),
        (lambda: tiny().to(torch.bfloat16), "dtype float32 there and bfloat16 here"),
    ],
)
def test_another_model_is_told_by_what_differs(target, other, what):
    tuned, other = tuned_for(target, target), other()
    for models, role in (((other, target), "target"), ((target, other), "draft")):
        with pytest.raises(
            SpecUnsupportedError, match=f"tuned for another {role}.*{what}.*Tune this pair: hf-specgen tune"
        ):
            tuned.check(*models)
    tuned.check(target, target)


def test_a_quantized_draft_is_another_draft(target, tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    from transformers import BitsAndBytesConfig

    assert bitsandbytes
    target.to(torch.bfloat16).save_pretrained(tmp_path)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    quantized = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config, dtype=torch.bfloat16)
    dense = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    target.float()
    before = fingerprint(quantized)
    with pytest.raises(SpecUnsupportedError, match=r"another draft.*quantization dense there and nf4 here"):
        tuned_for(dense, dense).check(dense, quantized)
    quantized(torch.tensor([[3, 4]]))  # which packs the weights anew
    assert not differences(before, fingerprint(quantized))


def test_a_draft_is_only_asked_for_where_both_have_one(target):
    tuned_for(target, None).check(target, tiny(num_hidden_layers=1))
    tuned_for(target, target).check(target, None)
    with pytest.raises(SpecUnsupportedError, match="class LlamaForCausalLM there and LookupDrafter here"):
        tuned_for(target, target).check(target, LookupDrafter())
