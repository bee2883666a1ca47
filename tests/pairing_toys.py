"""Tiny models and tokenizers whose ids a test can write down."""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = tuple(f"w{i}" for i in range(64))


def make_tokenizer(words=WORDS):
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel({word: id_ for id_, word in enumerate(words)}, unk_token=words[0]))
    )


def make_model(rows=64, **config):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=rows,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            **config,
        )
    )
