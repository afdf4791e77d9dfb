"""Terminal manners: folded, ASCII, harmless, and a question only where somebody sits."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest

import exercises
from exercises._terminal import ask_for_one, no_such, number_to, put, put_code, show_output

ROOT = Path(exercises.__file__).parents[1]


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")


def test_code_keeps_its_blanks_and_is_folded_only_where_it_is_too_long(
    capsys: pytest.CaptureFixture[str],
) -> None:
    put_code("  - ", "x =  1")
    put_code("  + ", "targets = " + "data[places + 1] + " * 4 + "0")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  - x =  1"
    assert lines[1].startswith("  + targets = data[places + 1]")
    assert all(line.startswith("    ") for line in lines[2:])
    assert max(map(len, lines)) <= 60
    joined = " ".join(line[4:] for line in lines[1:])
    assert joined == "targets = " + "data[places + 1] + " * 4 + "0"


def test_a_word_without_blanks_is_folded_too(capsys: pytest.CaptureFixture[str]) -> None:
    put_code("    ", "a" * 130)
    put("b" * 130)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    assert "".join(line.strip() for line in lines) == "a" * 130 + "b" * 130


def test_nothing_moves_the_cursor_or_leaves_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    put("claim \x1b[2J \u202e\u00e9")
    put_code("", "s = '\x07\u2603'")
    show_output("\x1b]0;title\x07\n" + "line\n" * 20)
    out = capsys.readouterr().out
    assert out.isascii()
    assert all(character.isprintable() or character == "\n" for character in out)
    assert "\\x1b[2J" in out
    assert out.count("line\n") == 7


def test_a_wrong_spelling_is_helped() -> None:
    known = ["shift", "shapes", "range"]
    assert no_such("check", "shfit", known) == "there is no check 'shfit'; did you mean shift?"
    assert no_such("bug", "xyz", known) == "there is no bug 'xyz'; there are shift, shapes, range"


def test_without_a_terminal_nothing_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: pytest.fail("it asked"))
    assert ask_for_one("Which?", ["shift"]) == ""
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals")
@pytest.mark.parametrize(
    ("typed", "answer", "helped"),
    [
        (b"shfit\nshift\n", "<shift>", True),
        (b"\n", "<>", False),
        (b" SHIFT \n", "<shift>", False),
        (b"\x04", "<>", False),
        (b"xx\nyy\nzz\n", "<>", True),
    ],
)
def test_on_a_terminal_it_asks_and_helps(typed: bytes, answer: str, helped: bool) -> None:
    """A pseudo-terminal on all three streams; Ctrl-D and three words of nothing pass."""
    import pty

    code = (
        "from exercises._terminal import ask_for_one\n"
        "print('<' + ask_for_one('Which check?', ['shift', 'range']) + '>')\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs,
        env=os.environ | {"TERM": "dumb"},
    ) as process:  # fmt: skip
        os.close(theirs)
        os.write(ours, typed)
        shown = b""
        while answer.encode() not in shown:
            try:
                part = os.read(ours, 4096)
            except OSError:  # the other side has ended
                break
            shown += part
        assert process.wait(timeout=60) == 0
    os.close(ours)
    text = shown.decode()
    assert answer in text
    assert "Which check?" in text
    assert ("there is no check" in text) is helped


@pytest.mark.parametrize("text", ["0", "-1", "41", "2.5", "two", ""])
def test_a_number_out_of_bounds_is_refused_with_its_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a number from 1 to 40$"):
        number_to(40)(text)


def test_a_number_within_the_bounds_is_read() -> None:
    assert [number_to(40)(text) for text in ("1", "07", "40")] == [1, 7, 40]
