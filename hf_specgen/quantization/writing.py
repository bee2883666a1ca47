"""Write a quantized copy of a draft's folder, and only if it loads and says what the dense one says."""

from __future__ import annotations

import argparse
import inspect
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..checkpoints.checkpoint import read_checkpoint
from ..checkpoints.config import read_json
from . import Backend, backend_of
from .awq import Awq
from .int4_linear import GROUPS
from .steps import Listener, Steps

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

METHODS = {
    "nf4": "bitsandbytes, 4 bits (NormalFloat), a scale per 64 weights",
    "fp4": "bitsandbytes, 4 bits (floating point), a scale per 64 weights",
    "int8": "bitsandbytes, 8 bits, a scale per row",
    "torchao-int8": "torchao, 8 bits, a scale per row",
    "int4": "4-bit integers, rounded to the nearest, in AutoAWQ's file format (torchao's int4 cannot be saved)",
    "awq": "4-bit integers in AutoAWQ's file format; each group's range is chosen for the inputs that its layer gets "
    "on a calibration text (activation-aware clipping; channels are not scaled)",
}
IN_AWQ_FORMAT = ("int4", "awq")
CALIBRATION = (16, 128)
"""Rows and tokens."""
LEAST_LIKENESS = 0.8
"""Of the logits before and after. 4 bits leave 0.9 of tiny random models and 0.98 of trained ones; garbage has 0."""

KEPT_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".spm", ".py"})
"""Beside weights and config: tokenizers, templates, generation settings, code."""


class NotLikeOriginalError(Exception):
    """A quantized model whose logits are not near the original's."""


@dataclass(frozen=True)
class Written:
    """What was made, and how near it is to what it was made from."""

    source: Path
    folder: Path
    method: str
    quantization: dict
    """As its config.json has it."""
    bytes_before: int
    bytes_after: int
    calibration: Path | None
    likeness: float
    """Cosine of the two models' centred logits, mean over a short text."""
    positions: int
    """Of that text."""
    same_choice: float
    """Share of its positions where both have the same best token."""
    head: str
    """What its head is when hf-specgen loads it on a CPU."""


def write_quantized(
    source: Path,
    folder: Path,
    method: str,
    *,
    group_size: int | None = None,
    calibration: Path | None = None,
    listener: Listener = lambda *step: None,
) -> Written:
    """Quantize the model in `source` on the CPU into `folder`, which must not exist or be empty.

    Args:
        method: one of `METHODS`.
        group_size: weights per scale, for "int4" and "awq", one of `GROUPS`; None: the largest that fits the model.
        calibration: file with text for "awq"; None: Python source code.
        listener: see `steps.Listener`.

    Raises:
        CheckpointError, FileNotFoundError, FileExistsError, ImportError, ValueError: before anything is written.
        NotLikeOriginalError: nothing is left of it.
    """
    if method not in METHODS:
        raise ValueError(f"{method!r} cannot be written. Choose one of {', '.join(METHODS)}.")
    if group_size is not None and method not in IN_AWQ_FORMAT:
        raise ValueError(f"{method} has a group size of its own: leave --group-size out.")
    if calibration is not None and method != "awq":
        raise ValueError(f"{method} needs no calibration text: leave --calibration out.")
    source, folder = source.expanduser().resolve(), folder.expanduser().resolve()
    if group_size is not None and group_size not in GROUPS:
        raise ValueError(f"--group-size is one of {', '.join(map(str, sorted(GROUPS)))}, not {group_size}.")
    text = inspect.getsource(argparse) if calibration is None else calibration.read_text(encoding="utf-8")
    if not text.strip():
        raise ValueError(f"{calibration} holds no text to calibrate with.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} is there already. Name a new folder.")
    if not (source / "config.json").is_file():
        raise FileNotFoundError(
            f"{source} holds no config.json, so it is not a model's folder. Of a model on the Hub, name the folder "
            "that it was downloaded to."
        )
    config = read_json(source / "config.json")
    before = read_checkpoint(source, config, allow_pickle=True)
    if before.quantization is not None:
        raise ValueError(f"{source} is quantized already ({before.quantization.method}). Name the dense model.")
    if before.pickled:
        raise ValueError(
            f"{source} holds pickled weights, which can run code. If you trust them, convert them once: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)."
        )
    if config.get("is_encoder_decoder"):
        raise ValueError(
            f"{source} is an encoder-decoder ({config.get('model_type')}): only decoders are quantized here."
        )
    backend = Awq() if method in IN_AWQ_FORMAT else backend_of(method, source)
    backend.check()

    with _all_or_nothing(folder) as unfinished:
        steps = Steps(listener, expected=3)
        steps.begin("loading")
        dense = _load(Backend(), source, draft=False)
        probe = _token_ids(source, config, inspect.getsource(inspect.getsource), 1, 64)
        wanted = _logits(dense, probe)
        if method in IN_AWQ_FORMAT:
            from .awq_format import save_awq

            ids = _token_ids(source, config, text, *CALIBRATION) if method == "awq" else None
            save_awq(dense, unfinished, group_size, ids, steps)
        else:
            steps.begin("quantizing")
            del dense
            _load(backend, source, draft=True).save_pretrained(unfinished)  # before its first forward: see base.py
        steps.begin("comparing")
        _copy_the_rest(source, unfinished)
        written = _judge(source, unfinished, folder, method, calibration, before.bytes, probe, wanted)
        from .card import card

        (unfinished / "README.md").write_text(card(written), encoding="utf-8")
    return written


def _judge(source, unfinished, folder, method, calibration, bytes_before, probe, wanted) -> Written:
    """Load what was written as a draft, and compare."""
    import torch

    config = read_json(unfinished / "config.json")
    reloaded = _load(backend_of(None, unfinished), unfinished, draft=True)
    got = _logits(reloaded, probe)
    centred = (wanted - wanted.mean(-1, keepdim=True), got - got.mean(-1, keepdim=True))
    likeness = torch.cosine_similarity(*centred, dim=-1).mean().item()
    if not likeness >= LEAST_LIKENESS:  # also NaN
        smaller = ", or a smaller --group-size" if method in IN_AWQ_FORMAT else ""
        raise NotLikeOriginalError(
            f"The quantized model's logits have a likeness of {likeness:.2f} with the original's ({LEAST_LIKENESS} is "
            f"the least). Choose another method{smaller}."
        )
    return Written(
        source=source,
        folder=folder,
        method=method,
        quantization=config["quantization_config"],
        calibration=calibration,
        bytes_before=bytes_before,
        bytes_after=read_checkpoint(unfinished, config).bytes,
        likeness=likeness,
        positions=probe.numel(),
        same_choice=(wanted.argmax(-1) == got.argmax(-1)).float().mean().item(),
        head=type(reloaded.get_output_embeddings()).__name__,
    )


@contextmanager
def _all_or_nothing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` that takes its name at the end, or vanishes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    unfinished.mkdir()
    try:
        yield unfinished
        if folder.exists():
            folder.rmdir()
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _load(backend: Backend, folder: Path, draft: bool) -> PreTrainedModel:
    import torch

    cpu = torch.device("cpu")
    return backend.load(folder, {"": cpu}, device=cpu, draft=draft)


def _logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    import torch

    with torch.no_grad():
        return model(ids, use_cache=False).logits.float()


def _token_ids(folder: Path, config: dict, text: str, rows: int, tokens: int) -> torch.Tensor:
    """`[rows, tokens]` of a text, or of its bytes where the folder has no tokenizer; of a short text, fewer."""
    import torch

    from ..pairing.tokenizers import FolderSource

    if FolderSource.of(folder) is None:
        vocabulary = config.get("vocab_size") or 256
        ids = [byte % vocabulary for byte in text.encode()[: rows * tokens]]
    else:
        from transformers import AutoTokenizer

        ids = AutoTokenizer.from_pretrained(folder)(text)["input_ids"][: rows * tokens]
    if not ids:
        raise ValueError("The calibration text is empty.")
    tokens = min(tokens, len(ids))
    return torch.tensor(ids[: len(ids) // tokens * tokens]).unflatten(0, (-1, tokens))


def _copy_the_rest(source: Path, out: Path) -> None:
    """Tokenizer, chat template, generation settings, licence."""
    for file in source.iterdir():
        kept = file.suffix in KEPT_SUFFIXES and not file.name.endswith(".index.json")
        licence = file.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE"))
        if file.is_file() and (kept or licence) and not (out / file.name).exists():
            shutil.copy(file, out / file.name)
