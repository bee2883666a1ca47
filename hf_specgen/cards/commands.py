"""Commands that made a figure, without the folders of the machine that they ran on."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from pathlib import PurePath


def shown(command: str) -> str:
    """A command with no absolute path in it."""
    return shlex.join(map(elsewhere, shlex.split(command)))


def elsewhere(word: str) -> str:
    """A path as it can be written for others: relative, or its last name."""
    return PurePath(word).name if os.path.isabs(os.path.expanduser(word)) else word


def block(commands: Iterable[str]) -> str:
    """Markdown; empty without commands."""
    lines = [shown(command) for command in commands]
    return "\n".join(["```bash", *lines, "```"]) if lines else ""
