"""hf-specgen chat: turns with both caches kept, its own commands, and what Ctrl-C stops."""

import json

import pytest
from bench_toys import save_pair
from test_generate_command import TEMPLATE, expected
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from hf_specgen.cli import app
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


def run(target, *arguments, said):
    options = "--max-new-tokens", 8, *arguments
    return CliRunner().invoke(app, ["chat", str(target), *map(str, options)], input=said)


def answers(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


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
    put, left = Stream.put_token, [5]

    def interrupted(self, row, token, source):
        left[0] -= 1
        if left[0] == -1:
            raise KeyboardInterrupt
        put(self, row, token, source)

    monkeypatch.setattr(Stream, "put_token", interrupted)
    result = run(pair / "target", said="the cab\n sing\n")
    begun = expected(pair / "target", "the cab", 5)[0]
    second = expected(pair / "target", f"the cab{begun} sing", 8)[0]
    assert result.exit_code == 0 and result.stdout == f"{begun}\n{second}\n"
    assert result.stderr.startswith("chat: stopped\n8 tokens in ")


def test_ctrl_c_before_the_first_token_takes_the_question_back(pair, monkeypatch):
    answer, calls = Writer.answer, []

    def interrupted(self, *arguments):
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return answer(self, *arguments)

    monkeypatch.setattr(Writer, "answer", interrupted)
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
