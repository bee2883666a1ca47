"""A text is written whole or not at all, and what stands at its path is only replaced if it is a file."""

import os
import stat
import threading
from pathlib import Path

import pytest

from hf_specgen.files import write_whole


def full(self, text, **_):
    with open(self, "w") as file:
        file.write(text[:2])
    raise OSError(28, "No space left on device", str(self))


def test_a_text_and_its_folder(tmp_path):
    write_whole(tmp_path / "new" / "file", "one")
    write_whole(tmp_path / "new" / "file", "zwölf")
    assert (tmp_path / "new" / "file").read_text(encoding="utf-8") == "zwölf"
    assert os.listdir(tmp_path / "new") == ["file"]


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("before")
    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", "after")
    assert (tmp_path / "file").read_text() == "before" and os.listdir(tmp_path) == ["file"]


def test_a_link_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there" / "file")
    for text in ("into nothing yet", "over it"):
        write_whole(tmp_path / "link", text)
        assert (tmp_path / "link").is_symlink() and (tmp_path / "there" / "file").read_text() == text
    assert os.listdir(tmp_path / "there") == ["file"]


def test_a_pipe_is_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()), daemon=True)
    reader.start()
    write_whole(tmp_path / "pipe", "text")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    reader.join(timeout=5)
    assert read == ["text"] and os.listdir(tmp_path) == ["pipe"]


def test_files_beside_it_are_left_alone(tmp_path):
    (tmp_path / "file.partly").write_text("mine")
    write_whole(tmp_path / "file", "text")
    assert (tmp_path / "file.partly").read_text() == "mine"


def test_two_writers_do_not_take_each_others_file(tmp_path, monkeypatch):
    """The second one writes while the first one has not yet ended."""
    write, nested = Path.write_text, []

    def slow(self, text, **options):
        write(self, text, **options)
        if not nested:
            nested.append(self)
            write_whole(tmp_path / "file", "second")

    monkeypatch.setattr(Path, "write_text", slow)
    write_whole(tmp_path / "file", "first")
    assert (tmp_path / "file").read_text() == "first" and os.listdir(tmp_path) == ["file"]


def test_who_may_read_it_stays_so(tmp_path):
    (tmp_path / "file").write_text("secret")
    (tmp_path / "file").chmod(0o600)
    write_whole(tmp_path / "file", "new")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
