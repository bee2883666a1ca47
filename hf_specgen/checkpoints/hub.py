"""What a model's name stands for: a local folder, or a repository on the Hub ("org/name", "org/name@revision").

Of a repository, the small files that a check reads are brought into huggingface_hub's own cache. Its weights stay where
they are: their headers alone are asked for, by range requests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .headers import Tensor

SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "tekken.json",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "chat_template.*",
    "README.md",  # its header names the model that this one was made from
    "*.safetensors.index.json",
)
SUBFOLDERS = "*/*"  # other formats of the same model live there


def folder_of(name: str | os.PathLike[str]) -> Path:
    """The folder itself, or the local snapshot of a repository: its small files, and weights only if they were there.

    When the Hub cannot be asked (no network, HF_HUB_OFFLINE), the local cache answers.

    Raises:
        FileNotFoundError: neither; the message says why.
    """
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return Path(path)
    if os.path.isfile(path):
        raise FileNotFoundError(f"{name} is a file: pass the folder that holds config.json and the tokenizer")
    repository, revision = split_name(name)
    from huggingface_hub import snapshot_download

    with _fetching(name):
        folder = Path(
            snapshot_download(repository, revision=revision, allow_patterns=SMALL_FILES, ignore_patterns=SUBFOLDERS)
        )
    if not any((folder / config).exists() for config in ("config.json", "adapter_config.json")):
        raise FileNotFoundError(f"{name} holds no config.json, so it is not a transformers model")
    return folder


def headers_of(name: str) -> dict[str, Tensor]:
    """The safetensors headers of a repository, at the revision that `folder_of` gives. No weights are downloaded.

    Raises:
        FileNotFoundError: they cannot be had, or the repository holds no safetensors.
        CheckpointError: a file of the repository is broken.
    """
    repository, commit = split_name(name_of(folder_of(name)) or name)
    from huggingface_hub import get_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    from .headers import CheckpointError, Tensor, require_known_dtypes

    with _fetching(name):
        try:
            files = get_safetensors_metadata(repository, revision=commit).files_metadata.values()
        except NotASafetensorsRepoError:
            raise FileNotFoundError(f"{name} holds no model.safetensors, whole or in parts") from None
        except SafetensorsParsingError as error:
            raise CheckpointError(f"{name} holds a broken safetensors file: {error}") from None
    found = {tensor: Tensor(info.dtype, tuple(info.shape)) for file in files for tensor, info in file.tensors.items()}
    require_known_dtypes(name, found)
    return found


def cached_config(name: str, commit: str | None) -> Path | None:
    """The config.json that a loaded model's `name_or_path` stands for, if it is on this machine. Nobody is asked."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.utils import HFValidationError

    local = Path(name) / "config.json"
    if name and local.is_file():
        return local
    try:
        found = try_to_load_from_cache(name, "config.json", revision=commit)
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def name_of(folder: str | os.PathLike[str]) -> str | None:
    """The other way round: "org/name@commit" for a snapshot in a hub cache, None for any other folder."""
    snapshot = re.search(r"models--([^/]+)/snapshots/([0-9a-f]{40})$", Path(folder).as_posix())
    return f"{snapshot[1].replace('--', '/')}@{snapshot[2]}" if snapshot else None


def split_name(name: str | os.PathLike[str]) -> tuple[str, str | None]:
    """("org/name", revision or None); FileNotFoundError for what can only be a path."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    repository, at, revision = os.fspath(name).partition("@")
    try:
        validate_repo_id(repository)
    except HFValidationError:
        repository = ""
    if isinstance(name, os.PathLike) or not repository or (at and not revision):
        raise FileNotFoundError(f"{name} is not a local folder")
    return repository, revision or None


@contextmanager
def _fetching(name: str | os.PathLike[str]) -> Iterator[None]:
    """Turns what huggingface_hub raises into one sentence about `name`."""
    # HTTPError is that of the HTTP client which this huggingface_hub uses: httpx or httpx2.
    from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except (HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        raise FileNotFoundError(f"{name} is not a local folder, and {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) and error.__cause__ else error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if isinstance(cause, GatedRepoError):
        return "its repository is gated: accept its terms on its page, then log in with `hf auth login`"
    if isinstance(cause, RepositoryNotFoundError):
        return "the Hub shows no such repository: check the spelling; if it is private, log in with `hf auth login`"
    if isinstance(cause, RevisionNotFoundError):
        return "its repository has no such revision: name a branch, a tag or a commit after the @"
    if status in (401, 403):
        return f"the Hub refused access (HTTP {status}): log in with `hf auth login` and a token that may read it"
    if isinstance(cause, OfflineModeIsEnabled):
        return "the local cache does not hold it whole while HF_HUB_OFFLINE is set: unset it, or pass a folder"
    said = f"HTTP {status}" if status else type(cause).__name__
    return f"{constants.ENDPOINT} cannot be reached ({said}), nor is it whole in the local cache: pass a folder"
