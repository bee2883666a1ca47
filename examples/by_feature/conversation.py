"""A conversation: each turn passes its whole text, and a `SpecSession` lets both models read only what is new.

    python examples/by_feature/conversation.py [TARGET DRAFT]

Without folders: the pair that comes with the package, which goes on with Python source. With folders: a chat.
"""

import sys
import time

import torch
from transformers import TextStreamer

import hf_specgen
from hf_specgen import demo

QUESTIONS = ["Write a Python function that reverses a string.", "Let it take None as well.", "Add a docstring."]
SOURCE = ["def close(self):\n", "\n\n    def __enter__(self):\n", "\n\n    def __exit__(self, *args):\n"]


def load(folders: list[str]):
    """(target, draft, tokenizer, what the user says)"""
    return *demo.load(*folders), QUESTIONS if folders else SOURCE


def main() -> None:
    target, draft, tokenizer, turns = load(sys.argv[1:3])
    hf_specgen.enable(target)
    session, chat, text = hf_specgen.SpecSession(), [], ""
    for said in turns:
        chat.append({"role": "user", "content": said})
        text += said
        if tokenizer.chat_template:
            inputs = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            inputs = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        columns, seconds = inputs["input_ids"].shape[1], {}
        start = time.perf_counter()
        plain = target.generate(**inputs, do_sample=False, max_new_tokens=64)
        seconds["plain"] = time.perf_counter() - start
        start = time.perf_counter()
        out = target.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=64,
            assistant_model=draft,
            spec_strategy="rejection",
            spec_session=session,
            streamer=TextStreamer(tokenizer, skip_prompt=True),
            return_dict_in_generate=True,
        )
        seconds["ours"] = time.perf_counter() - start
        print(out.spec_stats)
        same = "the same ids" if torch.equal(plain, out.sequences) else "other ids (a near tie in low precision)"
        ratio = seconds["plain"] / seconds["ours"]
        print(f"{columns} tokens of text: {ratio:.2f}x plain decoding without a cache, {same}\n")
        answer = tokenizer.decode(out.sequences[0, columns:], skip_special_tokens=True)
        chat.append({"role": "assistant", "content": answer})
        text += answer


if __name__ == "__main__":
    main()
