"""Tiny random encoder-decoders whose text depends on what the encoder read and on what was written."""

import copy
import functools
from contextlib import contextmanager

import torch
import transformers
from toys import noisy

VOCAB = 64
EOS = 63

_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 96,
    "init_std": 0.1,
    "tie_word_embeddings": False,
}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8}

FAMILIES = {
    "t5": ("T5", _T5 | {"relative_attention_max_distance": 12}),
    "flan_t5": ("T5", _T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "umt5": ("UMT5", _T5),
    "longt5": ("LongT5", _T5 | {"local_radius": 4, "encoder_attention_type": "local"}),
    "switch": ("SwitchTransformers", _T5 | {"num_experts": 2, "num_sparse_encoder_layers": 1, "num_decoder_layers": 2, "num_sparse_decoder_layers": 1}),
    "bart": ("Bart", _BART),
    "mbart": ("MBart", _BART),
    "pegasus": ("Pegasus", _BART),
    "marian": ("Marian", _BART),
    "m2m": ("M2M100", _BART),
    "blenderbot": ("Blenderbot", _BART),
    "led": (
        "LED",
        {k: v for k, v in _BART.items() if k != "max_position_embeddings"}
        | {"attention_window": 4, "max_encoder_position_embeddings": 96, "max_decoder_position_embeddings": 96},
    ),
    "prophetnet": (
        "ProphetNet",
        {
            "hidden_size": 32,
            "encoder_ffn_dim": 64,
            "decoder_ffn_dim": 64,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 96,
            "ngram": 2,
        },
    ),
}


@functools.cache
def build(name: str, eos: int | None = None, scale: float = 6.0, seed: int = 0, **overrides):
    """The family's target, shared by all tests that ask for the same one."""
    kind, settings = FAMILIES[name]
    config = getattr(transformers, f"{kind}Config")(
        **{
            "vocab_size": VOCAB,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": eos,
            "decoder_start_token_id": 2,
            "forced_eos_token_id": None,
            "forced_bos_token_id": None,
        }
        | settings
        | overrides
    )
    torch.manual_seed(seed)
    model = getattr(transformers, f"{kind}ForConditionalGeneration" if kind != "Marian" else "MarianMTModel")(config)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(scale)
    model.generation_config = transformers.GenerationConfig(
        pad_token_id=0, bos_token_id=1, eos_token_id=eos, decoder_start_token_id=2
    )
    return model.float().eval()
