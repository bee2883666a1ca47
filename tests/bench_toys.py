"""A small pair, on disk and loaded, and prompts for it."""

import json
from pathlib import Path

import torch
from toys import noisy, tiny, toy_tokenizer

from hf_specgen.benchmarking.calls import Call
from hf_specgen.benchmarking.ours import Ours

WORDS = ("the cab sing", "a thing", "bring the ring", "cabcab the abc", "sing a song", "the the the a")


def save_pair(root: Path) -> Path:
    """target/, draft/ and prompts.jsonl: four of task "one", two of task "two"."""
    target = tiny()
    for name, model in (("target", target), ("draft", noisy(target))):
        model.save_pretrained(root / name)
        toy_tokenizer().save_pretrained(root / name)
    entries = [{"prompt": text, "task": "one" if i < 4 else "two"} for i, text in enumerate(WORDS)]
    (root / "prompts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return root


def call(rows=((5, 9, 11, 7), (8, 6)), temperature=0.0, new=12, eos=(63,)) -> Call:
    columns = max(map(len, rows))
    ids, mask = torch.zeros(2, len(rows), columns, dtype=torch.long)
    for row, tokens in enumerate(rows):
        ids[row, columns - len(tokens) :], mask[row, columns - len(tokens) :] = torch.tensor(tokens), 1
    return Call(ids, mask, new, temperature, 0, 1.0, eos, 0, seed=5)


def interrupt_after(calls: int, monkeypatch) -> None:
    """Ctrl-C in one of our calls, after so many."""
    decode, left = Ours.decode, [calls]

    def interrupted(self, call):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return decode(self, call)

    monkeypatch.setattr(Ours, "decode", interrupted)
