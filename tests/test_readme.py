"""Every code block of README.md and docs/: Python runs, on the embedded pair in place of the Hub's models; commands are
parsed by the real command line, the cheap ones run. Links lead somewhere."""

import re
from pathlib import Path

import pytest
import torch
import typer
from readme_blocks import ROOT, Block, anchors, blocks, links, shell_commands, variants
from typer.testing import CliRunner

import hf_specgen
from hf_specgen import demo
from hf_specgen.cli import app

PAGES = {path: path.read_text(encoding="utf-8") for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
BLOCKS = [block for path, text in PAGES.items() for block in blocks(text, path.name)]
CODE = [block for block in BLOCKS if block.language in ("python", "diff")]
SHELL = [command for text in PAGES.values() for command in shell_commands(text)]
CHEAP = [line for line in SHELL if line.split()[1] in ("check-pair", "cost", "plan", "recommend")]
"""Subcommands that take a second: they are run, without their optional parts. The others load models, and are run by
tests/cli."""

STAND_INS = {
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": demo.PAIR / "target",
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": demo.PAIR / "draft",
    "examples/custom_generate": ROOT / "examples" / "custom_generate",
}
CHAT = "{% for message in messages %}{{ message.content }}\n{% endfor %}"


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def names():
    """What the README's snippets take for granted."""
    import transformers

    target, draft, tokenizer = demo.load()
    tokenizer.chat_template = CHAT
    turns = [{"role": "user", "content": "class Reader:"}], [{"role": "user", "content": "class Reader:\n    def "}]
    more = {name: getattr(transformers, name) for name in ("TextIteratorStreamer", "pipeline")}
    inputs = tokenizer("def fibonacci(n):", return_tensors="pt")
    known = {"target": target, "draft": draft, "tokenizer": tokenizer, "inputs": inputs, "conversation": turns}
    yield known | {"hf_specgen": hf_specgen, "torch": torch} | more
    hf_specgen.disable()


def small(code: str) -> str:
    """On small folders, and a few tokens only."""
    for name, folder in STAND_INS.items():
        code = code.replace(f'"{name}"', repr(str(folder)))
    return re.sub(r"max_new_tokens=\d+", "max_new_tokens=12", code)


def run(code: str, names: dict) -> dict:
    exec(compile(small(code), "README.md", "exec"), names)
    return names


# ---- Python -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("block", [b for b in CODE if b.language == "python"], ids=str)
def test_a_python_block_runs(block: Block, names, capsys):
    hf_specgen.enable(names["target"])
    run(block.code, names)


@pytest.mark.parametrize("block", [b for b in CODE if b.language == "diff"], ids=str)
def test_a_diff_changes_the_speed_and_not_the_ids(block: Block, names):
    lines = block.code.splitlines()
    old, new = ("".join(f"{line[2:]}\n" for line in lines if line[:1] in (sign, " ", "")) for sign in "-+")
    before, after = run(old, dict(names)), run(new, dict(names))
    assert torch.equal(before["out"], after["out"]) and "assistant_model" in new


def test_only_drawings_and_output_are_left_out():
    assert {block.language for block in BLOCKS} <= {"python", "diff", "bash", "mermaid", ""}
    for block in BLOCKS:
        if block.language in ("", "mermaid"):  # drawings and output
            assert not re.search(r"^(import |from \w+ import |hf-specgen |make |pip )", block.code, re.M), str(block)
    assert len(CODE) > 3 and len(SHELL) > 5


# ---- the shell ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", dict.fromkeys(line for line in SHELL if "hf-specgen" in line.split()[0]))
def test_a_command_is_one_that_there_is(command):
    """Its options and their values, as the command line itself parses them."""
    root = typer.main.get_command(app)
    for words in variants(command):
        _, name, *arguments = words
        if name in ("--help", "--version"):
            continue
        found = root.get_command(None, name)
        assert found is not None, f"there is no hf-specgen {name}: {command}"
        if arguments:  # without, a sentence only names it
            found.make_context(name, arguments)


@pytest.mark.parametrize("command", dict.fromkeys(line for line in CHEAP if len(line.split()) > 2))
def test_a_cheap_command_runs(command):
    words = min(variants(command), key=len)[1:]
    family = "Qwen/Qwen2.5-Coder-1.5B-Instruct" if words[0] == "recommend" and "--among" not in words else None
    small = {"TARGET": family or demo.PAIR / "target", "DRAFT": demo.PAIR / "draft", "FOLDERS": demo.PAIR}
    small["FOLDER"] = ROOT / "model_cards" / "embedded-pair" / "bench"
    result = CliRunner().invoke(app, [str(small.get(word, word)) for word in words])
    assert result.exit_code == 0, f"{command}\n{result.output}"


@pytest.mark.parametrize("command", dict.fromkeys(line for line in SHELL if "hf-specgen" not in line.split()[0]))
def test_what_other_commands_name_is_there(command):
    for program, *words in variants(command):
        check = {"make": a_make_target, "pip": an_installation}.get(program, a_script)
        check(program, words)


def a_make_target(_, words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert words and all(re.search(rf"^{word}:", makefile, re.M) for word in words if "=" not in word), words


def an_installation(_, words: list[str]) -> None:
    assert words[0] == "install"
    extras = [extra for word in words for extra in re.findall(r"\[(.*?)\]", word)]
    declared = (ROOT / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    assert all(re.search(rf"^{name} = ", declared, re.M) for extra in extras for name in extra.split(",")), words


def a_script(program: str, words: list[str]) -> None:
    """The file is there and has these options; of a module, the file is there."""
    if words[0] == "-m":
        path = ROOT / Path(*words[1].split("."))
        assert path.is_dir() or path.with_suffix(".py").is_file(), words
        return
    paths = [ROOT / word.split("::")[0] for word in words if word.endswith(".py") or ("/" in word and word[0] != "-")]
    assert program.endswith(("python", "pytest")) and paths and paths[0].exists(), f"{program} {words}"
    if paths[0].suffix == ".py" and program.endswith("python"):
        code = paths[0].read_text() + "".join(p.read_text() for p in paths[0].parent.glob("common.py"))
        options = [word for word in words if word.startswith("--")]
        assert all(f'"{option}"' in code for option in options), f"{paths[0].name} lacks one of {options}"


# ---- links --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_link_leads_somewhere(page):
    for link in links(PAGES[page]):
        path, _, anchor = link.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), link


def test_the_drafter_in_the_readme_is_the_examples():
    (shown,) = [block.code for block in BLOCKS if "class Echo" in block.code]
    example = (ROOT / "examples" / "by_feature" / "custom_drafter.py").read_text(encoding="utf-8")
    assert shown.split("class Echo")[1].split("\n\n\n")[0] in example
