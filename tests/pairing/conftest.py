import pytest
from pairing_toys import make_model


@pytest.fixture
def folder(tmp_path):
    """folder("name", model, tokenizer): a checkpoint on disk."""

    def save(name, model=None, tokenizer=None):
        path = tmp_path / name
        (model or make_model()).save_pretrained(path)
        if tokenizer is not None:
            tokenizer.save_pretrained(path)
        return path

    return save
