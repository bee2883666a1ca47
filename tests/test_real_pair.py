"""Real checkpoints, when their folders exist: the Qwen pair, and SmolLM2 with a noisy copy of itself."""

import pytest
import torch
from toys import noisy, plain, spec
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_specgen.pairing import check_pair

pytestmark = pytest.mark.real

TEXTS = ["def fibonacci(n):\n", "The three laws of motion are these. First, a body at rest"]


def load(folder):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.fixture(autouse=True)
def both_cores():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


def test_a_ragged_batch_on_smollm2_is_each_row_alone(real_models):
    target = load(real_models / "smollm2-135m")
    draft = noisy(target, 0.1)
    tokenizer = AutoTokenizer.from_pretrained(real_models / "smollm2-135m", padding_side="left")
    tokenizer.pad_token = tokenizer.eos_token
    batch = tokenizer(TEXTS, return_tensors="pt", padding=True)
    out = spec(target, draft, **batch, max_new_tokens=24, num_assistant_tokens=4)
    assert 0 < out.spec_stats.acceptance_rate < 1
    columns = batch["input_ids"].shape[1]
    for b, text in enumerate(TEXTS):
        alone = tokenizer(text, return_tensors="pt")
        wanted = plain(target, **alone, max_new_tokens=24, do_sample=False)[0, alone["input_ids"].shape[1] :]
        assert out.sequences[b, columns : columns + len(wanted)].tolist() == wanted.tolist()


def test_the_qwen_pair_gives_plain_text_and_accepts(real_models):
    target, draft = load(real_models / "qwen2.5-coder-1.5b"), load(real_models / "qwen2.5-coder-0.5b")
    tokenizer = AutoTokenizer.from_pretrained(real_models / "qwen2.5-coder-1.5b")
    assert check_pair(target, draft).verdict == "exact"
    inputs = tokenizer(TEXTS[0], return_tensors="pt")
    greedy = {"max_new_tokens": 16, "do_sample": False, "repetition_penalty": 1.0}
    wanted = plain(target, **inputs, **greedy)
    out = spec(target, draft, **inputs, **greedy, num_assistant_tokens=4)
    assert torch.equal(out.sequences, wanted)
    assert out.spec_stats.acceptance_rate > 0.3
