"""The models of a bench: told apart without reading their weights, then loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import compat
from ..api import disable
from ..checkpoints.config import CONTEXTS, read_config, text_facts
from ..checkpoints.digest import digest_of, weight_files
from ..checkpoints.hub import cached_config, folder_of
from ..pairing.arguments import checked_dtype
from ..pairing.loading import load_pair
from ..pairing.origin import Origin
from ..pairing.places import device_at
from ..unwrap import unwrap
from .calls import Models
from .machine import default_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CHECKPOINT = "checkpoint"
"""Of a `Side.fingerprint`: which weights."""


class Side:
    """A target or a draft: a folder, a Hub id or a model.

    Raises:
        FileNotFoundError, ValueError: there is no such folder, or it holds no model.
    """

    def __init__(self, role: str, given: Any, dtype: str, quantization: str | None = None):
        self.given, self.dtype, self.quantization = given, dtype, quantization
        checked_dtype(dtype)
        self.origin = Origin(role, given, quantization)
        self.origin.check_weights(allow_pickle=False)
        if self.origin.model is not None:
            self.given = unwrap(given)
            self.dtype = str(self.given.dtype).removeprefix("torch.")

    @property
    def named(self) -> bool:
        return self.origin.model is None

    def fingerprint(self) -> dict[str, Any]:
        """For the manifest: name, hashes, what was asked for. Not the path, which says nothing on another machine.

        `checkpoint`, a hash of pieces of the weights' files, is there only where they are, and for no loaded model,
        whose weights may be others by now.
        """
        files: list[Path] = []
        if not self.named:
            own = self.given.config
            name, file = own.name_or_path, cached_config(own.name_or_path, getattr(own, "_commit_hash", None))
            config = own.to_json_string().encode() if file is None else file.read_bytes()
        elif (gguf := self.origin.gguf) is not None:  # says itself what it is
            name, config, files = self.given, f"{gguf.name}, {gguf.stat().st_size} bytes".encode(), [gguf]
        else:
            name, folder = self.given, folder_of(self.given)
            config, files = (folder / "config.json").read_bytes(), weight_files(folder)
        path = Path(os.path.expanduser(name))
        name = path.resolve().name if name and path.exists() else os.fspath(name)
        told = {"name": name, "config": hashlib.sha256(config).hexdigest()[:16], "dtype": self.dtype}
        told |= {"quantization": str(self.quantization)} if self.quantization else {}
        return told | ({CHECKPOINT: digest_of(files)} if files else {})

    def context_length(self) -> float:
        """Positions that the config promises; infinite where it names none."""
        checked = self.origin.checked
        if not isinstance(checked, (str, os.PathLike)):
            return compat.context_length(checked)
        facts = text_facts(read_config(folder_of(checked)))
        return next((facts[name] for name in CONTEXTS if facts.get(name)), float("inf"))

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """
        Raises:
            ValueError: there is none.
        """
        found = self.origin.tokenizer or self.origin.read_tokenizer(False)
        if found is None:
            raise ValueError(f"{self.fingerprint()['name'] or 'The target'} has no tokenizer: pass tokenizer=.")
        return found


def load(target: Side, draft: Side | None, tokenizer: PreTrainedTokenizerBase, device: str | None) -> Models:
    """Load what was not a model yet: on `device`, or where `load_pair` puts it. A target that was given stays enabled
    or not, as it was.

    Raises:
        ValueError, OSError, ImportError: see `load_pair`.
    """
    home = device_at(device, "device")
    if draft is None:
        model = target.given
        if target.named:
            where = home or default_device()
            model = target.origin.load({"": where}, where, checked_dtype(target.dtype))
        return Models(model, None, tokenizer)
    if not target.named and not draft.named:
        return Models(target.given, draft.given, tokenizer)
    enabled = None if target.named else vars(target.given).get("generate")
    pair = load_pair(
        target.given,
        draft.given,
        dtype=target.dtype if target.named else draft.dtype,
        draft_quantization=draft.quantization,
        **({} if home is None or not target.named else {"device_map": {"": home}}),
        **({} if home is None or not draft.named else {"draft_device": home}),
    )
    if enabled is not None:
        pair.target.generate = enabled
    elif not target.named:
        disable(pair.target)
    second = pair.assistant_tokenizer if pair.report.ids_differ else None  # else stock decoding refuses one
    return Models(pair.target, pair.draft, tokenizer, second)
