"""Small tokenizers that really split text, of each spelling, and models that decode with them."""

import copy
import json

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from hf_specgen.pairing.codec import BYTE_OF

TEXT = (
    "def merge(a, b):\n    return sorted(a + b)  # naïve, but short\n\n"
    "Übermäßig schöne Straßen und ein café in Liège 😀; the parliament met in 1998.\n"
) * 4
OTHER = (
    "while queue:\n        node = queue.popleft()\n        visit(node)\nIl était une fois, à Paris, 😀 des enfants.\n"
) * 4


def byte_level(size: int, text: str = TEXT, special=("<end>",), split: bool = True) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(special), initial_alphabet=sorted(BYTE_OF), show_progress=False
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def sentencepiece(size: int, text: str = TEXT) -> Tokenizer:
    """As Llama-2's: a space in front, marks for spaces, bytes for what is unknown, a beginning of text."""
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], show_progress=False)
    trained.train_from_iterator([text], trainer)
    known = trained.get_vocab()
    vocabulary = dict(known) | {b: len(known) + i for i, b in enumerate(bytes_)}
    merges = [tuple(m) for m in json.loads(trained.to_str())["model"]["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def fast(tokenizer: Tokenizer, **roles) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles)


def renumbered(model, ids: dict[int, int], rows: int):
    """A copy of a model whose token i is called `ids[i]`; it knows no others."""
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (copied.get_input_embeddings(), copied.get_output_embeddings()):
            old = layer.weight.detach().clone()
            new = torch.zeros(rows, old.shape[1])
            for i, j in ids.items():
                new[j] = old[i]
            layer.weight = torch.nn.Parameter(new)
    copied.get_input_embeddings().num_embeddings = rows
    copied.get_output_embeddings().out_features = rows
    copied.config.vocab_size = rows
    return copied
