"""Watching a file: every way of saving it is seen, and nothing else is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import exercises
from exercises import _watch

ROOT = Path(exercises.__file__).parents[1]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_watch, "POLL_SECONDS", 0.01)


def in_place(path: Path) -> None:
    path.write_text("other", encoding="utf-8")


def same_size_same_time(path: Path) -> None:
    """As on a file system whose clock ticks once a second."""
    status = path.stat()
    path.write_text("00002", encoding="utf-8")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text("other", encoding="utf-8")
    new.replace(path)


def away_for_a_moment(path: Path) -> None:
    path.unlink()
    time.sleep(0.05)
    path.write_text("other", encoding="utf-8")


def same_content_again(path: Path) -> None:
    time.sleep(0.02)
    path.write_text("00001", encoding="utf-8")
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10_000_000))


@pytest.mark.parametrize(
    "save", [in_place, same_size_same_time, replaced, away_for_a_moment, same_content_again]
)
def test_a_save_is_seen(save: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "fix.py"
    path.write_text("00001", encoding="utf-8")
    seen = _watch.state_of(path)
    waiting = threading.Thread(target=_watch.wait_for_save, args=(path, seen), daemon=True)
    waiting.start()
    time.sleep(0.05)
    assert waiting.is_alive(), "nothing was saved yet"
    save(path)
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert _watch.state_of(path) is not None


def test_it_runs_until_it_is_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "fix.py"
    path.write_text("0", encoding="utf-8")
    codes: Iterator[int] = iter([1, 1, 0])
    monkeypatch.setattr(_watch, "wait_for_save", lambda path, seen: print("saved"))
    assert _watch.watch(path, lambda: next(codes)) == 0
    assert capsys.readouterr().out.count("saved") == 2
    assert list(codes) == []


def test_a_file_that_stays_away_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "GONE_SECONDS", 0.05)
    path = tmp_path / "fix.py"
    waiting = threading.Thread(target=_watch.wait_for_save, args=(path, None), daemon=True)
    waiting.start()
    time.sleep(0.5)
    path.write_text("back", encoding="utf-8")
    waiting.join(timeout=30)
    assert not waiting.is_alive()
    assert capsys.readouterr().out.count("is not there") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches a process in another way")
def test_an_interrupt_ends_it_with_130_and_no_traceback(tmp_path: Path) -> None:
    """Without a terminal the lines come at once, although nobody flushes them."""
    (tmp_path / "fix.py").write_text("0", encoding="utf-8")
    code = (
        "from pathlib import Path; from exercises._watch import watch\n"
        "from minigpt._cli import run_command\n"
        "raise SystemExit(run_command(lambda: watch(Path('fix.py'), lambda: 1)))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline().startswith("watching fix.py")
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == "error: interrupted\n"
