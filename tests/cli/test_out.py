"""Where a command is to write: refused before it has worked, and ~ is the home."""

import os

import pytest

from hf_specgen.cli.out import checked_out


def test_places_that_can_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "file").touch()
    assert checked_out("--out", None) is None
    for place in (tmp_path / "file", tmp_path / "new" / "below" / "file"):
        assert checked_out("--out", place) == place
    for place in (tmp_path, tmp_path / "new" / "below"):
        assert checked_out("--out", place, folder=True) == place
    assert checked_out("--out", type(tmp_path)("~/x")) == tmp_path / "x"
    assert os.listdir(tmp_path) == ["file"], "nothing is made"


def test_a_pipe_and_a_device(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert checked_out("--out", tmp_path / "pipe") == tmp_path / "pipe"
    with pytest.raises(ValueError, match="pipe is a file: pass a folder"):
        checked_out("--out", tmp_path / "pipe", folder=True)


def test_places_of_another_kind(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^--out .* is a folder; name a file in it"):
        checked_out("--out", tmp_path)
    with pytest.raises(ValueError, match=r"^--plots .*file is a file: pass a folder"):
        checked_out("--plots", tmp_path / "file", folder=True)
    for folder in (False, True):
        with pytest.raises(ValueError, match=f"{tmp_path / 'file'} is no folder"):
            checked_out("--out", tmp_path / "file" / "child", folder)


@pytest.mark.parametrize("folder", [False, True])
def test_places_that_may_not_be_written_to(tmp_path, monkeypatch, folder):
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or path != tmp_path)
    with pytest.raises(PermissionError, match=f"{tmp_path} cannot be written to"):
        checked_out("--out", tmp_path / "new" / "below", folder)
