"""Tiny random encoder-decoders whose text depends on what the encoder read and on what was written."""

import functools
from dataclasses import dataclass

import torch
import transformers
from toys import noisy, plain, row_alone
from transformers import GenerationConfig

VOCAB = 64
START = 2
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "init_std": 0.1,
}
_BART |= {"max_position_embeddings": 96, "forced_eos_token_id": None, "forced_bos_token_id": None}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}
_GEMMA = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention"],
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class Family:
    """`scale`, `seed`: of the weights, so that texts vary. `noise`: of the draft's: it agrees often, not always."""

    name: str
    settings: dict
    scale: float = 1.0
    seed: int = 0
    noise: float = 0.1


FAMILIES = {
    "t5": Family("T5", _T5 | {"relative_attention_max_distance": 12}, scale=6.0, seed=2, noise=0.02),
    "flan_t5": Family("T5", _T5 | {"feed_forward_proj": "gated-gelu"}, scale=4.0, seed=3, noise=0.02),
    "umt5": Family("UMT5", _T5, scale=4.0, noise=0.03),
    "longt5": Family("LongT5", _T5 | {"local_radius": 4, "encoder_attention_type": "local"}, scale=5.0, noise=0.02),
    "t5gemma": Family("T5Gemma", {"encoder": _GEMMA, "decoder": _GEMMA}, scale=6.0, noise=0.03),
    "bart": Family("Bart", _BART),
    "mbart": Family("MBart", _BART),
    "pegasus": Family("Pegasus", _BART, seed=1),
    "marian": Family("Marian", _BART, seed=1),
    "m2m": Family("M2M100", _BART),
    "blenderbot": Family("Blenderbot", _BART, scale=2.0, noise=0.05),
    "led": Family(
        "LED",
        _BART | {"attention_window": 4, "max_encoder_position_embeddings": 96, "max_decoder_position_embeddings": 96},
        seed=1,
    ),
}


@functools.cache
def build(name: str, eos: int | None = None, **overrides):
    """The family's target, shared by all tests that ask for the same one: leave it as it is."""
    family = FAMILIES[name]
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": eos, "decoder_start_token_id": START}
    settings = {"vocab_size": VOCAB, "tie_word_embeddings": False} | ids | family.settings | overrides
    config = getattr(transformers, f"{family.name}Config")(**settings)
    torch.manual_seed(family.seed)
    kind = "MarianMTModel" if name == "marian" else f"{family.name}ForConditionalGeneration"
    model = getattr(transformers, kind)(config).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(family.scale)
    model.generation_config = GenerationConfig(**ids)
    return model


@functools.cache
def draft_of(name: str, eos: int | None = None, **overrides):
    """A noisy copy of `build(...)`."""
    return noisy(build(name, eos, **overrides), FAMILIES[name].noise)


def written(model, batch: dict, row: int, new: int, prompt: list[int] | None = None, **kwargs) -> list[int]:
    """The oracle: plain greedy `generate` of one row of `batch`, unpadded, after the decoder's prompt; its new ids."""
    alone = row_alone(batch, row)
    if prompt is not None:
        alone["decoder_input_ids"] = torch.tensor([prompt])
    ids = plain(model, **alone, max_new_tokens=new, do_sample=False, **kwargs)[0].tolist()
    return ids[len(prompt or [START]) :]
