"""Tokens as bytes, and bytes as tokens."""

import pytest
from pairing_toys import make_model, make_tokenizer
from text_toys import OTHER, TEXT, byte_level, sentencepiece
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from hf_specgen.pairing import check_pair
from hf_specgen.pairing.codec import Codec, UnreadableTokenizerError, whole_characters

SMILE = "😀".encode()
TEXTS = ["x", " x", "  two  spaces ", "\n\n\tdef f():\n", "naïve Straße", "😀😀", "日本語 текст", TEXT, OTHER]


@pytest.fixture(scope="module", params=["byte-level", "sentencepiece"])
def codec(request):
    return Codec(byte_level(340) if request.param == "byte-level" else sentencepiece(150))


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(codec, text):
    ids = codec.encode(text.encode())
    assert b"".join(map(codec.bytes_of, ids)) == text.encode()
    if len(text) >= 20:  # in tokens, not in single bytes
        assert len(ids) < len(text.encode())


def test_ids_are_the_tokenizers_own():
    ours = Codec(byte_level(340))
    for text in TEXTS:
        assert ours.encode(text.encode()) == ours.backend.encode(text, add_special_tokens=False).ids
    ours = Codec(sentencepiece(150))
    for text in TEXTS:  # which puts a space in front of every text: that is not ours to add
        assert ours.encode(f" {text}".encode()) == ours.backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_halves_of_a_character_are_kept(codec, cut):
    ids = codec.encode(b"ab" + SMILE[:cut]) + codec.encode(SMILE[cut:] + b"c")
    assert b"".join(map(codec.bytes_of, ids)) == b"ab" + SMILE + b"c"


def test_two_spellings_agree_on_what_a_token_is():
    ours, theirs = Codec(byte_level(340)), Codec(sentencepiece(150))
    shared = ours.ids.keys() & theirs.ids.keys()
    assert {b"e", b" ", "é".encode(), SMILE[:1]} <= shared and len(shared) > 40
    for piece in shared:
        assert ours.bytes_of(ours.ids[piece]) == theirs.bytes_of(theirs.ids[piece]) == piece


def test_of_two_tokens_with_the_same_bytes_the_fallback_gives_way():
    codec = Codec(sentencepiece(150))
    assert codec.backend.id_to_token(codec.ids[b"e"]) == "e"
    assert codec.backend.id_to_token(codec.ids[b"\xf0"]) == "<0xF0>"


def test_special_tokens_are_no_text_and_are_never_split_off_a_text():
    codec = Codec(byte_level(340))
    end = codec.backend.token_to_id("<end>")
    assert codec.bytes_of(end) == b"" and codec.symbols == {end: "<end>"}
    ids = codec.encode(b"a<end>b")
    assert end not in ids and b"".join(map(codec.bytes_of, ids)) == b"a<end>b"


def test_what_a_tokenizer_puts_in_front():
    assert Codec(byte_level(300)).prefix == ()
    codec = Codec(sentencepiece(150))
    assert codec.prefix == (codec.backend.token_to_id("<s>"),)


def test_truncation_and_padding_set_on_the_tokenizer_play_no_part():
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=sentencepiece(150), pad_token="</s>", padding_side="left")
    tokenizer("a", truncation=True, max_length=1, padding="max_length")
    codec = Codec(tokenizer.backend_tokenizer)
    assert b"".join(map(codec.bytes_of, codec.encode(TEXT.encode()))) == TEXT.encode()
    assert codec.prefix == (codec.backend.token_to_id("<s>"),)


def test_words_and_wordpieces():
    codec = Codec(make_tokenizer().backend_tokenizer)
    assert codec.bytes_of(5) == b" w5" and codec.encode(b" w5 w7") == [5, 7]
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    codec = Codec(pieces)
    assert [codec.bytes_of(i) for i in (1, 2)] == [b" play", b"ing"] and codec.encode(b" playing") == [1, 2]


def test_a_spelling_that_is_not_known_is_told():
    odd = Tokenizer(models.BPE())
    odd.decoder = decoders.CTC()
    with pytest.raises(UnreadableTokenizerError, match="CTC"):
        Codec(odd)


@pytest.mark.parametrize(
    ("data", "whole"),
    [(b"", b""), (b"ab", b"ab"), (b"a" + SMILE, b"a" + SMILE), *((b"a" + SMILE[:n], b"a") for n in (1, 2, 3))],
)
def test_half_a_character_at_the_end_waits(data, whole):
    assert whole_characters(data) == whole


def test_bytes_that_begin_no_character_do_not_wait():
    assert whole_characters(b"a\x98\x80") == b"a\x98\x80"


@pytest.mark.parametrize("unknown", ["unigram", "word-level", "byte pairs"])
def test_words_that_a_tokenizer_cannot_say_are_left_out(unknown):
    if unknown == "unigram":
        backend = Tokenizer(models.Unigram([("a", -1.0), ("▁a", -1.5), ("▁", -2.0)], None, False))
        backend.decoder = decoders.Metaspace()
    elif unknown == "word-level":
        backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="[UNK]"))
        backend.add_special_tokens(["[UNK]"])
    else:
        backend = Tokenizer(models.BPE({"a": 0}, [], unk_token="<unk>"))
        backend.decoder = decoders.ByteLevel()
    codec = Codec(backend)
    assert b"".join(map(codec.bytes_of, codec.encode(b"a z"))).strip() == b"a" and codec.prefix == ()


def test_a_space_that_a_tokenizer_puts_in_front_is_taken_away():
    spaced = byte_level(330)
    spaced.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    codec = Codec(spaced)
    for text in ("erge(", " merge", "x y"):
        assert b"".join(map(codec.bytes_of, codec.encode(text.encode()))) == text.encode()


def test_special_tokens_spelled_out_stay_out():
    backend = Tokenizer(models.Unigram([("<unk>", 0.0), ("</s>", 0.0), ("▁a", -1.0), ("b", -1.0)], 0, False))
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    assert 1 not in Codec(backend).encode(b" a</s>b")


def test_parts_written_in_python_are_told():
    class Nothing:
        def pre_tokenize(self, text):
            pass

    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(Nothing())
    model = make_model()
    assert check_pair(model, model, tokenizer=tokenizer, assistant_tokenizer=tokenizer).verdict == "exact"
