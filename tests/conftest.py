"""Shared set-up: one thread (tiny models run faster so), helpers importable, real models found or skipped."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

MODELS = Path(os.environ.get("HF_SPECGEN_MODELS", Path.home() / ".cache" / "hf-specgen" / "models"))


@pytest.fixture(scope="session")
def real_models() -> Path:
    """Folder of the real pair; skips where it has not been built."""
    if not (MODELS / "qwen2.5-coder-1.5b").is_dir():
        pytest.skip(f"the real pair is not in {MODELS} (set HF_SPECGEN_MODELS)")
    return MODELS


@pytest.fixture
def folder(tmp_path):
    """folder("name", model, tokenizer): a checkpoint on disk."""
    from pairing_toys import make_model

    def save(name, model=None, tokenizer=None):
        path = tmp_path / name
        (model or make_model()).save_pretrained(path)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
        return path

    return save


@pytest.fixture(params=["token by token", "as text"])
def how(request, monkeypatch):
    """Both ways of greedy drafting, of a draft with another vocabulary, whatever the check would choose."""
    from hf_specgen.pairing import vocabulary

    monkeypatch.setattr(vocabulary, "ALIKE", 0.0 if request.param == "token by token" else 2.0)
    return request.param
