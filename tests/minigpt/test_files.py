"""Atomic writing: whatever fails, the last good file stays."""

import errno
import os
import stat
from pathlib import Path

import pytest

from minigpt._files import TEMPORARY_SUFFIX, atomic_write


def test_new_file_in_a_new_folder(tmp_path: Path) -> None:
    """The folder is created, the bytes arrive, nothing else is left."""
    path = tmp_path / "a" / "b" / "file.bin"
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file.bin"]  # noqa: PTH208


def test_old_file_is_seen_until_the_block_ends(tmp_path: Path) -> None:
    """During the writing a reader finds the old bytes; the new ones are hidden beside them."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        (temporary,) = [item for item in tmp_path.iterdir() if item != path]
        assert temporary.name.startswith(".file.bin.")
        assert temporary.suffix == TEMPORARY_SUFFIX
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, OSError])
def test_error_inside_the_block_keeps_the_old_file(
    error: type[BaseException], tmp_path: Path
) -> None:
    """The error goes to the caller; the temporary file is gone."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    with pytest.raises(error), atomic_write(path) as file:  # noqa: PT012 (the block is the point)
        file.write(b"half")
        raise error
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_full_disk_keeps_the_old_file(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full at the last moment changes nothing, and the error names the file."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match=r"No space left.*file\.bin"), atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_folder_that_cannot_exist(tmp_path: Path) -> None:
    """A path below an ordinary file is an `OSError`, and that file stays."""
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="file"), atomic_write(tmp_path / "file" / "below"):
        pass
    assert (tmp_path / "file").read_bytes() == b"old"


def test_folder_and_device_are_refused(tmp_path: Path) -> None:
    """A rename would destroy what is neither a new nor an ordinary file."""
    with pytest.raises(IsADirectoryError, match="got a folder"), atomic_write(tmp_path):
        pass
    fifo = tmp_path / "pipe"
    if hasattr(os, "mkfifo"):
        os.mkfifo(fifo)
        with pytest.raises(OSError, match="got a device"), atomic_write(fifo):
            pass
        assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_write_protected_file_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Protecting a file protects it, though its folder would allow a rename."""
    path = tmp_path / "file.bin"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "access", lambda *_: False)  # chmod does not stop an administrator
    with pytest.raises(PermissionError, match="write-protected"), atomic_write(path):
        pass
    assert path.read_bytes() == b"old"


def test_permissions_and_links_stay(tmp_path: Path) -> None:
    """The new file has the old one's permissions; a link goes on pointing to it."""
    path, link = tmp_path / "file.bin", tmp_path / "link.bin"
    path.write_bytes(b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    with atomic_write(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_new_file_has_the_usual_permissions(tmp_path: Path) -> None:
    """A new file can be read by whoever could read one made by `open`."""
    (tmp_path / "usual").write_bytes(b"")
    with atomic_write(tmp_path / "atomic") as file:
        file.write(b"")
    usual, made = (stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "atomic"))
    assert made == usual


def test_longest_names_work(tmp_path: Path) -> None:
    """A name of 255 bytes leaves no room for a suffix, so the hidden name is a shorter one."""
    path = tmp_path / ("\u20ac" * 85)
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"
