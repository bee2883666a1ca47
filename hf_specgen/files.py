"""Files that are written whole or not at all."""

import os
import shutil
import uuid
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 text; at no moment is an earlier one gone and this one not yet there. Its folder is made.

    A link stays one: the file that it names is written. A pipe or a device cannot be replaced: it is written to.

    Raises:
        OSError: it cannot be written; nothing of it is left, and what was there is still there.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(f".{path.name}-{uuid.uuid4().hex[:8]}")  # of this writer alone
    try:
        partly.write_text(text, encoding="utf-8")
        if path.exists():
            shutil.copymode(path, partly)
        partly.replace(path)
    finally:
        partly.unlink(missing_ok=True)
