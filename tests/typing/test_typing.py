"""What `make types` looks at is the whole public surface."""

import inspect
import sys
from pathlib import Path

import pytest

import hf_specgen

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is Python 3.11's")
def test_every_public_name_is_checked():
    import tomllib

    files = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"])
    homes = {inspect.getfile(inspect.unwrap(getattr(hf_specgen, name))) for name in hf_specgen.__all__}
    assert {str(Path(home).relative_to(ROOT)) for home in homes} <= files
    assert all((ROOT / file).exists() for file in files)


def test_the_sample_uses_public_names_only():
    import ast

    tree = ast.parse((Path(__file__).parent / "public_surface.py").read_text())
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "hf_specgen":
            used.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module == "hf_specgen":
            used.update(name.name for name in node.names)
    assert used <= {*hf_specgen.__all__} and len(used) > 15
