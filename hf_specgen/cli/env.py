"""hf-specgen env: versions, devices and back ends, to paste into a bug report."""

from __future__ import annotations

from typing import Any

import typer

from . import options, terminal
from .errors import one_line
from .exit_codes import DONE, NO


@one_line("env")
def command(as_json: options.Json = False) -> None:
    """Print versions, devices and back ends, for bug reports.

    Also where packages are missing or broken: each is imported, and what that gave is said. Nothing that names you or
    your folders is printed.
    """
    from ..environment import environment, usable

    with terminal.spinner("looking"):
        found = environment()
    if as_json:
        terminal.print_json(found)
    else:
        terminal.console().print("\n".join(_lines(found)), markup=False)
    raise typer.Exit(DONE if usable(found) else NO)


def _lines(found: dict[str, Any]) -> list[str]:
    cpu = found["cpu"]
    rows = [(name, found[name] or "not installed") for name in ("hf-specgen", "python", "platform")]
    rows.append(("cpu", f"{cpu['name'] or 'unknown'}, {cpu['cores']} cores{_of_memory(cpu['memory_bytes'])}"))
    rows += _of_torch(found["torch"]) if found["torch"] else []
    rows += [(name, _of_package(**package)) for name, package in found["packages"].items()]
    rows += [(name, value) for name, value in found["variables"].items()]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {value}" for name, value in rows]


def _of_package(version: str | None, error: str | None) -> str:
    if version is None:
        return "-"
    return version if error is None else f"{version}, CANNOT BE IMPORTED: {error}"


def _of_memory(size: int | None) -> str:
    return "" if size is None else f", {size / 1e9:.0f} GB"


def _of_torch(torch: dict[str, Any]) -> list[tuple[str, str]]:
    gpus = [f"{gpu['name']}, {gpu['capability']}{_of_memory(gpu['memory_bytes'])}" for gpu in torch["gpus"]]
    attention = [name for name, here in torch["attention"].items() if here]
    return [
        ("threads", str(torch["threads"])),
        ("cuda", torch["cuda"] or "built without"),
        ("accelerator", torch["accelerator"] or "none"),
        *((f"gpu {index}", gpu) for index, gpu in enumerate(gpus)),
        ("attention", ", ".join(attention)),
    ]
