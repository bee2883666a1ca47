"""Who is asked to decode: names, Ks, strategies."""

import pytest

from hf_specgen.benchmarking import names
from hf_specgen.benchmarking.names import entrants


def rows(text, ks=(), strategies=("rejection",), draft=True):
    return [(e.name, e.k, e.strategy) for e in entrants(text.split(), ks, strategies, draft)]


def test_each_name_is_a_row_in_order():
    assert rows("plain lookup ours") == [
        ("plain", None, None),
        ("lookup", None, "rejection"),
        ("ours", None, "rejection"),
    ]


def test_a_k_of_ones_own_and_ks_from_the_list():
    assert rows("stock-k4 ours-k", ks=(1, 3)) == [
        ("stock-k4", 4, None),
        ("ours-k1", 1, "rejection"),
        ("ours-k3", 3, "rejection"),
    ]


def test_ours_runs_once_per_strategy():
    assert rows("plain ours", strategies=("rejection", "block")) == [
        ("plain", None, None),
        ("ours", None, "rejection"),
        ("ours", None, "block"),
    ]


@pytest.mark.parametrize(
    "text, ks, draft, said",
    [
        ("plain mine", (), True, "'mine' is no contender. Known are plain, compiled, stock, stock-kN"),
        ("plain-k4", (), True, "'plain-k4' is no contender"),
        ("stock-k0", (), True, "'stock-k0' is no contender"),
        ("stock", (), False, "'stock' needs a draft"),
        ("ours-k", (), True, "'ours-k' takes its Ks from a list, which is empty"),
        ("ours", (1, 2), True, "The Ks 1, 2 are for 'stock-k' and 'ours-k'"),
        ("stock-k2 stock-k", (1, 2), True, "'stock-k2' is named twice"),
        ("", (), True, "Nobody is asked to decode"),
    ],
)
def test_refused(text, ks, draft, said):
    with pytest.raises(ValueError) as error:
        rows(text, ks, draft=draft)
    assert said in str(error.value)


def test_a_package_that_is_not_here(monkeypatch):
    monkeypatch.setattr(names, "find_spec", lambda name: None)
    assert names.installed_peers() == []
    with pytest.raises(ValueError, match="pip install flashspec"):
        rows("flashspec")


def test_every_known_name_can_be_made(models, monkeypatch):
    monkeypatch.setattr(names, "find_spec", lambda name: True)
    for entrant in entrants(names.KNOWN, (), ("rejection",), True):
        assert entrant.make(models).models is models
