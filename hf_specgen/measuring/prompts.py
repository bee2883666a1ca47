"""Prompts from a file: lines of text, JSON Lines in Spec-Bench's or a dataset's format, a JSON list."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

Messages = list[dict[str, Any]]
EXPECTED = 'a string, a list of chat messages, or an object with "prompt", "turns" or "messages"'


def read_prompts(path: str | os.PathLike[str], limit: int | None = None) -> list[str | Messages]:
    """The prompts of a file: each a text, or a list of chat messages (`{"role": …, "content": …}`).

    .txt     one per line; empty lines do not count
    .jsonl   one per line: a string, or an object with `prompt`, with `turns` (Spec-Bench; the first one counts) or with
             `messages` (up to the last one that is not the assistant's)
    .json    a list of those

    Args:
        limit: at most so many, spread evenly over the file.

    Raises:
        ValueError: another kind of file, no prompts, or an entry that is none of these: which, and what was expected.
    """
    path = Path(path)
    try:
        content = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}). Pass a .txt, .jsonl or .json file.") from None
    lines = [(f"{path}, line {i}", line) for i, line in enumerate(content.splitlines(), start=1) if line.strip()]
    if path.suffix == ".txt":
        prompts = [line for _, line in lines]
    elif path.suffix == ".jsonl":
        prompts = [_prompt(where, _parsed(where, line)) for where, line in lines]
    elif path.suffix == ".json":
        entries = _parsed(str(path), content)
        if not isinstance(entries, list):
            raise ValueError(f"{path} holds {_kind(entries)}; a .json file must hold a list, each entry {EXPECTED}.")
        prompts = [_prompt(f"{path}, entry {i}", entry) for i, entry in enumerate(entries, start=1)]
    else:
        raise ValueError(f"{path}: prompts are read from .txt, .jsonl or .json files, not {path.suffix or 'this one'}.")
    if not prompts:
        raise ValueError(f"{path} holds no prompts.")
    if limit is None or limit >= len(prompts):
        return prompts
    return [prompts[i * len(prompts) // limit] for i in range(limit)]


def encode(tokenizer: PreTrainedTokenizerBase, prompt: str | Messages) -> BatchEncoding:
    """`input_ids` and `attention_mask`, `[1, length]`. A text is a user's message where there is a chat template.

    Raises:
        ValueError: messages without a chat template, or that it refuses, or nothing to read.
    """
    if tokenizer.chat_template:
        from jinja2 import TemplateError  # torch brings it along

        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        try:
            return tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        except TemplateError as error:
            raise ValueError(f"The tokenizer's chat template refuses these messages: {error}") from None
    if not isinstance(prompt, str):
        raise ValueError(f"The tokenizer has no chat template, and a prompt is a list of messages: {prompt!r:.80}.")
    return encode_text(tokenizer, prompt)


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> BatchEncoding:
    """`input_ids` and `attention_mask`, `[1, length]`, of the text as it is.

    Raises:
        ValueError: nothing to read.
    """
    inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    if not inputs["input_ids"].numel():
        raise ValueError(f"The prompt {text!r:.80} has no tokens.")
    return inputs


def _parsed(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # too long a number, too many brackets
        raise ValueError(f"{where}: not JSON ({error}).") from None


def _prompt(where: str, entry: Any) -> str | Messages:
    if isinstance(entry, dict):
        found = entry.get("prompt")
        if isinstance(turns := entry.get("turns"), list) and turns:
            found = turns[0]
        if isinstance(messages := entry.get("messages"), list):
            found = messages
        got = f"an object with {', '.join(map(repr, entry)) or 'nothing in it'}"
    else:
        found, got = entry, _kind(entry)
    if isinstance(found, str) and found.strip():
        return found
    if isinstance(found, list) and (asked := _asked(found)):
        return asked
    raise ValueError(f"{where}: got {got}; expected {EXPECTED}, none of them empty.")


def _asked(messages: list[Any]) -> Messages:
    """Without the answer at the end, if there is one; nothing if these are no messages."""
    if not all(isinstance(m, dict) and "role" in m and "content" in m for m in messages):
        return []
    last = max((i for i, m in enumerate(messages) if m["role"] != "assistant"), default=-1)
    return messages[: last + 1]


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
