"""Bars and spinners: what is printed meanwhile, and what they are told."""

import io

import pytest
from rich.console import Console

from hf_specgen.cli import terminal


def terminal_console(**_) -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80)


SHOWN = {
    "bar": lambda: terminal.bar(terminal.console(stderr=True)),
    "spinner": lambda: terminal.spinner("loading"),
}


@pytest.mark.parametrize("shown", SHOWN)
def test_what_packages_print_meanwhile_goes_to_stderr(shown, capsys):
    with SHOWN[shown]():
        print("a banner")
    print("the answer")
    assert capsys.readouterr() == ("the answer\n", "a banner\n")


@pytest.mark.parametrize("shown", SHOWN)
def test_on_a_terminal_too(shown, capsys, monkeypatch):
    on = terminal_console()
    monkeypatch.setattr(terminal, "console", lambda **_: on)
    with SHOWN[shown]():
        print("a banner")
    print("the answer")
    assert capsys.readouterr().out == "the answer\n" and "a banner" in on.file.getvalue()


def test_a_task_whose_name_looks_like_markup(monkeypatch):
    on = terminal_console()
    with terminal.bar(on) as listen:
        listen("[/x]", 1, 2)
    assert "[/x]" in on.file.getvalue()
    on = terminal_console()
    monkeypatch.setattr(terminal, "console", lambda **_: on)
    with terminal.spinner("[/x]"):
        pass
    assert "[/x]" in on.file.getvalue()
