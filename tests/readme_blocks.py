"""The code of the README and of docs/: blocks with file and line, shell commands with every optional part and without;
links."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COMMANDS = ("hf-specgen", "make", "pip", "pytest", "python", ".venv/bin/hf-specgen", ".venv/bin/python")
"""What a shell command starts with; also one inside a sentence."""


class Block(NamedTuple):
    language: str
    code: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}-line-{self.line}"


def blocks(text: str, file: str = "") -> list[Block]:
    """In their order. Raises ValueError for one that is not closed."""
    found, start = [], None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("```"):
            if start is None:
                start, language, inside = number, line[3:].strip(), []
            else:
                found.append(Block(language, "\n".join(inside) + "\n", file, start))
                start = None
        elif start is not None:
            inside.append(line)
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


def links(text: str) -> list[str]:
    """What it points to inside the repository: files, pictures and "#heading"."""
    return [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]


def anchors(text: str) -> set[str]:
    """Of its headings, as the Hub and code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.S | re.M), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
