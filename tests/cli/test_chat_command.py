"""hf-specgen chat: turns with both caches kept, its own commands, and what Ctrl-C stops."""

import io
import json
import sys

import pytest
import torch
from bench_toys import save_pair
from jinja2 import TemplateError
from test_generate_command import TEMPLATE, expected
from toys import noisy, tiny, toy_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, Lfm2Config
from typer.testing import CliRunner

from hf_specgen import SpecNumericsError
from hf_specgen.cli import app, chat
from hf_specgen.cli.streaming import Stream
from hf_specgen.cli.writer import Writer


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    root = save_pair(tmp_path_factory.mktemp("chat"))
    AutoModelForCausalLM.from_pretrained(root / "target").save_pretrained(root / "chatty")
    tokenizer = AutoTokenizer.from_pretrained(root / "target")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(root / "chatty")
    return root


@pytest.fixture(scope="module")
def stateful(tmp_path_factory):
    """A pair whose layers keep states, which cannot go back."""
    root = tmp_path_factory.mktemp("stateful")
    sizes = {"layer_types": ["conv", "full_attention", "conv"], "block_multiple_of": 8, "tie_word_embeddings": False}
    target = tiny(Lfm2Config, eos_token_id=None, **sizes)
    for name, model in (("target", target), ("draft", noisy(target))):
        model.save_pretrained(root / name)
        toy_tokenizer().save_pretrained(root / name)
    return root


def run(target, *arguments, said):
    options = "--max-new-tokens", 8, *arguments
    return CliRunner().invoke(app, ["chat", str(target), *map(str, options)], input=said)


def answers(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


def failing_first(monkeypatch, error, after=0):
    """The first answer ends with this error, after so many tokens."""
    put, left = Stream.put_token, [after]

    def failing(self, row, token, source):
        left[0] -= 1
        if left[0] == -1:
            raise error
        put(self, row, token, source)

    monkeypatch.setattr(Stream, "put_token", failing)


def test_each_turn_reads_the_whole_conversation_and_the_caches_only_what_is_new(pair, monkeypatch):
    sessions = []
    answer = Writer.answer

    def noted(self, inputs, write, session):
        sessions.append(session)
        return answer(self, inputs, write, session)

    monkeypatch.setattr(Writer, "answer", noted)
    result = run(pair / "chatty", pair / "draft", "-k", 3, "--json", "--system", "a", said="the cab\nsing\n")
    first, second = answers(result)
    assert result.exit_code == 0 and result.stderr == ""
    begun = "s a u the cab "
    assert first["text"] == expected(pair / "target", begun, 8)[0]
    assert second["text"] == expected(pair / "target", f"{begun}a {first['text']} u sing ", 8)[0]
    assert sessions[0] is sessions[1] and {*sessions[0]._kept} == {"target", "draft"}


def test_without_a_template_the_text_goes_on(pair):
    first, second = answers(run(pair / "target", "--json", said="the cab\n sing\n"))
    assert second["text"] == expected(pair / "target", f"the cab{first['text']} sing", 8)[0]


def test_text_is_on_stdout_and_figures_are_on_stderr(pair):
    result = run(pair / "target", "--stats", said="the cab\n\n/stats\n/exit\nnever read\n")
    assert result.exit_code == 0 and result.stdout == expected(pair / "target", "the cab", 8)[0] + "\n"
    assert result.stderr.startswith("8 tokens in ")
    assert result.stderr.count("tokens per forward") == 2, "of /stats, and of --stats at the end"


def test_reset_forgets_what_was_said_but_not_the_system_prompt(pair):
    result = run(pair / "chatty", "--json", "--system", "a", said="the cab\n/reset\nsing\n")
    assert answers(result)[1]["text"] == expected(pair / "target", "s a u sing ", 8)[0]


def test_an_unknown_command_is_explained(pair):
    result = run(pair / "target", said="/quit\n")
    assert result.exit_code == 0 and result.stdout == "" and result.stderr.startswith("/exit: leave; /reset")


def test_ctrl_c_stops_the_answer_and_not_the_chat(pair, monkeypatch):
    failing_first(monkeypatch, KeyboardInterrupt(), after=5)
    result = run(pair / "target", said="the cab\n sing\n")
    begun = expected(pair / "target", "the cab", 5)[0]
    second = expected(pair / "target", f"the cab{begun} sing", 8)[0]
    assert result.exit_code == 0 and result.stdout == f"{begun}\n{second}\n"
    assert result.stderr.startswith("chat: stopped\n8 tokens in ")


def test_ctrl_c_before_the_first_token_takes_the_question_back(pair, monkeypatch):
    failing_first(monkeypatch, KeyboardInterrupt())
    result = run(pair / "chatty", said="the cab\nsing\n")
    assert result.stdout == expected(pair / "target", "u sing ", 8)[0] + "\n"


def test_ctrl_c_where_no_answer_is_given_leaves(pair, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_specgen.cli.chat._next_line", interrupted)
    result = run(pair / "target", said="")
    assert result.exit_code == 130 and result.stderr == "chat: interrupted\n"


def test_a_full_context_does_not_end_the_chat(pair):
    result = run(pair / "target", said=f"{'a' * 600}\nthe cab\n")
    assert result.exit_code == 0 and result.stdout == expected(pair / "target", "the cab", 8)[0] + "\n"
    assert result.stderr.startswith(
        "chat: The text of 600 tokens fills the target's 512 positions. (/reset begins anew)"
    )


def test_a_system_prompt_needs_a_template(pair, monkeypatch):
    monkeypatch.setattr("hf_specgen.cli.writer.load", None)
    result = run(pair / "target", "--system", "a", said="b\n")
    assert result.exit_code == 2 and result.stderr.startswith("chat: --system needs a chat template")


def test_a_target_whose_states_cannot_go_back_is_speculated_on_without_a_session(stateful):
    result = run(stateful / "target", stateful / "draft", "-k", 3, "--json", said="the cab\n sing\n/reset\nthe\n")
    first, second, third = answers(result)
    assert result.exit_code == 0 and result.stderr == ""
    for answer, read in ((first, "the cab"), (second, f"the cab{first['text']} sing"), (third, "the")):
        assert (answer["text"], answer["ids"]) == expected(stateful / "target", read, 8)
        assert answer["stats"]["drafted"] > 0 and answer["stats"]["fallback_reason"] is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("9 GiB are not there"), "9 GiB are not there"),
        (SpecNumericsError("NaN in row 0"), "NaN in row 0"),
        (TemplateError("no"), "TemplateError: no (HF_SPECGEN_TRACEBACK=1 shows where)"),
        (ValueError("of\ntwo lines"), "of two lines"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_turn_that_fails_does_not_end_the_chat(pair, monkeypatch, error, said):
    failing_first(monkeypatch, error)
    result = run(pair / "chatty", said="the cab\nsing\n")
    assert result.exit_code == 0 and result.stdout == expected(pair / "target", "u sing ", 8)[0] + "\n"
    assert result.stderr.startswith(f"chat: {said}\n8 tokens in ")


def test_output_that_nobody_reads_ends_the_chat(pair, monkeypatch):
    failing_first(monkeypatch, BrokenPipeError(32, "Broken pipe"))
    result = run(pair / "chatty", said="the cab\nsing\n")
    assert result.exit_code == 141 and result.output == ""


def test_json_says_of_each_turn_why_there_is_no_more_of_it(pair, monkeypatch):
    failing_first(monkeypatch, KeyboardInterrupt(), after=5)
    result = run(pair / "target", "--json", said=f"the cab\n{'a' * 600}\n sing\n")
    stopped, full, answered = answers(result)
    begun = expected(pair / "target", "the cab", 5)[0]
    assert stopped == {"text": begun, "stopped": "stopped"}
    assert full["text"] == "" and full["stopped"].endswith("fills the target's 512 positions. (/reset begins anew)")
    assert "stopped" not in answered and answered["text"] and result.exit_code == 0
    assert result.stderr == f"chat: stopped\nchat: {full['stopped']}\n"


def test_a_line_that_is_not_utf_8_is_a_turn_that_fails(pair):
    result = run(pair / "target", "--json", said=b"the \xff\nthe caf\xc3\xa9\r\n")
    refused, answered = answers(result)
    assert refused["stopped"].startswith("The line is not UTF-8 text ('utf-8' codec can't decode byte 0xff")
    assert result.exit_code == 0 and answered["text"] == expected(pair / "target", "the café", 8)[0]


def test_a_chat_in_which_nothing_was_answered_has_failed(pair, monkeypatch):
    assert run(pair / "target", said=f"{'a' * 600}\n").exit_code == 2
    failing_first(monkeypatch, KeyboardInterrupt())
    assert run(pair / "target", said="the cab\n").exit_code == 0, "stopped by whoever asked"
    assert run(pair / "target", said="").exit_code == 0


def test_a_template_that_refuses_the_system_prompt_says_so_before_anything_is_loaded(pair, monkeypatch, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    refuse = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
    tokenizer.chat_template = refuse + TEMPLATE
    for file in (pair / "target").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tokenizer.save_pretrained(tmp_path)
    monkeypatch.setattr("hf_specgen.cli.writer.load", None)
    result = run(tmp_path, "--system", "a", said="b\n")
    assert result.exit_code == 2 and result.stdout == ""
    assert result.stderr == "chat: The tokenizer's chat template refuses these messages: No system role\n"


@pytest.mark.parametrize("ends", [False, True], ids=["a line", "its end"])
def test_what_is_typed_is_asked_for_on_stderr_where_stdout_is_read_by_something_else(monkeypatch, capsys, ends):
    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(io.BytesIO(b"" if ends else b"the cab\n")))
    assert chat._next_line() == (None if ends else "the cab")
    assert capsys.readouterr() == ("", "> \n" if ends else "> ")
