"""What load_pair was given for one side, a model or a name: what can be said of it beforehand, and how it is loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.checkpoint import Checkpoint, read_checkpoint
from ..checkpoints.config import read_config
from ..checkpoints.gguf import SUFFIX, file_of, lone_file
from ..checkpoints.hub import folder_of, headers_of, split_name
from ..quantization import Backend, backend_of, quantization_of
from ..quantization.gguf import Gguf, meta_model
from ..quantization.loaded import check_scales
from .tokenizers import FolderSource

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ..quantization import Quantization
    from .sides import ModelOrFolder


class Origin:
    """A model, a folder, a Hub id or a GGUF file. No weights are read before `load`.

    Attributes:
        model: the model that was given, or None.
        checked: what the pair check takes: the model, the folder, the id; of a GGUF file that comes without
            config.json, a model without weights.
        facts: what the planner takes: names, facts, or the model.
        tokenizer: of such a GGUF file; else None.
        gguf: the GGUF file that it is loaded from; else None.
        backend: how it will be loaded.

    Raises:
        TypeError: neither a name nor a model; `role` names the side.
        FileNotFoundError, ValueError, ImportError: a name of nothing, a quantization that does not fit it, a missing
            package.
    """

    def __init__(self, role: str, given: ModelOrFolder, quantization: Quantization):
        self.model: PreTrainedModel | None = None
        self.tokenizer: PreTrainedTokenizerBase | None = None
        self.gguf: Path | None = None
        self.checked: Any = given
        self.facts: Any = given
        if isinstance(given, (str, os.PathLike)):
            self._look_up(given, quantization)
            return
        if not hasattr(given, "config") or not hasattr(given, "generate"):
            raise TypeError(f"{role}={given!r} is no model: pass a folder, a Hub id, or a loaded model.")
        if quantization is not None:
            raise ValueError(f"{type(given).__name__} is loaded already: pass its name to load it as {quantization!r}.")
        self.model, self.backend = given, Backend()

    def _look_up(self, name: str | os.PathLike[str], quantization: Quantization) -> None:
        path = Path(os.path.expanduser(name))
        if path.suffix == SUFFIX and not path.is_file():
            raise FileNotFoundError(f"{path} is no file.")
        self.name, self.local = os.fspath(name), path.exists()
        self.folder = path if path.suffix == SUFFIX else folder_of(name)
        self.backend = backend_of(quantization, self.folder)
        if self.local:
            self.checked = self.facts = self.folder
        if not isinstance(self.backend, Gguf):
            return
        self.gguf = file = file_of(self.folder)
        self.checked, self.facts = file.parent, file
        if lone_file(file):
            self.checked, self.tokenizer = meta_model(file)
            self.facts = self.checked.config, Checkpoint({}, file.stat().st_size, gguf=file.name)

    def check_weights(self, allow_pickle: bool) -> None:
        """Raises CheckpointError, or FileNotFoundError for a repository without safetensors."""
        if self.model is not None or self.tokenizer is not None:
            return
        if not self.local:
            if not allow_pickle:
                headers_of(self.name)
            return
        config = read_config(self.checked)
        checkpoint = read_checkpoint(self.checked, config, allow_pickle=allow_pickle)
        check_scales(self.checked, checkpoint)
        if checkpoint.pickled:
            self.facts = config, checkpoint

    def load(
        self,
        device_map: str | dict[str, Any] | None,
        device: torch.device,
        dtype: torch.dtype | str,
        draft: bool = False,
        **kwargs: Any,
    ) -> PreTrainedModel:
        """The model that was given; or see `Backend.load`."""
        if self.model is not None:
            return self.model
        checkpoint: str | Path = self.folder
        if not self.local:
            checkpoint, kwargs["revision"] = split_name(self.name)
        return self.backend.load(checkpoint, device_map, device=device, dtype=dtype, draft=draft, **kwargs)

    def loaded_as(self, model: PreTrainedModel) -> str:
        """The quantization that the loaded model really has; "dense" for none."""
        return self.backend.name if isinstance(self.backend, Gguf) else quantization_of(model)

    def read_tokenizer(self, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
        """That of the folder, or of the one that the model came from; None where it has none.

        Raises:
            ValueError: it cannot be read.
        """
        from transformers import AutoTokenizer

        folder = Path(self.folder if self.model is None else self.model.config.name_or_path)
        folder = folder.parent if folder.suffix == SUFFIX else folder
        if not folder.is_dir() or FolderSource.of(folder) is None:
            return None
        try:
            return AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code)
        except Exception as error:  # tokenizers raises nothing narrower
            raise ValueError(f"The tokenizer in {folder} cannot be read ({error}). Download it again.") from error
