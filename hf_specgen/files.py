"""Files that are written whole or not at all."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a UTF-8 text; at no moment is an earlier one gone and this one not yet there. Its folder is made.

    Raises:
        OSError: it cannot be written; nothing of it is left, and what was there is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partly = path.with_name(f"{path.name}.partly")
    try:
        partly.write_text(text, encoding="utf-8")
        partly.replace(path)
    finally:
        partly.unlink(missing_ok=True)
