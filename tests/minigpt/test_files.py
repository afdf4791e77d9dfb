"""Atomic writing: whatever fails, the last good file stays."""

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt import _files
from minigpt._files import TEMPORARY_SUFFIX, atomic_write, remove_leftovers

KILLED_WRITER = (
    "import os, signal, sys\n"
    "from minigpt._files import atomic_write\n"
    "with atomic_write(sys.argv[1]) as file:\n"
    "    file.write(b'half')\n"
    "    file.flush()\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
)


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


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    """The error says what is wrong with the folder, and not that a file exists."""
    (tmp_path / "file").write_bytes(b"old")
    with (
        pytest.raises(NotADirectoryError, match="wanted a folder, got a file"),
        atomic_write(tmp_path / "file" / "below"),
    ):
        pass


def test_a_dangling_link_gets_its_target(tmp_path: Path) -> None:
    """The file that the link has been waiting for is made, and the link stays."""
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_write(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"


def test_of_two_writers_the_last_one_to_end_wins(tmp_path: Path) -> None:
    """Their bytes never mix, whichever began first."""
    path = tmp_path / "file.bin"
    with atomic_write(path) as first:
        first.write(b"first")
        with atomic_write(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


class TestLeftovers:
    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs SIGKILL")
    def test_of_the_dead_are_removed(self, tmp_path: Path) -> None:
        """A killed writer's half file goes; the file itself and all others stay."""
        path, link = tmp_path / "file.bin", tmp_path / "link"
        path.write_bytes(b"old")
        link.symlink_to(path)
        kept = {path, link}
        for name in (".file.bin.1234.tmp", ".other.bin.01234567.tmp", "file.bin.01234567.tmp"):
            kept.add(tmp_path / name)
            (tmp_path / name).write_bytes(b"not ours")
        for _ in range(2):
            subprocess.run([sys.executable, "-c", KILLED_WRITER, str(path)], check=False)
        left = set(tmp_path.iterdir()) - kept
        assert [item.read_bytes() for item in left] == [b"half", b"half"]
        remove_leftovers(link)
        assert set(tmp_path.iterdir()) == kept
        assert path.read_bytes() == b"old"

    def test_of_a_living_writer_stay(self, tmp_path: Path) -> None:
        """Asked in the middle of a write, it leaves the file alone, and the write succeeds."""
        path = tmp_path / "file.bin"
        with atomic_write(path) as file:
            file.write(b"new")
            remove_leftovers(path)
            assert len(list(tmp_path.iterdir())) == 1
        assert path.read_bytes() == b"new"

    def test_a_file_is_locked_until_it_has_its_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Cleaning between the last byte and the rename finds a living writer."""
        path, replace = tmp_path / "file.bin", os.replace

        def clean_first(source: Path, target: Path) -> None:
            remove_leftovers(path)
            replace(source, target)

        monkeypatch.setattr(os, "replace", clean_first)
        with atomic_write(path) as file:
            file.write(b"new")
        assert path.read_bytes() == b"new"

    def test_a_cleaner_that_is_quicker_costs_a_name_and_nothing_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Removed between its creation and its lock, the writer takes another name."""
        path, lock, names = tmp_path / "file.bin", _files.try_lock, []

        def clean_first(descriptor: int) -> bool:
            if not names:
                (temporary,) = tmp_path.iterdir()
                names.append(temporary)
                temporary.unlink()
            return lock(descriptor)

        monkeypatch.setattr(_files, "try_lock", clean_first)
        with atomic_write(path) as file:
            file.write(b"new")
            assert names != list(tmp_path.iterdir())
        assert path.read_bytes() == b"new"

    def test_without_locks_nothing_is_removed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What cannot be told apart stays; writing works all the same."""

        def refuse(descriptor: int) -> bool:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(_files, "try_lock", refuse)
        path = tmp_path / "file.bin"
        leftover = tmp_path / ".file.bin.01234567.tmp"
        leftover.write_bytes(b"half")
        with atomic_write(path) as file:
            file.write(b"new")
        remove_leftovers(path)
        assert {leftover, path} == set(tmp_path.iterdir())

    def test_a_missing_folder_has_none(self, tmp_path: Path) -> None:
        """Nothing is created and nothing raised."""
        remove_leftovers(tmp_path / "none" / "file.bin")
        assert list(tmp_path.iterdir()) == []


class TestWindows:
    """Played on any system: there a file that is open elsewhere cannot be replaced."""

    def refuse(self, monkeypatch: pytest.MonkeyPatch, times: int) -> list[float]:
        """Refuse the first renames; return the list of waits."""
        waits: list[float] = []
        replace = os.replace

        def replace_late(source: Path, target: Path) -> None:
            if len(waits) < times:
                raise PermissionError(errno.EACCES, "used by another process", str(source))
            replace(source, target)

        monkeypatch.setattr(_files, "ON_WINDOWS", True)
        monkeypatch.setattr(os, "replace", replace_late)
        monkeypatch.setattr(_files.time, "sleep", waits.append)
        return waits

    def test_a_reader_is_waited_for(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Refused three times, it waits three times, longer and longer, and succeeds."""
        path = tmp_path / "file.bin"
        waits = self.refuse(monkeypatch, times=3)
        with atomic_write(path) as file:
            file.write(b"new")
        assert waits == [0.01, 0.02, 0.05]
        assert path.read_bytes() == b"new"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_reader_that_stays_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """After three seconds the error names the file; nothing is left over."""
        path = tmp_path / "file.bin"
        path.write_bytes(b"old")
        waits = self.refuse(monkeypatch, times=99)
        with (
            pytest.raises(PermissionError, match=r"used by another process: .*file\.bin"),
            atomic_write(path) as file,
        ):
            file.write(b"new")
        assert sum(waits) == pytest.approx(2.98)
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]

    def test_the_file_is_closed_before_the_rename(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """An open file has no new name there."""
        self.refuse(monkeypatch, times=0)
        with atomic_write(tmp_path / "file.bin") as file:
            monkeypatch.setattr(_files, "_replace", lambda *_: states.append(file.closed))
            states: list[bool] = []
        assert states == [True]
