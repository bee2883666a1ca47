"""Execute notebooks, each in a fresh kernel: `python .ci/notebooks.py [--save] NOTEBOOK…`. The first error ends it."""

import argparse
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--save", action="store_true", help="keep the outputs in the notebooks")
parser.add_argument("notebooks", nargs="+", type=Path)
arguments = parser.parse_args()
for path in arguments.notebooks:
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    # Without times and the like: a second run should differ in what it shows only.
    NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata.language_info = {"name": "python"}
    if arguments.save:
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"{path}: {time.monotonic() - start:.0f} s", flush=True)
