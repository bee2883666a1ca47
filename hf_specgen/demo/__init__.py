"""The embedded pair: a small target and a far smaller draft that come with the package (see `train.py`)."""

from pathlib import Path

PAIR = Path(__file__).parent / "pair"
FOLDERS = (PAIR / "target", PAIR / "draft")

PROMPTS = (
    '    def close(self):\n        """Close the',
    "    def __eq__(self, other):\n        if not isinstance(other,",
    'class Reader(object):\n    """Read a file',
)
"""Beginnings of text like the pair was trained on: Python source."""


def load(target: str | Path = FOLDERS[0], draft: str | Path = FOLDERS[1]):
    """The embedded pair, in float32, from the package's own files; or a pair of one's own, as its checkpoints are.

    Returns:
        (target, draft, tokenizer), the models in evaluation mode.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def options(folder) -> dict:
        return {"local_files_only": True} if Path(folder).is_relative_to(PAIR) else {}

    def model(folder):
        dtype = torch.float32 if options(folder) else "auto"
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **options(folder)).eval()

    return model(target), model(draft), AutoTokenizer.from_pretrained(target, **options(target))
