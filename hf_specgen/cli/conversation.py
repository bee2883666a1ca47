"""The turns of a chat, as the target reads them: in its tokenizer's template, or as one text where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..measuring.prompts import Messages, encode, encode_text

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase


def opening(tokenizer: PreTrainedTokenizerBase, system: str | None) -> Messages:
    """
    Raises:
        ValueError: a system prompt without a chat template.
    """
    if system is None:
        return []
    if not tokenizer.chat_template:
        raise ValueError("--system needs a chat template, and the target's tokenizer has none.")
    return [{"role": "system", "content": system}]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


class Conversation:
    """What was said so far.

    Raises:
        ValueError: a system prompt without a chat template, or one that the template refuses.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, system: str | None):
        self.tokenizer = tokenizer
        self.opening = opening(tokenizer, system)
        if tokenizer.chat_template:
            encode(tokenizer, [*self.opening, user("?")])
        self.reset()

    def reset(self) -> None:
        self.messages = [*self.opening]

    def ask(self, text: str) -> BatchEncoding:
        """The whole conversation with this question at its end: what the target reads."""
        self.messages.append(user(text))
        if self.tokenizer.chat_template:
            return encode(self.tokenizer, self.messages)
        return encode_text(self.tokenizer, "".join(message["content"] for message in self.messages))

    def answered(self, text: str) -> None:
        """The answer as far as it came; without any, the question is taken back."""
        if text:
            self.messages.append({"role": "assistant", "content": text})
        else:
            self.messages.pop()
