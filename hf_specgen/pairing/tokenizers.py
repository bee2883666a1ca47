"""Where the meaning of a side's token ids comes from: a tokenizer object, or the tokenizer files beside a checkpoint.

A source is a small hashable value that changes when the thing behind it changes, so that a verdict can be kept under
it; it is read only when needed. No code from a checkpoint is run, nothing is written.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoints.config import read_json
from .codec import Codec, UnreadableTokenizerError, state_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Vocabulary = dict[int, str]
ROLES = ("bos", "eos", "pad", "unk")
SAMPLED_IDS = 32

# Files that hold a vocabulary. A folder without any has no tokenizer, whatever AutoTokenizer would build for it: from a
# bare config.json transformers 5 makes an empty one without a word.
VOCABULARY_FILE = re.compile(r"(tokenizer|tekken|vocab)\.json|vocab\.txt|.+\.(model|spm|tiktoken)")
# Files that add tokens to it, or the chat template.
EXTRA_FILES = frozenset(
    ["tokenizer_config.json", "added_tokens.json", "special_tokens_map.json", "chat_template.jinja"]
)


@dataclass(frozen=True)
class TokenizerFacts:
    """What a tokenizer says.

    Attributes:
        vocabulary: id -> string.
        roles: ids of "bos", "eos", "pad", "unk", as far as they are set.
        normaliser, pre_tokeniser: as in tokenizer.json; empty for none, None if the tokenizer has no such parts.
        chat_template: its text, or None.
        codec: makes the tokenizer by bytes, or raises UnreadableTokenizerError.
    """

    vocabulary: Vocabulary
    roles: dict[str, int]
    normaliser: dict[str, Any] | None
    pre_tokeniser: dict[str, Any] | None
    chat_template: str | None
    codec: Callable[[], Codec]


@dataclass(frozen=True)
class TokenizerSource:
    """A tokenizer object, by weak reference: an id() may come back for another tokenizer, a dead reference never does.

    An added token changes `size`; should the model inside be replaced, `sample` changes.
    """

    tokenizer: weakref.ref[PreTrainedTokenizerBase]
    size: int
    sample: tuple[str | None, ...]
    roles: tuple[int | None, ...]
    chat_template: str | None

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenizerSource:
        if not hasattr(tokenizer, "get_vocab"):
            raise TypeError(f"Pass a transformers tokenizer, not {tokenizer!r}.")
        backend = getattr(tokenizer, "backend_tokenizer", None)
        told = tuple(_roles_of(tokenizer).values()), getattr(tokenizer, "chat_template", None)
        if backend is None:  # slow tokenizers know their length, and may raise on ids they do not know
            return cls(weakref.ref(tokenizer), len(tokenizer), (), *told)
        size = _fast_size(tokenizer, backend)
        step = max(1, size // SAMPLED_IDS)
        return cls(weakref.ref(tokenizer), size, tuple(map(backend.id_to_token, range(0, size, step))), *told)

    def read(self) -> TokenizerFacts:
        tokenizer = self.tokenizer()
        assert tokenizer is not None  # the caller of check_pair holds it
        return _facts_of(tokenizer)


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

    def read(self) -> TokenizerFacts:
        names = {name for name, *_ in self.files}
        try:
            facts = self._from_json(names) if "tokenizer.json" in names else self._from_transformers()
        except Exception as error:  # a broken file, a missing package, a class that needs remote code: "cannot tell"
            cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UnreadableTokenizerError(f"the tokenizer in {self.folder} could not be read ({cause})") from error
        if not facts.vocabulary:
            raise UnreadableTokenizerError(f"the tokenizer in {self.folder} is empty")
        for id_, token in facts.vocabulary.items():
            if type(id_) is not int or id_ < 0 or not isinstance(token, str):
                raise UnreadableTokenizerError(f"the tokenizer in {self.folder} gives {token!r} the id {id_!r}")
        return facts

    def _from_json(self, names: set[str]) -> TokenizerFacts:
        """The ids AutoTokenizer would give, in 0.2 s instead of 2 s and the import of transformers."""
        content = read_json(Path(self.folder, "tokenizer.json"))
        config = self._optional("tokenizer_config.json", names)
        pieces = content["model"]["vocab"]
        if isinstance(pieces, dict):
            vocabulary = {id_: token for token, id_ in pieces.items()}
        else:  # Unigram: a list of [token, score]
            vocabulary = {id_: piece[0] for id_, piece in enumerate(pieces)}
        vocabulary.update((added["id"], added["content"]) for added in content.get("added_tokens") or ())
        for token, id_ in self._optional("added_tokens.json", names).items():
            vocabulary.setdefault(id_, token)
        for id_, added in (config.get("added_tokens_decoder") or {}).items():
            vocabulary.setdefault(int(id_), added["content"])
        named = self._optional("special_tokens_map.json", names) | config
        at = {token: id_ for id_, token in vocabulary.items()}
        found = {role: _content(named.get(f"{role}_token")) for role in ROLES}
        template = Path(self.folder, "chat_template.jinja")
        return TokenizerFacts(
            vocabulary,
            {role: at[token] for role, token in found.items() if token in at},
            content.get("normalizer") or {},
            content.get("pre_tokenizer") or {},
            template.read_text(encoding="utf-8") if template.name in names else config.get("chat_template"),
            self._codec,
        )

    def _optional(self, name: str, names: set[str]) -> dict[str, Any]:
        return read_json(Path(self.folder, name)) if name in names else {}

    def _codec(self) -> Codec:
        from tokenizers import Tokenizer

        try:
            backend = Tokenizer.from_file(str(Path(self.folder, "tokenizer.json")))
        except (KeyboardInterrupt, SystemExit):
            raise
        except (
            BaseException
        ) as error:  # tokenizers raises nothing narrower than Exception, and panics are not even that
            raise UnreadableTokenizerError(f"{self.folder}/tokenizer.json could not be loaded ({error})") from error
        return Codec(backend)

    def _from_transformers(self) -> TokenizerFacts:
        from transformers import AutoTokenizer

        # trust_remote_code=False: if left open, transformers stops and asks at the terminal.
        return _facts_of(AutoTokenizer.from_pretrained(self.folder, local_files_only=True, trust_remote_code=False))


def _facts_of(tokenizer: PreTrainedTokenizerBase) -> TokenizerFacts:
    backend = getattr(tokenizer, "backend_tokenizer", None)

    def codec() -> Codec:
        if backend is None:
            raise UnreadableTokenizerError(
                f"{type(tokenizer).__name__} is no fast tokenizer (save it with a tokenizer.json: "
                "AutoTokenizer.from_pretrained(…).save_pretrained(…))"
            )
        return Codec(backend)

    return TokenizerFacts(
        {id_: token for token, id_ in tokenizer.get_vocab().items()},
        {role: id_ for role, id_ in _roles_of(tokenizer).items() if id_ is not None},
        None if backend is None else _told(backend.normalizer),
        None if backend is None else _told(backend.pre_tokenizer),
        getattr(tokenizer, "chat_template", None),
        codec,
    )


def _roles_of(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    return {role: getattr(tokenizer, f"{role}_token_id", None) for role in ROLES}


def _told(component: Any) -> dict[str, Any] | None:
    try:
        return state_of(component)
    except UnreadableTokenizerError:
        return None


def _content(token: str | dict[str, Any] | None) -> str | None:
    return token.get("content") if isinstance(token, dict) else token


def _is_tokenizer_file(name: str) -> bool:
    return name in EXTRA_FILES or VOCABULARY_FILE.fullmatch(name) is not None
