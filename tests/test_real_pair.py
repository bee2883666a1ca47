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


def test_smollm2_drafts_for_qwen_in_its_own_vocabulary(real_models):
    """Batch of 4. Greedy: each row's text alone. Sampled: coupled text, which no draft may change."""
    target, draft = load(real_models / "qwen2.5-coder-1.5b"), load(real_models / "smollm2-135m")
    tokenizers = [AutoTokenizer.from_pretrained(real_models / name) for name in ("qwen2.5-coder-1.5b", "smollm2-135m")]
    tokenizers[0].padding_side = "left"
    texts = [*TEXTS, "    # naïve café 😀\n    return", "Übermäßig schöne Straßen und"]
    batch = tokenizers[0](texts, return_tensors="pt", padding=True)
    options = {"max_new_tokens": 16, "repetition_penalty": 1.0, "num_assistant_tokens": 4}
    options |= {"tokenizer": tokenizers[0], "assistant_tokenizer": tokenizers[1]}
    out = spec(target, draft, **batch, **options)
    for b in range(len(texts)):
        alone = {name: x[b : b + 1, batch["attention_mask"][b].bool()] for name, x in batch.items()}
        wanted = plain(target, **alone, max_new_tokens=16, do_sample=False, repetition_penalty=1.0)
        assert torch.equal(out.sequences[b, -16:], wanted[0, -16:])
    assert out.spec_stats.acceptance_rate > 0.1
    sampled = options | {"do_sample": True, "temperature": 0.7, "top_k": 0}
    drawn = [
        spec(target, model, "coupled", **batch, **sampled, generator=torch.Generator().manual_seed(5))
        for model in (draft, None)
    ]
    assert torch.equal(drawn[0].sequences, drawn[1].sequences)
    assert drawn[0].spec_stats.acceptance_rate > 0.1
