"""An encoder–decoder with a draft: T5 here, BART and Whisper likewise.

    python examples/by_feature/encoder_decoder.py [TARGET DRAFT]

Without folders: tiny random models, whose text means nothing; the draft is the target with some noise on its weights.
"""

import copy
import sys

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, T5Config, T5ForConditionalGeneration

import hf_specgen


def random_pair():
    torch.manual_seed(2)
    sizes = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    target = T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0)).eval()
    for weight in target.parameters():
        weight.data.mul_(6.0 if weight.dim() > 1 else 1.0)  # decisive, so that texts vary
    draft = copy.deepcopy(target)
    for weight in draft.parameters():
        weight.data.add_(torch.randn_like(weight) * weight.std() * 0.02 if weight.dim() > 1 else 0)
    return target, draft, {"input_ids": torch.arange(3, 33)[None]}


if len(sys.argv) == 3:
    target, draft = (AutoModelForSeq2SeqLM.from_pretrained(folder, dtype="auto") for folder in sys.argv[1:])
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    inputs = tokenizer("translate English to German: The house is small.", return_tensors="pt")
else:
    target, draft, inputs = random_pair()

hf_specgen.enable(target)
plain = target.generate(**inputs, max_new_tokens=40, do_sample=False)
out = target.generate(
    **inputs,
    max_new_tokens=40,
    do_sample=False,
    assistant_model=draft,
    spec_strategy="rejection",
    num_assistant_tokens=4,
    return_dict_in_generate=True,
)
print(out.sequences[0].tolist())
print(out.spec_stats)
print("the same ids as plain decoding:", torch.equal(plain, out.sequences))
