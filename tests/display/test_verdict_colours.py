"""A verdict has one colour: the same one, by name, in a terminal and in a notebook."""

import dataclasses
import io
from typing import get_args

import pytest
import torch
from rich.console import Console

import hf_specgen
from hf_specgen import Certificate, demo
from hf_specgen.cli import check_pair, terminal, verify
from hf_specgen.display import certificate, pair
from hf_specgen.pairing.report import Verdict
from hf_specgen.verifying.certificate import FAULTY, LOSSLESS, ROUNDING
from hf_specgen.verifying.greedy import Counts, Flips, Noise, TextCheck

CODES = {"green": "32", "yellow": "33", "red": "31"}


@pytest.fixture
def screen(monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="standard", highlight=False, soft_wrap=True)
    monkeypatch.setattr(terminal, "console", lambda: screen)
    return screen.file


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_of_a_pair(verdict, screen):
    report = dataclasses.replace(hf_specgen.check_pair(*demo.FOLDERS), verdict=verdict)
    colour = pair.COLOURS[verdict]
    assert f"solid {colour.notebook}" in report._repr_html_()
    check_pair._print(report)
    assert f"\x1b[1;{CODES[colour.terminal]}mverdict  {verdict}\x1b[0m" in screen.getvalue()


@pytest.mark.parametrize(
    ("verdict", "text"), [(LOSSLESS, "same"), (ROUNDING, "tie"), (FAULTY, "fault")], ids=[LOSSLESS, ROUNDING, FAULTY]
)
def test_of_a_certificate(verdict, text, screen):
    made = Certificate(
        [TextCheck(0, "alone", 4, text, why="no")],
        {"alone": Noise(by_way={"2 positions": 1e-6}, leads=[torch.ones(4)])},
        Flips({"alone": Counts(0, 4, 0, 4)}),
        laws=[],
        target={"dtype": "float32"},
        draft={},
        machine={"device": "cpu"},
        settings={"max_new_tokens": 4},
        prompts={"count": 1, "tokens": [4]},
        seconds=1.0,
        date="2026-01-01",
    )
    colour = certificate.COLOURS[verdict]
    assert f"solid {colour.notebook}" in made._repr_html_()
    verify._print(made, as_json=False)
    assert f"\x1b[1;{CODES[colour.terminal]}mverdict   {verdict}\x1b[0m" in screen.getvalue()


def test_a_yes_is_good():
    """Exit code 0, and green."""
    assert {certificate.COLOURS[verdict].terminal for verdict in (LOSSLESS, ROUNDING)} == {"green"}
