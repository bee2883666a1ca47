"""Text piece by piece: put together, the pieces are the text, whatever the tokens hold."""

import pytest
from toys import toy_tokenizer

from hf_specgen.decoding.pieces import HALF, Pieces, pieces_of
from hf_specgen.demo import load


@pytest.fixture(scope="module")
def tokenizer():
    return load()[2]


@pytest.mark.parametrize("text", ["def f(x):\n    return '�'", "naïve 🙂 — 日本語\n\n\tend ", "a" * 50, " leading"])
def test_pieces_are_the_text(tokenizer, text):
    ids = tokenizer(text)["input_ids"]
    for cut in (0, 1, len(ids) // 2):
        pieces = pieces_of(tokenizer, ids[cut:], ids[:cut])
        assert len(pieces) == len(ids) - cut
        assert tokenizer.decode(ids[:cut]) + "".join(pieces) == text or HALF in tokenizer.decode(ids[:cut])


def test_a_character_comes_with_the_last_of_its_tokens():
    tokenizer = toy_tokenizer()
    first, second, after = tokenizer.convert_tokens_to_ids(["Ã", "©", "a"])
    pieces = Pieces(tokenizer)
    assert [pieces.add(first), pieces.add(second), pieces.add(after)] == ["", "é", "a"] and pieces.rest() == ""


def test_half_a_character_at_the_end_is_not_lost():
    tokenizer = toy_tokenizer()
    a, half = tokenizer.convert_tokens_to_ids(["a", "Ã"])
    assert pieces_of(tokenizer, [a, half]) == ["a", HALF]


def test_special_tokens_are_not_text():
    tokenizer = toy_tokenizer()
    a, eos = tokenizer.convert_tokens_to_ids(["a", "<eos>"])
    assert pieces_of(tokenizer, [a, eos]) == ["a", ""] and pieces_of(tokenizer, []) == []
