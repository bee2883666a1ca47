"""One side of a pair: what its model says, and where the meaning of its token ids comes from.

That is a tokenizer object, or the tokenizer files beside the checkpoint. Everything here is a small hashable value that
changes when the thing behind it changes, so that a verdict can be kept under it; a vocabulary is read only when needed.
Nothing is downloaded, no code from a checkpoint is run, nothing is written.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Vocabulary = dict[int, str]
SAMPLED_IDS = 32

# Files that hold a vocabulary. A folder without any has no tokenizer, whatever AutoTokenizer would build for it: from a
# bare config.json transformers 5 makes an empty one without a word.
VOCABULARY_FILE = re.compile(r"(tokenizer|tekken|vocab)\.json|vocab\.txt|.+\.(model|spm|tiktoken)")
# Files that add tokens to it.
EXTRA_FILES = frozenset({"tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"})

# Where a multimodal config keeps the config of its language model.
TEXT_CONFIGS = ("text_config", "decoder", "language_config", "llm_config")

# What gives a head away: keys that only heads carry, and words in class names ("Eagle2_5_VL…" is a vision model).
HEAD_KEYS = (
    "speculators_model_type",
    "speculators_config",
    "medusa_num_heads",
    "eagle_config",
    "dflash_config",
    "draft_vocab_size",
)
HEAD_CLASS = re.compile(r"[Ee]agle(?![\d_.]*VL)|EAGLE|[Mm]edusa|D[Ff]lash|MTP|NextN|Draft(er|Model)|Speculator")
HEAD_KINDS = {
    "eagle3": "an EAGLE-3 head",
    "eagle": "an EAGLE head",
    "medusa": "a Medusa head",
    "dflash": "a DFlash drafter",
    "mtp": "an MTP head",
    "nextn": "an MTP head",
    "draft_vocab_size": "an EAGLE-3 head",
}


class UnreadableTokenizerError(Exception):
    """A folder holds tokenizer files that cannot be read here. The message says why, in one line."""


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer object, by weak reference: an id() may come back for another tokenizer, a dead reference never does.

    An added token changes `size`; should the model inside be replaced, `sample` changes.
    """

    tokenizer: weakref.ref[PreTrainedTokenizerBase]
    size: int
    sample: tuple[str | None, ...]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenizerSource:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:  # slow tokenizers know their length, and may raise on ids they do not know
            return cls(weakref.ref(tokenizer), len(tokenizer), ())
        size = _fast_size(tokenizer, backend)
        step = max(1, size // SAMPLED_IDS)
        return cls(weakref.ref(tokenizer), size, tuple(map(backend.id_to_token, range(0, size, step))))

    def read(self) -> Vocabulary:
        tokenizer = self.tokenizer()
        assert tokenizer is not None  # the caller of check_pair holds it
        return _vocabulary_of(tokenizer)


# Where the next token added to a fast tokenizer will go; None if its ids have holes, for then that is not certain.
_ends: weakref.WeakKeyDictionary[PreTrainedTokenizerBase, int | None] = weakref.WeakKeyDictionary()


def _fast_size(tokenizer: PreTrainedTokenizerBase, backend: Any) -> int:
    """The number of ids. Counting can take 40 ms (152k ids, tokenizers 0.22): done again only after an addition."""
    end = _ends.get(tokenizer)
    if end is not None and backend.id_to_token(end) is None:
        return end
    size = backend.get_vocab_size()
    if end is not None or tokenizer not in _ends:
        _ends[tokenizer] = size if max(backend.get_vocab().values(), default=-1) == size - 1 else None
    return size


@dataclass(frozen=True)
class FolderSource:
    """The tokenizer files of a local folder, with times and sizes: an edited file makes another source."""

    folder: str
    files: tuple[tuple[str, int, int, int], ...]
    """(name, mtime, ctime, size); ctime also sees a file of equal size copied over with its old mtime."""

    @classmethod
    def of(cls, folder: Path) -> FolderSource | None:
        """None when the folder holds no vocabulary."""
        with os.scandir(folder) as entries:
            found = {e.name: e.stat() for e in entries if _is_tokenizer_file(e.name) and e.is_file()}
        if found.keys() <= EXTRA_FILES:
            return None
        return cls(
            str(folder), tuple((name, s.st_mtime_ns, s.st_ctime_ns, s.st_size) for name, s in sorted(found.items()))
        )

    def read(self) -> Vocabulary:
        names = {name for name, *_ in self.files}
        try:
            vocabulary = self._from_json(names) if "tokenizer.json" in names else self._from_transformers()
        except Exception as error:  # a broken file, a missing package, a class that needs remote code: "cannot tell"
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UnreadableTokenizerError(f"the tokenizer in {self.folder} could not be read ({cause})") from error
        if not vocabulary:
            raise UnreadableTokenizerError(f"the tokenizer in {self.folder} is empty")
        return vocabulary

    def _from_json(self, names: set[str]) -> Vocabulary:
        """The ids AutoTokenizer would give, in 0.2 s instead of 2 s and the import of transformers."""
        content = read_json(Path(self.folder, "tokenizer.json"))
        pieces = content["model"]["vocab"]
        if isinstance(pieces, dict):
            vocabulary = {id_: token for token, id_ in pieces.items()}
        else:  # Unigram: a list of [token, score]
            vocabulary = {id_: piece[0] for id_, piece in enumerate(pieces)}
        vocabulary.update((added["id"], added["content"]) for added in content.get("added_tokens") or ())
        if "added_tokens.json" in names:
            for token, id_ in read_json(Path(self.folder, "added_tokens.json")).items():
                vocabulary.setdefault(id_, token)
        if "tokenizer_config.json" in names:
            added_tokens = read_json(Path(self.folder, "tokenizer_config.json")).get("added_tokens_decoder") or {}
            for id_, added in added_tokens.items():
                vocabulary.setdefault(int(id_), added["content"])
        return vocabulary

    def _from_transformers(self) -> Vocabulary:
        from transformers import AutoTokenizer

        # trust_remote_code=False: if left open, transformers stops and asks at the terminal.
        return _vocabulary_of(
            AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False)
        )


@dataclass(frozen=True)
class Side:
    """All that a verdict depends on, for one side. Cheap to take: it is taken before every generate()."""

    name: str
    rows: int | None
    """Rows of logits; None when a folder's config does not say."""
    eos: tuple[int, ...]
    not_a_model: str | None
    """What the checkpoint is instead of a causal LM, with a way out; None for a causal LM."""
    source: TokenizerSource | FolderSource | None

    @classmethod
    def of(
        cls, model: PreTrainedModel | str | os.PathLike[str], tokenizer: PreTrainedTokenizerBase | None = None
    ) -> Side:
        source = TokenizerSource.of(tokenizer) if tokenizer is not None else None
        if isinstance(model, (str, os.PathLike)):
            return cls._of_folder(Path(model), source)
        if not hasattr(model, "config"):
            raise TypeError(f"check_pair needs a transformers model or a local folder, not {type(model).__name__}")
        config, loaded_as = model.config, type(model).__name__
        name = getattr(config, "name_or_path", None) or loaded_as
        eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
        return cls(
            name=name,
            rows=_logits_rows(model),
            eos=_ids(eos if eos is not None else getattr(config, "eos_token_id", None)),
            not_a_model=_describe_head(name, lambda key: getattr(config, key, None), loaded_as),
            source=source or _source_beside(config),
        )

    @classmethod
    def _of_folder(cls, folder: Path, source: TokenizerSource | None) -> Side:
        if not folder.is_dir():
            raise FileNotFoundError(f"{folder} is not a local folder (nothing is downloaded here)")
        name = str(folder)
        adapter = folder / "adapter_config.json"
        if not (folder / "config.json").exists():
            if adapter.exists():
                return cls(name, None, (), _describe_adapter(name, read_json(adapter)), None)
            raise FileNotFoundError(f"{folder} holds no config.json, so it is not a model's folder")
        config = read_json(folder / "config.json")
        generation = folder / "generation_config.json"
        facts = next((config[key] for key in TEXT_CONFIGS if isinstance(config.get(key), dict)), {}) | config
        eos = (read_json(generation) if generation.exists() else {}).get("eos_token_id")
        return cls(
            name=name,
            rows=facts.get("vocab_size"),
            eos=_ids(eos if eos is not None else facts.get("eos_token_id")),
            not_a_model=_describe_head(name, config.get, loaded_as=None),
            source=source or FolderSource.of(folder),
        )


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} is not a JSON object")
    return content


def _describe_head(name: str, get: Callable[[str], Any], loaded_as: str | None) -> str | None:
    """AutoModel loads a head's folder as a plain model of its `model_type` and drops the head's own tensors without a
    word. So a loaded model is a head, too, when its config names a head's class and it was loaded as another."""
    architectures = [str(name) for name in get("architectures") or ()]
    marks = [key for key in HEAD_KEYS if get(key)]
    marks += [architecture for architecture in architectures if HEAD_CLASS.search(architecture)]
    model_type = str(get("model_type"))
    if model_type.endswith("_assistant"):  # transformers' own drafters (Gemma 4), which need the target's hidden states
        marks.append(model_type)
    elif loaded_as in marks:
        marks.remove(loaded_as)
    if not marks:
        return None
    told = " ".join([*marks, str(get("speculators_model_type"))]).lower()
    kind = next((kind for word, kind in HEAD_KINDS.items() if word in told), "a drafter")
    verifier = (get("speculators_config") or {}).get("verifier") or {}
    base = verifier.get("name_or_path") or get("base_model_name_or_path")
    return (
        f"{name} is {kind}{f' for {base}' if base else ''}, not a causal LM (its config says {', '.join(marks)}). "
        "Loaded as one, it loses its own tensors. Pass a whole causal LM instead."
    )


def _describe_adapter(name: str, config: dict[str, Any]) -> str:
    base = config.get("base_model_name_or_path")
    return (
        f"{name} is a PEFT adapter{f' for {base}' if base else ''}, not a whole model. Load the base model with the "
        f"adapter, AutoPeftModelForCausalLM.from_pretrained({name!r}), and pass that."
    )


def _logits_rows(model: PreTrainedModel) -> int | None:
    head = model.get_output_embeddings()
    if head is None:
        return getattr(model.config.get_text_config(decoder=True), "vocab_size", None)
    # out_features first: the weight of a quantized head is packed, that of a sharded one can be empty.
    return getattr(head, "out_features", None) or head.weight.shape[0]


def _source_beside(config: Any) -> FolderSource | None:
    """The tokenizer in the folder the model was loaded from, or in its snapshot in the local hub cache."""
    name = getattr(config, "name_or_path", None)
    if not name:
        return None
    try:
        if os.path.isdir(name):
            return FolderSource.of(Path(name))
        from huggingface_hub import try_to_load_from_cache

        cached = try_to_load_from_cache(name, "config.json", revision=getattr(config, "_commit_hash", None))
        return FolderSource.of(Path(cached).parent) if isinstance(cached, str) else None
    except (OSError, ValueError):  # a folder not ours to read, or gone (its path is no repository's name)
        return None


def _is_tokenizer_file(name: str) -> bool:
    return name in EXTRA_FILES or VOCABULARY_FILE.fullmatch(name) is not None


def _vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    return {id_: token for token, id_ in tokenizer.get_vocab().items()}


def _ids(value: int | list[int] | None) -> tuple[int, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
