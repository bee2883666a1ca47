"""Execute notebooks, each in a fresh kernel: `python .ci/notebooks.py [--save] NOTEBOOK…`. Errors end it with code 1.

Without `--save` as many at once as there are cores; with it, one after the other, for they measure times.
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient


def execute(path: Path, save: bool) -> None:
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    # Without times and the like: a second run should differ in what it shows only.
    NotebookClient(
        notebook,
        kernel_name="python3",
        extra_arguments=["--IPKernelApp.log_level=40"],  # it warns of every kernel that talks over TCP
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    notebook.metadata.language_info = {"name": "python"}
    for output in (x for cell in notebook.cells if cell.cell_type == "code" for x in cell.outputs):
        if "text/html" in output.get("data", {}):
            output["data"].pop("text/plain", None)  # pages of it, for nobody
    if save:
        path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"{path}: {time.monotonic() - start:.0f} s", flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--save", action="store_true", help="keep the outputs in the notebooks")
parser.add_argument("notebooks", nargs="+", type=Path)
arguments = parser.parse_args()
with ThreadPoolExecutor(1 if arguments.save else os.cpu_count()) as pool:
    for done in [pool.submit(execute, path, arguments.save) for path in arguments.notebooks]:
        done.result()
