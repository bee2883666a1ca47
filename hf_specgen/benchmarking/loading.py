"""The models of a bench: told apart without reading their weights, then loaded."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import compat
from ..checkpoints.config import CONTEXTS, read_config, text_facts
from ..checkpoints.hub import folder_of
from ..pairing.arguments import checked_dtype
from ..pairing.loading import load_pair
from ..pairing.origin import Origin
from ..pairing.places import device_at
from ..unwrap import unwrap
from .calls import Models
from .machine import default_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


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
        """For the manifest. Not the path, which says nothing on another machine."""
        if not self.named:
            config, name = self.given.config.to_json_string().encode(), self.given.config.name_or_path
        else:
            path, name = Path(os.path.expanduser(self.given)), os.fspath(self.given)
            if (file := self.origin.gguf) is not None:  # says itself what it is
                config = f"{file.name}, {file.stat().st_size} bytes".encode()
            else:
                config = (folder_of(self.given) / "config.json").read_bytes()
            if path.exists():
                name = path.resolve().name
        told = {"name": name, "config": hashlib.sha256(config).hexdigest()[:16], "dtype": self.dtype}
        return told | ({"quantization": str(self.quantization)} if self.quantization else {})

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
    """Load what was not a model yet: on `device`, or where `load_pair` puts it.

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
    pair = load_pair(
        target.given,
        draft.given,
        dtype=target.dtype if target.named else draft.dtype,
        draft_quantization=draft.quantization,
        **({} if home is None or not target.named else {"device_map": {"": home}}),
        **({} if home is None or not draft.named else {"draft_device": home}),
    )
    return Models(pair.target, pair.draft, tokenizer, pair.assistant_tokenizer)
