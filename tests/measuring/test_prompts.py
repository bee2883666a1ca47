"""Files of prompts: the three kinds, and what is wrong with one that cannot be read."""

import json

import pytest
from toys import toy_tokenizer

from hf_specgen.measuring.prompts import encode, read_prompts

ASK = [{"role": "user", "content": "ab"}]
ANSWER = {"role": "assistant", "content": "cd"}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        return path

    return write


def test_lines_of_text(file):
    assert read_prompts(file("p.txt", "one\n\n two é\n")) == ["one", " two é"]


def test_json_lines_of_every_form(file):
    entries = [
        {"question_id": 81, "category": "writing", "turns": ["first", "second"]},
        {"prompt": "one"},
        {"prompt": ASK},
        "text",
        {"messages": [*ASK, ANSWER]},
    ]
    path = file("p.jsonl", "\n".join(map(json.dumps, entries)) + "\n\n")
    assert read_prompts(path) == ["first", "one", ASK, "text", ASK]


def test_a_json_list(file):
    assert read_prompts(file("p.json", json.dumps(["one", {"messages": ASK}, ASK]))) == ["one", ASK, ASK]


def test_a_limit_is_spread_over_the_file(file):
    path = file("p.txt", "\n".join(map(str, range(10))))
    assert read_prompts(path, limit=3) == ["0", "3", "6"] and len(read_prompts(path, limit=99)) == 10


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("p.jsonl", '"a"\n{"prompt": \n', "p.jsonl, line 2: not JSON"),
        (
            "p.jsonl",
            '"a"\n\n{"text": "b", "id": 1}',
            "line 3: got an object with 'text', 'id'; expected a string, a list",
        ),
        ("p.jsonl", '{"turns": []}', "line 1: got an object with 'turns'"),
        ("p.jsonl", '{"messages": [1]}', "line 1: got an object with 'messages'"),
        ("p.json", '["a", 3]', "entry 2: got int 3; expected"),
        ("p.json", '["a", ""]', "entry 2: got str ''; .*none of them empty"),
        ("p.json", '{"prompt": "a"}', "must hold a list"),
        ("p.json", "[", "not JSON"),
        ("p.txt", "\n \n", "holds no prompts"),
        ("p.csv", "a", "not .csv"),
    ],
)
def test_what_cannot_be_read_is_named(file, name, content, said):
    with pytest.raises(ValueError, match=said):
        read_prompts(file(name, content))


def test_not_text(tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        read_prompts(tmp_path / "p.txt")


def test_no_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_prompts(tmp_path / "none.txt")


def test_texts_and_messages_are_encoded():
    tokenizer = toy_tokenizer()
    assert encode(tokenizer, "ab")["input_ids"].tolist() == [tokenizer("ab")["input_ids"]]
    with pytest.raises(ValueError, match="no tokens"):
        encode(tokenizer, "")
    with pytest.raises(ValueError, match="no chat template"):
        encode(tokenizer, ASK)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}z{% endif %}"
    )
    wanted = tokenizer("abz")["input_ids"]
    for prompt in ("ab", ASK):
        inputs = encode(tokenizer, prompt)
        assert inputs["input_ids"].tolist() == [wanted] and inputs["attention_mask"].tolist() == [[1] * len(wanted)]


def test_messages_that_the_template_refuses():
    tokenizer = toy_tokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system role') }}"
    with pytest.raises(ValueError, match="chat template refuses these messages: no system role"):
        encode(tokenizer, ASK)
