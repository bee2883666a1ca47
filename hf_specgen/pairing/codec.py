"""What each token adds to a text, as bytes, and how bytes become a tokenizer's ids again.

Two tokenizers spell the same token in their own ways: " the" is "Ġthe" to one and "▁the" to another, "é" may be one
token, two byte tokens `<0xC3><0xA9>`, or halves of them. Bytes are what they have in common. Encoding bytes here adds
nothing in front, strips nothing, and keeps halves of a character: a row's text grows by such pieces.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "▁"  # SentencePiece's mark
FALLBACK = re.compile(r"<0x([0-9A-F]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's one printable character for each byte: printable ones stand for themselves, the rest follow U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_OF = _byte_alphabet()
CHAR_OF = {b: c for c, b in BYTE_OF.items()}


class UnreadableTokenizerError(Exception):
    """A tokenizer that cannot be read here, or not as bytes. The message says why, in one line."""


class Codec:
    """A fast tokenizer, by bytes.

    Args:
        backend: a `tokenizers.Tokenizer`. It is only asked, never changed; truncation and padding set on it, and
            special tokens spelled out in a text, play no part.
    """

    def __init__(self, backend: Tokenizer):
        self.backend = backend
        decoder = state_of(backend.decoder)
        kinds = {part.get("type") for part in _parts(decoder)}
        if "ByteLevel" in kinds:
            self.spelling = "byte-level"
        elif kinds & {"Metaspace", "ByteFallback"} or SPACE in json.dumps(decoder, ensure_ascii=False):
            self.spelling = "sentencepiece"
        elif "WordPiece" in kinds:
            self.spelling = "wordpiece"
        elif not decoder:
            self.spelling = "words"
        else:
            raise UnreadableTokenizerError(f"the decoder {', '.join(sorted(map(str, kinds)))} is not known here")

    @cached_property
    def symbols(self) -> dict[int, str]:
        """Added tokens: they stand in a text as a whole, and are told apart by their content."""
        return {id_: token.content for id_, token in self.backend.get_added_tokens_decoder().items()}

    @cached_property
    def special(self) -> frozenset[int]:
        """Symbols that are no text: turns, ends, padding."""
        return frozenset(i for i, token in self.backend.get_added_tokens_decoder().items() if token.special)

    @cached_property
    def pieces(self) -> dict[int, bytes]:
        """The bytes that each ordinary token adds to a text."""
        vocabulary = self.backend.get_vocab(with_added_tokens=False)
        return {id_: self._bytes(token) for token, id_ in vocabulary.items() if id_ not in self.symbols}

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The token of each piece; of two with the same bytes, the one that is no byte fallback."""
        known: dict[bytes, int] = {}
        for id_, piece in sorted(self.pieces.items()):
            if piece not in known or FALLBACK.fullmatch(self.backend.id_to_token(known[piece]) or ""):
                known[piece] = id_
        return known

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """What the tokenizer puts in front of a text."""
        if self.backend.post_processor is None:
            return ()
        from tokenizers import Tokenizer, models

        text = Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).encode("a")
        framed = self.backend.post_processor.process(text, None, True)
        return tuple(framed.ids[: framed.special_tokens_mask.index(0)])

    def bytes_of(self, id_: int) -> bytes:
        """What a token adds to the text; nothing if it is special or unknown."""
        if id_ in self.symbols:
            return b"" if id_ in self.special else self.symbols[id_].encode()
        return self.pieces.get(id_, b"")

    def encode(self, data: bytes) -> list[int]:
        """The ids of a stretch of text, whole characters as the tokenizer itself would split them.

        Bytes that are no text (a character cut in two) become byte tokens; a tokenizer without any drops them.
        """
        ids: list[int] = []
        for text, rest in _characters(data):
            ids += self._of_text(text)
            ids += self._of_bytes(rest)
        return [id_ for id_ in ids if id_ not in self.special]  # some models find special tokens spelled out

    def _bytes(self, token: str) -> bytes:
        if self.spelling == "byte-level":
            if all(c in BYTE_OF for c in token):
                return bytes(BYTE_OF[c] for c in token)
            return token.encode()
        if self.spelling == "sentencepiece":
            if match := FALLBACK.fullmatch(token):
                return bytes([int(match[1], 16)])
            return token.replace(SPACE, " ").encode()
        if self.spelling == "wordpiece" and token.startswith("##"):
            return token[2:].encode()
        return f" {token}".encode()

    def _of_text(self, text: str) -> list[int]:
        if not text:
            return []
        if self.spelling == "sentencepiece":  # past the normaliser, which would put a space in front of every stretch
            words = [text.replace(" ", SPACE)]
        else:
            normalised = self.backend.normalizer.normalize_str(text) if self.backend.normalizer else text
            pre = self.backend.pre_tokenizer
            words = [word for word, _ in pre.pre_tokenize_str(normalised)] if pre else normalised.split()
            if self.spelling == "byte-level" and not normalised.startswith(" "):  # add_prefix_space puts one there
                words[:1] = [word.removeprefix(CHAR_OF[ord(" ")]) for word in words[:1]]
        return [id_ for word in words for id_ in self._of_word(word)]

    def _of_word(self, word: str) -> list[int]:
        try:
            return [token.id for token in self.backend.model.tokenize(word)]
        except Exception:  # a word it does not know, and no token for those: tokenizers raises nothing narrower
            return [id_ for character in word for id_ in self._of_word(character)] if len(word) > 1 else []

    def _of_bytes(self, data: bytes) -> list[int]:
        if self.spelling == "byte-level":
            halves = "".join(CHAR_OF[b] for b in data)
            return [token.id for token in self.backend.model.tokenize(halves)] if halves else []
        return [self.ids[bytes([b])] for b in data if bytes([b]) in self.ids]


def whole_characters(data: bytes) -> bytes:
    """Bytes without the beginning of a character at their end, which may yet become another."""
    last = next((i for i in range(len(data) - 1, max(-1, len(data) - 4), -1) if data[i] & 0xC0 != 0x80), None)
    if last is None or data[last] < 0xC0:
        return data
    width = 2 + (data[last] >= 0xE0) + (data[last] >= 0xF0)
    return data[:last] if last + width > len(data) else data


def _characters(data: bytes) -> Iterable[tuple[str, bytes]]:
    """Whole characters and the bytes behind them that belong to none, in turn."""
    while data:
        try:
            yield data.decode(), b""
            return
        except UnicodeDecodeError as error:
            yield data[: error.start].decode(), data[error.start : error.end]
            data = data[error.end :]


def state_of(component: Any) -> dict[str, Any]:
    """A part of a tokenizer as tokenizer.json has it.

    Raises:
        UnreadableTokenizerError: it is written in Python.
    """
    try:
        return json.loads(component.__getstate__()) if component is not None else {}
    except Exception as error:  # tokenizers raises nothing narrower
        raise UnreadableTokenizerError(f"a part of it is written in Python ({error})") from None


def _parts(state: Any) -> Iterable[dict[str, Any]]:
    """A component and the components that it is made of."""
    if isinstance(state, dict) and state:
        yield state
        for part in (part for name in ("decoders", "normalizers", "pretokenizers") for part in state.get(name, ())):
            yield from _parts(part)
