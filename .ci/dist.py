"""Build the sdist, from it the wheel, and try the wheel in a clean environment: `make dist`.

The clean environment holds the wheel alone and finds the packages that it depends on in the environment of the Python
that runs this script, whose own hf-specgen (an editable one) it does not see.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
LARGEST = {".whl": 9.5e6, ".gz": 10.5e6}
"""Bytes. Nearly all of it are the weights of the embedded pair."""


def run(*command: object, **options) -> str:
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


def build() -> tuple[Path, Path]:
    """(sdist, wheel)"""
    for old in DIST.glob("hf_specgen-*"):
        old.unlink()
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", DIST, cwd=ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet"
    run(*pip, "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", DIST, sdist)
    (wheel,) = DIST.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    for file in (sdist, wheel):
        size, largest = file.stat().st_size, LARGEST[file.suffix]
        print(f"{file.name}: {size / 1e6:.2f} MB")
        assert size <= largest, f"{file.name} is larger than {largest / 1e6} MB: what came in?"
    tracked = {*run("git", "ls-files", "hf_specgen", cwd=ROOT).split()}
    inside = {*zipfile.ZipFile(wheel).namelist()}
    shipped = {name for name in inside if ".dist-info/" not in name}
    assert shipped == tracked, f"Not in both wheel and repository: {sorted(shipped ^ tracked)}"
    assert {"hf_specgen/py.typed", "hf_specgen/demo/pair/target/model.safetensors"} <= shipped
    assert any(name.endswith("licenses/LICENSE") for name in inside), "the wheel has no licence"
    with tarfile.open(sdist) as archive:
        unpacked = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert tracked | {"LICENSE", "README.md", "CHANGELOG.md", "tests/conftest.py"} <= unpacked
    assert not [name for name in unpacked if "__pycache__" in name or name.endswith((".pyc", ".partly"))]


def try_out(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / "clean"
        venv.create(clean, with_pip=False)
        bin = clean / ("Scripts" if os.name == "nt" else "bin")
        python = bin / Path(sys.executable).name
        pip = sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python, "install", "--quiet"
        run(*pip, "--no-deps", "--no-index", wheel)
        (site,) = {run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()}
        dependencies = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
        (Path(site) / "dependencies.pth").write_text("".join(f"{path}\n" for path in dependencies))
        alone = {"cwd": folder, "env": {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}}
        where = run(python, "-c", "import hf_specgen; print(hf_specgen.__file__)", **alone).strip()
        assert Path(where).resolve().is_relative_to(clean.resolve()), f"{where} is not the wheel's"
        version = run(bin / "hf-specgen", "--version", **alone).strip()
        assert wheel.name.startswith(f"hf_specgen-{version}-"), version
        told = json.loads(run(bin / "hf-specgen", "demo", "--json", "--repeats", 1, **alone))
        assert told["same_ids"] is True
        print(f"hf-specgen {version} from the wheel: the demo's ids are plain's, {told['speedup']:.2f}x")


if __name__ == "__main__":
    built = build()
    check_contents(*built)
    try_out(built[1])
