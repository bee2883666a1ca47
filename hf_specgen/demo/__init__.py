"""The embedded pair: a small target and a far smaller draft that come with the package (see `train.py`)."""

from pathlib import Path

PAIR = Path(__file__).parent / "pair"

PROMPTS = (
    '    def close(self):\n        """Close the',
    "    def __eq__(self, other):\n        if not isinstance(other,",
    'class Reader(object):\n    """Read a file',
)
"""Beginnings of text like the pair was trained on: Python source."""


def load():
    """The embedded pair, float32, in evaluation mode, from the package's own files.

    Returns:
        (target, draft, tokenizer)
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def model(name: str):
        return AutoModelForCausalLM.from_pretrained(PAIR / name, dtype=torch.float32, local_files_only=True).eval()

    return model("target"), model("draft"), AutoTokenizer.from_pretrained(PAIR / "target", local_files_only=True)
