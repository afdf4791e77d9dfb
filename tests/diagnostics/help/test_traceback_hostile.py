"""Whatever is pasted: bounded, escaped, in every encoding, and without torch."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from diagnostics.help import traceback as module
from diagnostics.help.traceback import (
    _text,
    answer_traceback,
    read_traceback,
    read_traceback_file,
    render,
)
from diagnostics.help.traceback._text import LIMIT_BYTES
from tests.diagnostics.help.tracebacks import SITE, STEP, TRAIN, asserted, python

HOSTILE = "\x1b]0;title\x07\x1b[2J\x1b[31m\u202ered\u2066\x00\x9b1m\u0085\ud800<script>{x}%s"


def _lines(text: str) -> list[str]:
    return render(read_traceback(text)).split("\n")


@pytest.mark.parametrize(
    "text",
    [
        python(f"ValueError: {HOSTILE}"),
        python("ValueError: x", (f"train{HOSTILE}.py", 3, HOSTILE, HOSTILE)),
        python(f"KeyError: '{HOSTILE}'", ("a.py", 1, "encode", f"stoi[{HOSTILE}]")),
        python(f"ModuleNotFoundError: No module named '{HOSTILE}'"),
        python("RuntimeError: device-side assert triggered", (f"$ python {HOSTILE}", 1, "f", "x")),
        asserted(HOSTILE) + python("RuntimeError: CUDA error: device-side assert triggered"),
        python("ValueError: " + "A" * 10_000),
        python("ValueError: x", ("/" + "long/" * 200 + "train.py", 3, "f" * 300, "c" * 3000)),
        python("ValueError: {0} {name} {{"),
        HOSTILE,
    ],
)
def test_nothing_moves_the_cursor_or_breaks_the_width(text: str) -> None:
    for line in _lines(text):
        assert len(line) <= 80
        assert line.isprintable()
    content = json.dumps(read_traceback(text).to_dict(), allow_nan=False)
    assert json.loads(content)["kind"] == "diagnostics.traceback"


@pytest.mark.parametrize(
    "codec", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"]
)
def test_encodings_of_a_file_are_recognised(tmp_path: Path, codec: str) -> None:
    """PowerShell's > writes UTF-16 with a mark."""
    path = tmp_path / "error.txt"
    path.write_bytes(
        python("ValueError: na\u00efve")
        .encode(codec)
        .replace(b"\n", b"\r\n" if codec == "cp1252" else b"\n")
    )
    reading = read_traceback_file(path)
    assert reading.kind == "ValueError"
    assert reading.where is not None
    assert reading.where.line == 7


class _Endless(io.RawIOBase):
    """A log of so many megabytes that are never in memory at once, and an end."""

    def __init__(self, megabytes: int, end: bytes) -> None:
        self.left, self.end = megabytes, end
        self.block = b"step 12 loss 2.31 rate 0.001\n" * (2**20 // 29)

    def read(self, size: int = -1) -> bytes:
        if self.left:
            self.left -= 1
            return self.block[:size]
        end, self.end = self.end, b""
        return end


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """The same at 64 KiB, in milliseconds."""
    monkeypatch.setattr(_text, "LIMIT_BYTES", 2**16)
    return 2**16


@pytest.mark.usefixtures("small_limit")
def test_of_a_long_log_only_the_end_is_read() -> None:
    source: BinaryIO = _Endless(4, python("ValueError: bad").encode())  # type: ignore[assignment]
    reading = read_traceback_file(source)
    assert reading.kind == "ValueError"
    assert any("MiB of the text were not read" in note for note in reading.notes)


def test_of_a_long_file_only_the_end_is_read(tmp_path: Path, small_limit: int) -> None:
    """Also in UTF-16, where the end must begin with a whole character."""
    path = tmp_path / "log.txt"
    text = "step 12 loss 2.31\n" * (small_limit // 9) + python("ValueError: bad")
    for codec in ("utf-8", "utf-16"):
        path.write_bytes(text.encode(codec))
        reading = read_traceback_file(path)
        assert reading.kind == "ValueError"
        assert any("MiB of the text were not read" in note for note in reading.notes)


def test_a_long_text_in_memory_is_bounded_too() -> None:
    text = "x" * (3 * LIMIT_BYTES) + "\n" + python("ValueError: bad")
    assert read_traceback(text).kind == "ValueError"


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n" * 3_000,
        '  File "a.py", line 1, in f\n' * 20_000 + "ValueError: x\n",
        "  + Exception Group Traceback (most recent call last):\n" + "  | \n" * 20_000,
        "    " * 20_000 + "\n",
        "ValueError: " + "a: " * 50_000,
        asserted("x < 3", times=5_000) + python("RuntimeError: device-side assert triggered"),
        "".join(
            f"[rank{n}]: Traceback (most recent call last):\n[rank{n}]: x\n" for n in range(500)
        ),
        "From " + '"' * 50_000 + "\n[[" * 20_000,
        "".join(f"{n}: {python('ValueError: x')}" for n in range(300)),
    ],
    ids=["headers", "frames", "group", "blanks", "colons", "asserts", "ranks", "quotes", "many"],
)
def test_monstrous_texts_end(text: str) -> None:
    for line in _lines(text):
        assert len(line) <= 80


def test_a_chain_that_never_ends_is_shown_in_part() -> None:
    joint = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
    reading = read_traceback(joint.join([python("ValueError: x")] * 400))
    assert reading.count == 1
    assert len(reading.raised_from) <= 6


def test_a_number_beyond_all_bounds_is_no_crash() -> None:
    nine = "9" * 5_000
    for last in (
        f"IndexError: Target {nine} is out of bounds.",
        f"RuntimeError: shape '[{nine}]' is invalid for input of size {nine}",
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {nine} GiB.",
        f"ValueError: Expected input batch_size ({nine}) to match target batch_size (0).",
        "ValueError: Expected input batch_size (0) to match target batch_size (0).",
        f"RuntimeError: Expected target size [{nine}, 2], got [{nine}, 3]",
        f"_pickle.UnpicklingError: Unsupported operand {nine}",
    ):
        _lines(python(last, (f"{SITE}/torch/a.py", 1, "f", "x"), TRAIN, STEP))
    _lines(f'Traceback (most recent call last):\n  File "a.py", line {nine}, in f\nValueError: x\n')


def test_standard_input_and_exit_codes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "error.txt"
    path.write_text(python("ValueError: bad"), encoding="utf-8")
    text, code = answer_traceback(str(path))
    assert code == 0
    assert text.startswith("what       ValueError: bad\nwhere      train.py:7, in step")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))
    assert answer_traceback("-") == (text, 0)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert answer_traceback("-")[1] == 2
    with pytest.raises(OSError, match=r"none\.txt"):
        answer_traceback(str(tmp_path / "none.txt"))


def test_reading_does_not_wait_for_torch(tmp_path: Path) -> None:
    path = tmp_path / "error.txt"
    path.write_text(python("ValueError: bad"), encoding="utf-8")
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; "
        f"from {module.__name__} import answer_traceback; print(answer_traceback({str(path)!r})[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
