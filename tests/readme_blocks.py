"""The README's code: blocks with heading and line, shell commands with every optional part and without."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COMMANDS = ("hf-specgen", "make", "pip", "pytest", "python", ".venv/bin/hf-specgen", ".venv/bin/python")
"""What a shell command of the README starts with; also one inside a sentence."""


class Block(NamedTuple):
    language: str
    code: str
    heading: str
    line: int

    def __str__(self) -> str:
        return f"{self.heading}, line {self.line}".replace(" ", "-")


def blocks(text: str) -> list[Block]:
    """In their order. Raises ValueError for one that is not closed."""
    found, heading, start = [], "the beginning", None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if start is None:
                start, language, inside = number, line[3:].strip(), []
            else:
                found.append(Block(language, "\n".join(inside) + "\n", heading, start))
                start = None
        elif start is not None:
            inside.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ")
    if start is not None:
        raise ValueError(f"The block of line {start} is not closed.")
    return found


def shell_commands(text: str) -> list[str]:
    """One a line, comments left out: of bash blocks, and those inside sentences."""
    lines = []
    for block in blocks(text):
        if block.language == "bash":
            lines += block.code.replace("\\\n", " ").splitlines()
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    inline = (" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose))
    lines += [code for code in inline if " " in code and code.split()[0] in COMMANDS]
    return [" ".join(line.split()) for line in (re.sub(r"(^|\s)#.*", "", line) for line in lines) if line.strip()]


def variants(command: str) -> Iterator[list[str]]:
    """Words, for every choice of what stands in brackets or between bars: `a [--b] c|d` is four commands. A bracket
    inside a word, as in `package[extra]`, is none."""
    parts = [[part] if i % 2 == 0 else ["", part] for i, part in enumerate(re.split(r"(?<!\S)\[([^\]]*)\]", command))]
    for chosen in itertools.product(*parts):
        words = shlex.split(" ".join(chosen))
        yield from map(list, itertools.product(*(word.split("|") for word in words)))
