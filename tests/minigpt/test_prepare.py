"""`python -m minigpt.prepare`: text in, three splits out, or one clear line."""

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt._cli import run_command
from minigpt.encoded import load_ids, read_meta
from minigpt.prepare import main
from minigpt.tokenizer import CharTokenizer

CHECKOUT = Path(__file__).resolve().parents[2]
TEXT = "To be, or not to be: \u00e9\r\n" * 40  # 960 characters


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Default paths are relative to the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_bytes(TEXT.encode())


def run(*arguments: str) -> int:
    """Run the command as the shell would."""
    return run_command(lambda: main(arguments))


def files() -> dict[str, bytes]:
    """Return what lies below the two output folders."""
    found = [path for root in ("tokenizer", "data") for path in Path(root).rglob("*")]
    return {str(path): path.read_bytes() for path in found if path.is_file()}


def test_files_hold_the_text(capsys: pytest.CaptureFixture[str]) -> None:
    """The three splits decode to the text, in order, and the card describes them."""
    assert run("--text", "text.txt") == 0
    tokenizer = CharTokenizer.from_file("tokenizer/char_tokenizer.json")
    assert tokenizer.chars == sorted(set(TEXT))
    parts = [load_ids(f"data/encoded/{split}_ids.npy") for split in ("train", "val", "test")]
    assert [len(part) for part in parts] == [864, 48, 48]
    assert "".join(map(tokenizer.decode, parts)) == TEXT
    meta = read_meta("data/encoded")
    assert meta.tokenizer_fingerprint == tokenizer.fingerprint
    assert meta.corpus_fingerprint == hashlib.sha256(TEXT.encode()).hexdigest()
    assert meta.counts == {"train": 864, "val": 48, "test": 48}
    assert (meta.dtype, meta.vocab_size, meta.source) == ("uint8", len(set(TEXT)), "text.txt")
    output = capsys.readouterr().out
    for words in ("960 characters", tokenizer.fingerprint, "864 ids", r"\xe9\r\n", "minigpt.train"):
        assert words in output


def test_guide_is_the_default() -> None:
    """Without arguments the built-in guide is prepared; twice gives the same bytes."""
    assert run() == 0
    first = files()
    assert run("--source", "guide") == 0
    assert files() == first
    assert len(first) == 5


def test_python_docs_and_out_dir() -> None:
    """The interpreter's own text works everywhere, and goes where it is told."""
    assert run("--source", "python-docs", "--out-dir", "else where") == 0
    assert Path("else where/data/encoded/train_ids.npy").is_file()
    assert files() == {}


def test_several_texts_are_joined_in_order() -> None:
    """Files follow one another as `cat` would have it."""
    Path("second.txt").write_text("z" * 960, encoding="utf-8")
    assert run("--text", "text.txt", "second.txt") == 0
    corpus = (TEXT + "z" * 960).encode()
    assert read_meta("data/encoded").corpus_fingerprint == hashlib.sha256(corpus).hexdigest()


def test_wikitext_fallback_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a train file the output says what was trained on instead."""
    Path("wiki").mkdir()
    for name in ("valid.txt", "test.txt"):
        Path("wiki", name).write_bytes(TEXT.encode())
    assert run("--wikitext", "wiki") == 0
    assert read_meta("data/encoded").counts == {"train": 864, "val": 96, "test": 960}
    assert "no train file" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "got 0 of 0"),
        (b"a" * 600, "validation part must have at least 33 characters"),
        (b"a" * 1000 + b"\xff", "byte 0xFF at offset 1000"),
        (None, "no text file at bad.txt"),
    ],
)
def test_bad_text_is_one_line_and_loses_nothing(
    content: bytes | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Empty, short, non-UTF-8 and missing texts exit with 2; prepared files stay."""
    assert run("--text", "text.txt") == 0
    before = files()
    if content is not None:
        Path("bad.txt").write_bytes(content)
    capsys.readouterr()
    assert run("--text", "bad.txt") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert files() == before


def test_block_size_decides_what_is_too_short() -> None:
    """A text too short for blocks of 32 may do for blocks of 16; below 1 is refused."""
    Path("short.txt").write_text("ab" * 300, encoding="utf-8")
    assert run("--text", "short.txt", "--block-size", "16") == 0
    with pytest.raises(SystemExit, match="2"):
        run("--block-size", "0")


def test_a_text_of_one_character_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With one character in the vocabulary there is nothing to predict: the loss is always 0."""
    Path("one.txt").write_text("a" * 2000, encoding="utf-8")
    assert run("--text", "one.txt") == 2
    assert "two different characters or more, got 'a' only" in capsys.readouterr().err


@pytest.mark.parametrize("failing_call", range(1, 6))
def test_full_disk_replaces_no_file(
    failing_call: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of the five files no longer fits, all five old ones stay, and nothing is left."""
    assert run("--text", "text.txt") == 0
    before, real_fsync, calls = files(), os.fsync, 0

    def fsync(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == failing_call:
            raise OSError(errno.ENOSPC, "No space left on device")
        real_fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert run() == 2
    assert "No space left on device: " in capsys.readouterr().err
    assert files() == before


def test_unwritable_folder_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """An output folder that is a file cannot be written to."""
    assert run("--text", "text.txt", "--out-dir", "text.txt") == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Not a directory: ")
    assert f"{Path('text.txt', 'data', 'encoded')}; check the name" in error
    assert error.count("\n") == 1
    assert Path("text.txt").read_bytes() == TEXT.encode()


def test_help_does_not_import_torch() -> None:
    """Help is there at once."""
    code = (
        "import sys, runpy\nsys.argv = ['prepare', '--help']\n"
        "try: runpy.run_module('minigpt.prepare', run_name='__main__')\n"
        "except SystemExit as end: assert not end.code\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "--wikitext DIR" in done.stdout
