"""Does this architecture understand a ready-made ragged mask? Asked once per configuration, of the model itself.

Families that are tested here and always do are known. Any other is shown two rows of different length together and each
alone: if the logits agree, it understands; if they differ or it raises, its rows run in groups of equal length.
"""

import threading

import torch
from transformers.modeling_outputs import BaseModelOutput

from .. import compat
from .ragged import RaggedCache
from .stock import Layout

KNOWN = frozenset(
    [
        "llama",
        "qwen2",
        "qwen3",
        "mistral",
        "gemma2",
        "gemma3_text",
        "cohere2",
        "gpt_oss",
        "phi3",
        "olmo2",
        "mixtral",
        "deepseek_v3",
        "granite",
        "starcoder2",
        "stablelm",
        "gpt_neox",
        "gpt2",
        "opt",
    ]
)
READS_MASK = ("bloom", "mpt")
"""Without position_ids, but their biases are built from the mask (MPT's from columns: a shift is nothing to them)."""

KNOWN_ENCODER_DECODERS = frozenset(["t5", "bart", "whisper", "mbart", "marian", "pegasus"])

_verdicts: dict[tuple, object] = {}
_lock = threading.Lock()


def once(question, model, ask):
    """The answer to a question about a model, asked once per class and configuration."""
    # One class can hold several position schemes (Falcon: rotary or ALiBi), told apart by its config alone.
    config = compat.text_config(model)
    key = (question, type(model), config._attn_implementation, config.to_json_string(use_diff=False))
    with _lock:
        if key not in _verdicts:
            _verdicts[key] = ask()
        return _verdicts[key]


def understands_ragged_masks(reader) -> bool:
    """Whether rows at different positions may share a forward of this reader's model."""
    if reader.model.config.model_type in KNOWN:
        return True
    return once("ragged", reader.model, lambda: _agrees(reader))


def understands_alternatives(reader) -> bool:
    """Whether tokens may stand beside the text in a forward of this reader's model (see `Reader.read`)."""
    if reader.model.config.model_type in KNOWN:
        return True
    return once("alternatives", reader.model, lambda: _reads_beside(reader))


def cannot_read_blocks(model) -> str | None:
    """Why several tokens in one forward would not give what one at a time gives; None if they do.

    Asked on the model's own cache: recurrent layers that start anew for every block, attention that looks ahead inside
    one, forwards that refuse one.
    """
    if model.config.model_type in KNOWN | KNOWN_ENCODER_DECODERS:
        return None
    return once("blocks", model, lambda: _block_fault(model))


def padding_counts(model, by_probe: bool = True) -> bool:
    """Whether padding changes what a model makes of a row: positions that count it, for want of `position_ids`; states
    that read it; or, `by_probe`, attention that picks it. Such rows are read without any."""
    if model.config.is_encoder_decoder or compat.keeps_state(model):
        return True
    if "position_ids" not in compat.forward_parameters(model) and model.config.model_type not in READS_MASK:
        return True
    if drops_positions(model):
        return True
    if model.config.model_type in KNOWN or not by_probe:
        return False
    return once("padding", model, lambda: not _same_with_padding(model))


def some_text(model, length: int) -> list[int]:
    known = max(1, min(compat.text_config(model).vocab_size, 997) - 1)
    return [(7 * i) % known + 1 for i in range(length)]


def _some_encoding(model, device: torch.device) -> dict:
    """Something in place of an encoder's outputs, for models that have one."""
    if not model.config.is_encoder_decoder:
        return {}
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(1, 5, compat.text_config(model).hidden_size, generator=generator)
    return {"encoder_outputs": BaseModelOutput(last_hidden_state=states.to(device, model.dtype))}


def drops_positions(model) -> bool:
    """Whether the model's own preparation throws `position_ids` away, so that it counts columns of its cache."""
    return compat.prepares_inputs(model) and once("positions", model, lambda: _drops_positions(model))


def _drops_positions(model) -> bool:
    ids = torch.zeros(1, 1, dtype=torch.long)
    try:
        prepared = model.prepare_inputs_for_generation(ids, position_ids=ids, use_cache=True)
    except Exception:
        return True
    return prepared.get("position_ids") is None


def gap(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    """How far apart they are at most, in standard deviations."""
    wanted = wanted.float()
    return ((logits.float() - wanted).abs().max() / wanted.std().clamp(min=1e-6)).item()


def tolerance(model) -> float:
    """How large a gap may be. Faults are of the order of one."""
    return 1e-3 if model.dtype == torch.float32 else 0.15


@torch.no_grad()
def _same_with_padding(model) -> bool:
    from .reader import device_of, read_prompt

    pad, texts = 5, [some_text(model, 9), some_text(model, 14)]
    device = device_of(model, torch.device("cpu"))
    try:
        alone = read_prompt(model, torch.tensor([texts[0]], device=device), None, 9)[0][0]
        ids = torch.tensor([[0] * pad + texts[0], texts[1]], device=device)
        mask = torch.ones_like(ids)
        mask[0, :pad] = 0
        padded = read_prompt(model, ids, mask, 9)[0][0]
    except Exception:
        return False
    return gap(padded, alone) < tolerance(model)


@torch.no_grad()
def _block_fault(model) -> str | None:
    from .reader import device_of, read_prompt

    config = compat.text_config(model)
    head = _long_head(config)
    ids = torch.tensor([some_text(model, head + 6)], device=device_of(model, torch.device("cpu")))
    beside = _some_encoding(model, ids.device)

    def read(widths: list[int]) -> torch.Tensor:
        logits, cache = read_prompt(model, ids[:, :head], None, **beside)
        found, start = [logits], head
        for width in widths:
            block = ids[:, start : start + width]
            logits, cache = read_prompt(model, block, None, width, cache=cache, start=start, **beside)
            found.append(logits)
            start += width
        return torch.cat(found, dim=1)

    try:
        alone, blocks = read([1] * 6), read([3, 3])
    except Exception as error:
        if beside:  # perhaps over what we gave it in place of an encoder's outputs
            return None
        return f"its forward raises {type(error).__name__} ({error})"
    if alone.shape != blocks.shape:
        return "its forward does not give logits for each token of a block"
    far = gap(blocks, alone)
    return (
        None if far < tolerance(model) else f"its logits are {far:.2g} standard deviations off those of single tokens"
    )


@torch.no_grad()
def _agrees(reader) -> bool:
    from .reader import Reader, read_prompt

    texts = [some_text(reader.model, 6), some_text(reader.model, 12)[3:]]
    tail = 3

    def alone(text):
        ids = torch.tensor([text], device=reader.device)
        head = ids[:, :-tail]
        filled = [(read_prompt(reader.model, head, None)[1], Layout(None, 1, head.shape[1]), [0])]
        one = Reader.from_prefill(reader.model, filled, tail, reader.device)
        return one, one.read(ids[:, -tail:], [tail])[0]

    try:
        pieces = [alone(text) for text in texts]
        caches = [head.cache for head, _ in pieces]
        together = Reader(reader.model, _stack(caches, tail), reader.device)
        ids = torch.tensor([text[-tail:] for text in texts], device=reader.device)
        logits = together._forward(ids, [tail, tail], None, None)
    except Exception:
        return False
    return gap(logits, torch.stack([x for _, x in pieces])) < tolerance(reader.model)


@torch.no_grad()
def _reads_beside(reader) -> bool:
    """Of three tokens, the last stands beside the second: what the model says behind each, and where each is alone."""
    from .reader import Reader, read_prompt

    head = _long_head(reader.config)
    *text, first, second, other = some_text(reader.model, head + 3)
    beside = torch.zeros(1, 1, dtype=torch.long)

    def read(one: Reader, *tokens: int, **options) -> torch.Tensor:
        ids = torch.tensor([tokens], device=reader.device)
        return one._forward(ids, [2], None, None, **options)[0]  # which leaves its length as it was

    try:
        cache = read_prompt(reader.model, torch.tensor([text], device=reader.device), None)[1]
        one = Reader.from_prefill(reader.model, [(cache, Layout(None, 1, head), [0])], 3, reader.device)
        wanted = torch.cat([read(one, first, second), read(one, first, other)[1:]])
        logits = read(one, first, second, other, beside=beside)
    except Exception:
        return False
    return gap(logits, wanted) < tolerance(reader.model)


def _long_head(config) -> int:
    """So many tokens of text that a window, if it is not a large one, is full."""
    return 6 + min(getattr(config, "sliding_window", None) or 0, 32)


def _stack(caches: list[RaggedCache], tail: int) -> RaggedCache:
    """One-row caches side by side, each rolled back by `tail`."""
    lengths = [cache.lengths[0] - tail for cache in caches]
    rows = [cache.pieces(0, length) for cache, length in zip(caches, lengths, strict=True)]
    return RaggedCache.of_rows(caches[0].windows, rows, lengths, tail)
