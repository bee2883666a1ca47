"""Toy models that bite: decisive logits, a draft that is a noisy copy of its target, exact helpers.

An unrelated random draft accepts nothing and hides faults; a noisy copy accepts often and fails inside blocks.
"""

import contextlib
import copy
import string
from unittest import mock

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, PreTrainedConfig

import hf_specgen
from hf_specgen import Drafter, Proposal
from hf_specgen.cache import products
from hf_specgen.compat import CACHE_NAME
from hf_specgen.lengths.constant import ConstantLength

VOCAB = 64
EOS = 63


def tiny(config_class: type[PreTrainedConfig] = LlamaConfig, scale: float = 6.0, seed: int = 0, **overrides):
    """A random causal LM, float32, whose argmax is decisive (weights scaled up)."""
    settings = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": EOS,
    } | overrides
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config_class(**settings)).float().eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(scale)
    return model


def noisy(model, noise: float = 0.05, seed: int = 1):
    """A copy of the model with noise on its weights: agrees often, not always. `noise=0` is an exact copy."""
    draft = copy.deepcopy(hf_specgen.disable(model))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in draft.parameters():
            if p.dim() >= 2:
                p.add_(torch.randn(p.shape, generator=generator) * p.std() * noise)
    return draft


def contrary(model):
    """A draft that proposes what its target likes least."""
    draft = copy.deepcopy(hf_specgen.disable(model))
    with torch.no_grad():
        draft.get_output_embeddings().weight.neg_()
    return draft


def weights_first():
    """As for large layers of bfloat16 (see `products`): in float32, where ids must be equal, for any layer and any
    number of positions."""
    return mock.patch.multiple(
        products, DTYPE=torch.float32, LEAST=0, LEAST_OF_SEVERAL=0, MOST=10**6, pays_on=lambda device: True
    )


class Scripted(Drafter):
    """Proposes the true continuation, wrong from the n-th token on; n is `patterns[row][round]` (then: all right)."""

    def __init__(self, texts, patterns, vocabulary: int = VOCAB):
        self.texts, self.patterns, self.vocabulary = texts, [list(p) for p in patterns], vocabulary
        self.begun = 0

    def begin(self, rows, *_):
        self.begun += 1

    def propose(self, rows, widths, verifier, noise):
        if not max(widths):
            return Proposal.empty(len(rows), rows[0].ids.device)
        self.forwards += 1
        tokens = torch.zeros(len(rows), max(widths), dtype=torch.long)
        counts = torch.zeros(len(rows), dtype=torch.long)
        for b, (row, width) in enumerate(zip(rows, widths, strict=True)):
            truth = self.texts[row.index][row.length : row.length + width]
            right = self.patterns[row.index].pop(0) if width and self.patterns[row.index] else width
            draft = [token if i < right else (token + 1) % self.vocabulary for i, token in enumerate(truth)]
            counts[b] = len(draft)
            tokens[b, : len(draft)] = torch.tensor(draft)
            row.ids[row.length : row.length + len(draft)] = tokens[b, : len(draft)]
        return Proposal(tokens, counts)


class Doubting(ConstantLength):
    """Wants every alternative, or those of some places."""

    def __init__(self, tokens: int = 4, places=None):
        super().__init__(tokens)
        self.places = places

    def alternative_pays(self, rows, step, tops, shares):
        return [self.places is None or (step + row.index) % 3 in self.places for row in rows]


def prompts(lengths: list[int], seed: int = 0, side: str = "left", vocab: int = VOCAB):
    """`input_ids` and `attention_mask` of random prompts, padded on one side with id 0."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids, mask = torch.zeros(2, len(lengths), width, dtype=torch.long)
    for b, length in enumerate(lengths):
        where = slice(width - length, width) if side == "left" else slice(0, length)
        ids[b, where] = torch.randint(2, vocab - 2, (length,), generator=generator)
        mask[b, where] = 1
    return {"input_ids": ids, "attention_mask": mask}


def row_alone(batch, b: int):
    """Row b of a padded batch as a batch of its own, without padding; also of its other inputs."""
    mask = batch["attention_mask"][b].bool()
    row = {k: x[b : b + 1, mask] if x.shape[1:2] == mask.shape else x[b : b + 1] for k, x in batch.items()}
    return row | {"attention_mask": torch.ones(1, int(mask.sum()), dtype=torch.long)}


def plain(model, **kwargs):
    """The oracle: the class's own generate."""
    return type(model).generate(model, **kwargs)


def spec(model, draft, strategy: str = "rejection", **kwargs):
    """`generate` with speculation on: greedy, five drafted tokens a round, returning the dict, unless told otherwise.

    A toy draft is no cheaper than its target: by itself (`num_assistant_tokens=None`) it would be left alone.
    """
    if not {"num_assistant_tokens_schedule", "spec_source", "prompt_lookup_num_tokens"} & kwargs.keys():
        kwargs = {"num_assistant_tokens": 5} | kwargs
    hf_specgen.enable(model)
    try:
        return model.generate(
            assistant_model=draft,
            spec_strategy=strategy,
            **{"do_sample": False, "return_dict_in_generate": True} | kwargs,
        )
    finally:
        hf_specgen.disable(model)


def said(who: str, model, draft=None, new: int = 12, **kwargs):
    """A greedy call by "plain" or "ours", returning the dict."""
    options = {"max_new_tokens": new, "do_sample": False, "return_dict_in_generate": True} | kwargs
    return plain(model, **options) if who == "plain" else spec(model, draft, **{"num_assistant_tokens": 4} | options)


def assert_as_alone(model, out, batch, new: int = 12, **kwargs):
    """Each row's new ids, and logits to 1e-3 of their spread where there are some, are plain's of the row alone."""
    for b in range(len(batch["attention_mask"])):
        wanted = said("plain", model, new=new, **row_alone(batch, b), output_logits=True, **kwargs)
        ids = wanted.sequences[0, -len(wanted.logits) :].tolist()
        got = out.sequences[b, -out.draft_mask.shape[1] :].tolist()
        assert got[: len(ids)] == ids and out.spec_stats.rows[b].emitted == len(ids), f"row {b}"
        for ours, theirs in zip(out.logits or (), wanted.logits, strict=False):
            assert ((ours[b] - theirs[0]).abs().max() / theirs.std()).item() < 1e-3, f"row {b}"


def seeded(seed: int = 3) -> dict:
    """Arguments of a sampled call: the coupled text depends on nothing but this."""
    return {"do_sample": True, "generator": torch.Generator().manual_seed(seed)}


@torch.no_grad()
def read_into_cache(model, batch, **kwargs) -> dict:
    """The argument of `generate` that holds a cache which has read these prompts."""
    cache = DynamicCache(config=model.config)
    positions = (batch["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    if "position_ids" in hf_specgen.compat.forward_parameters(model):
        kwargs = {"position_ids": positions} | kwargs
    model(**kwargs | batch, **{CACHE_NAME: cache})
    return {CACHE_NAME: cache}


@contextlib.contextmanager
def reading(model):
    """The shapes `[rows, width]` of the ids that the model's forwards are given, as they come."""
    shapes = []
    hook = model.get_input_embeddings().register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape)))
    try:
        yield shapes
    finally:
        hook.remove()


def new_tokens(sequences: torch.Tensor, columns: int, pad: int = 0, eos: int | None = EOS) -> list[list[int]]:
    """Each row's new tokens up to and with its EOS."""
    rows = []
    for row in sequences[:, columns:].tolist():
        rows.append(row[: row.index(eos) + 1] if eos in row else row)
    return rows


def toy_tokenizer():
    """A byte-level tokenizer for `VOCAB` ids: letters, pieces of words, the two bytes of "é" apart, specials."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [*string.ascii_letters, "Ġ", "Ċ", "Ã", "©", "ing", "Ġthe", "ab", "cab", "Ġa"]
    vocabulary = {"<pad>": 0, "<bos>": 1} | {piece: i + 2 for i, piece in enumerate(pieces)} | {"<eos>": EOS}
    assert len(vocabulary) == VOCAB
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        clean_up_tokenization_spaces=False,
    )


def text(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """A random prompt. Equal arguments give the equal prompt, so that batches can share rows."""
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, vocab - 2, (length,), generator=generator).tolist()


def batch_of(rows: list[list[int]], side: str = "left", pad: int = 0):
    """`input_ids` and `attention_mask` of token lists, padded on one side."""
    width = max(map(len, rows))
    ids, mask = [], []
    for row in rows:
        fill = width - len(row)
        padding, ones = [pad] * fill, [1] * len(row)
        ids.append(padding + row if side == "left" else row + padding)
        mask.append([0] * fill + ones if side == "left" else ones + [0] * fill)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
