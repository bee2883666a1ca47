"""A small pair, on disk and loaded."""

import pytest
from bench_toys import save_pair
from toys import noisy, tiny, toy_tokenizer


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """The folder that `save_pair` fills."""
    return save_pair(tmp_path_factory.mktemp("bench"))


@pytest.fixture
def models():
    from hf_specgen.benchmarking.calls import Models

    target = tiny()
    return Models(target, noisy(target), toy_tokenizer())
