"""Files that are missing, cut, foreign, damaged or of another run are named; whole ones pass."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagnostics import Pipeline, Status, check_files, diagnose
from diagnostics._file_formats import decode_error, npy_header
from diagnostics._tokenizer import fingerprint_of
from diagnostics.files import measure_sizes
from tests.diagnostics.tiny import Bigram


def _write(path: Path, content: bytes | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _npy(path: Path, count: int = 100) -> Path:
    np.save(path, np.arange(count, dtype=np.uint16))
    return path


def _pt(path: Path) -> Path:
    torch.save({"weight": torch.arange(1000.0)}, path)
    return path


def _safetensors(path: Path, size: int = 40, promised: int = 40) -> Path:
    entry = {"dtype": "F32", "shape": [promised // 4], "data_offsets": [0, promised]}
    header = json.dumps({"weight": entry, "__metadata__": {"card": "{}"}}).encode()
    return _write(path, struct.pack("<Q", len(header)) + header + bytes(size))


def _cut(path: Path, count: int) -> Path:
    path.write_bytes(path.read_bytes()[:-count])
    return path


def test_whole_files_of_every_kind_pass(tmp_path: Path) -> None:
    """One healthy file per format; the claim gives names and sizes."""
    files = [
        _npy(tmp_path / "a.npy"),
        _pt(tmp_path / "a.pt"),
        _safetensors(tmp_path / "a.safetensors"),
        _write(tmp_path / "a.json", '{"chars": ["a"]}'),
        _write(tmp_path / "a.jsonl", '{"a": 1}\n\n{"a": 2}\n'),
        _write(tmp_path / "a.txt", "caf\u00e9 \U0001f600\n\u201cquoted\u201d\n"),
        _write(tmp_path / "a.bin", bytes(6)),
        _write(tmp_path / "a.unknown", b"\xff\xfe\x00"),
    ]
    np.savez(tmp_path / "a.npz", ids=np.arange(5))
    result = check_files([*files, tmp_path / "a.npz"])
    assert (result.status, result.reason) == (Status.PASS, "files.ok")
    assert "a.npy 328 bytes" in result.claim  # 128 of header and 100 ids of 2 bytes
    assert result.numbers["bytes"][str(files[0])] == 328


def test_sizes_are_measured_of_files_only(tmp_path: Path) -> None:
    """A missing path has no size."""
    path = _write(tmp_path / "a.txt", "abc")
    assert measure_sizes([path, tmp_path / "no"]) == {str(path): 3}


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tokenizer/char_tokenizer.json", "python -m minigpt.prepare"),
        ("data/encoded/train_ids.npy", "python -m minigpt.prepare"),
        ("checkpoints/mini_gpt_best.safetensors", "python -m minigpt.train"),
        ("mine.txt", ""),
    ],
)
def test_a_missing_file_is_named_with_the_command_that_makes_it(
    tmp_path: Path, name: str, command: str
) -> None:
    """For the default paths the next step is a command to copy."""
    result = check_files(tmp_path / name)
    assert (result.status, result.reason) == (Status.FAIL, "files.missing")
    assert str(tmp_path / name) in result.claim
    assert command in result.next_step


def test_a_folder_and_an_empty_file_are_named(tmp_path: Path) -> None:
    """Neither is a file with content."""
    _write(tmp_path / "folder" / "inside.txt", "abc")
    result = check_files(tmp_path / "folder")
    assert result.reason == "files.folder"
    assert "inside.txt" in result.next_step
    assert check_files(_write(tmp_path / "a.json", "")).reason == "files.empty"


def _broken(name: str, folder: Path) -> Path:
    """Make one broken file by its name."""
    text = folder / "a.txt"
    flipped = _pt(folder / "flipped.pt") if name == "flipped.pt" else folder / "unused"
    if name == "flipped.pt":
        content = bytearray(flipped.read_bytes())
        content[len(content) // 2] ^= 1
        return _write(flipped, bytes(content))
    makers: dict[str, Any] = {
        "cut.npy": lambda: _cut(_npy(folder / "a.npy"), 3),
        "long.npy": lambda: _write(folder / "b.npy", _npy(folder / "a.npy").read_bytes() + b"x"),
        "text.npy": lambda: _write(folder / "a.npy", "1, 2, 3"),
        "zip.safetensors": lambda: _write(
            folder / "a.safetensors", _pt(folder / "a.pt").read_bytes()
        ),
        "cut.safetensors": lambda: _safetensors(folder / "a.safetensors", size=30),
        "long.safetensors": lambda: _safetensors(folder / "a.safetensors", size=48),
        "header.safetensors": lambda: _write(
            folder / "a.safetensors", struct.pack("<Q", 10**6) + b"{}"
        ),
        "short.safetensors": lambda: _write(folder / "a.safetensors", b"abc"),
        "cut.pt": lambda: _cut(_pt(folder / "a.pt"), 400),
        "text.pt": lambda: _write(folder / "a.pt", "hello"),
        "cut.json": lambda: _write(folder / "a.json", '{"chars": ["a", "b'),
        "cut2.json": lambda: _write(folder / "a.json", '{"chars": ["a",'),
        "bad.json": lambda: _write(folder / "a.json", '{"chars": [a, "b"]}'),
        "cut.jsonl": lambda: _write(folder / "a.jsonl", '{"a": 1}\n{"a": '),
        "latin.txt": lambda: _write(text, "caf\u00e9 noir".encode("latin-1")),
        "cut.txt": lambda: _write(text, "caf\u00e9".encode()[:-1]),
        "utf16.txt": lambda: _write(text, "abc".encode("utf-16")),
        "nul.txt": lambda: _write(text, "abc\0\0\0"),
        "pointer.txt": lambda: _write(
            text, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
        ),
        "page.npy": lambda: _write(folder / "a.npy", "\n<!DOCTYPE html><html>404</html>"),
        "objects.npy": lambda: np.save(folder / "a.npy", np.array([{}, []], dtype=object)),
    }
    made = makers[name]()
    return made if made is not None else folder / "a.npy"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("cut.npy", "truncated"),
        ("long.npy", "excess_bytes"),
        ("text.npy", "wrong_format"),
        ("objects.npy", "pickled_objects"),
        ("page.npy", "html"),
        ("zip.safetensors", "wrong_format"),
        ("cut.safetensors", "truncated"),
        ("long.safetensors", "excess_bytes"),
        ("header.safetensors", "wrong_format"),
        ("short.safetensors", "wrong_format"),
        ("cut.pt", "truncated"),
        ("flipped.pt", "corrupt"),
        ("text.pt", "wrong_format"),
        ("cut.json", "truncated"),
        ("cut2.json", "truncated"),
        ("bad.json", "wrong_format"),
        ("cut.jsonl", "truncated"),
        ("latin.txt", "not_utf8"),
        ("cut.txt", "truncated"),
        ("utf16.txt", "not_utf8"),
        ("nul.txt", "nul_bytes"),
        ("pointer.txt", "lfs_pointer"),
    ],
)
def test_each_broken_file_fails_by_its_name(tmp_path: Path, name: str, reason: str) -> None:
    """The content decides, and the claim names the path."""
    path = _broken(name, tmp_path)
    result = check_files([path])
    assert (result.status, result.reason) == (Status.FAIL, f"files.{reason}")
    assert path.name in result.claim
    assert result.numbers["bytes"] == path.stat().st_size


def test_a_truncated_array_is_named_with_both_sizes(tmp_path: Path) -> None:
    """100 ids of 2 bytes after 128 bytes of header, less 3 bytes."""
    result = check_files(_cut(_npy(tmp_path / "a.npy"), 3))
    assert "has 325 bytes, but its header promises 328 (100 values of uint16)" in result.claim


def test_a_zip_under_another_suffix_is_recognised(tmp_path: Path) -> None:
    """torch.save to a .safetensors path."""
    result = check_files(_broken("zip.safetensors", tmp_path))
    assert "zip archive" in result.causes[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("abc\ufffddef", "replacement_characters"),
        ("na\u00c3\u00afve caf\u00c3\u00a9 \u00c3\u00a0", "mojibake"),
        ("\u00e2\u20ac\u2122 \u00e2\u20ac\u0153 \u00e2\u20ac\u009d", "mojibake"),
        ("one\r\ntwo\nthree", "mixed_newlines"),
        ("one\rtwo\nthree", "mixed_newlines"),
        ("\ufeffabc", "byte_order_mark"),
    ],
)
def test_text_that_may_be_meant_warns(tmp_path: Path, content: str, reason: str) -> None:
    """Dirty text exists: a person has to judge."""
    result = check_files(_write(tmp_path / "a.txt", content))
    assert (result.status, result.reason) == (Status.WARN, f"files.{reason}")


@pytest.mark.parametrize("content", ["one\r\ntwo\r\n", "one\ntwo\n", "\u00c3 alone, \u00e9t\u00e9"])
def test_clean_text_passes(tmp_path: Path, content: str) -> None:
    """One kind of line end, whichever; a capital A with tilde is a letter."""
    assert check_files(_write(tmp_path / "a.txt", content)).status is Status.PASS


def test_a_fail_comes_before_a_warning(tmp_path: Path) -> None:
    """The first file only warns, the second is missing."""
    warns = _write(tmp_path / "a.txt", "\ufeffabc")
    assert check_files([warns, tmp_path / "no.txt"]).reason == "files.missing"


@pytest.mark.parametrize("offset", [0, 5, 2**20 - 1, 2**20, 2**20 + 3])
def test_the_offset_of_a_bad_byte_is_exact_across_pieces(tmp_path: Path, offset: int) -> None:
    """Files are read in pieces of a mebibyte, and the offset counts from the file's start."""
    content = b"a" * offset + b"\xff" + b"b" * 10
    assert decode_error(_write(tmp_path / "a.txt", content)) == (offset, 0xFF, False)


def test_a_character_on_the_border_of_two_pieces_is_whole(tmp_path: Path) -> None:
    """Half of it lies in each piece; so does half of a CR LF."""
    path = _write(tmp_path / "a.txt", b"a" * (2**20 - 1) + "\u00e9\r\nb\r\n".encode())
    assert decode_error(path) is None
    path.write_bytes(b"a" * (2**20 - 1) + b"\r\nb\r\n")
    assert check_files(path).status is Status.PASS


def _encoded(folder: Path, **card: Any) -> list[Path]:
    """Write a text, its tokenizer, its ids, and the card beside the ids."""
    text = "a small text\n"
    chars = sorted(set(text))
    paths = [
        _write(folder / "corpus.txt", text),
        _write(folder / "tokenizer.json", json.dumps({"chars": chars})),
        _npy(folder / "train_ids.npy", 13),
    ]
    content = {
        "tokenizer_fingerprint": fingerprint_of(chars),
        "corpus_fingerprint": hashlib.sha256(text.encode()).hexdigest(),
        "source": "corpus.txt",
        "dtype": "uint16",
        "counts": {"train": 13},
        **card,
    }
    _write(folder / "meta.json", json.dumps(content))
    return paths


def test_ids_text_and_tokenizer_of_one_run_pass(tmp_path: Path) -> None:
    """The card's fingerprints are those of the files."""
    assert check_files(_encoded(tmp_path)).status is Status.PASS


def test_ids_of_another_text_are_stale(tmp_path: Path) -> None:
    """The text was changed after the ids were made."""
    files = _encoded(tmp_path)
    _write(files[0], "another text\n")
    result = check_files(files)
    assert (result.status, result.reason) == (Status.FAIL, "files.stale")
    assert "another text than corpus.txt" in result.claim


def test_ids_of_another_tokenizer_are_stale(tmp_path: Path) -> None:
    """The same characters in another order are another tokenizer."""
    files = _encoded(tmp_path)
    chars = json.loads(files[1].read_text())["chars"]
    _write(files[1], json.dumps({"chars": chars[::-1]}))
    result = check_files(files)
    assert result.reason == "files.stale"
    assert "another tokenizer than tokenizer.json" in result.claim


def test_a_card_of_another_run_is_stale(tmp_path: Path) -> None:
    """13 ids, and the card counts 12."""
    result = check_files(_encoded(tmp_path, counts={"train": 12}))
    assert result.reason == "files.stale"
    assert "holds 13 ids, and meta.json says 12" in result.claim


def test_a_card_that_names_several_files_judges_none_of_them(tmp_path: Path) -> None:
    """A joined corpus has the fingerprint of none of its parts."""
    files = _encoded(tmp_path, source="corpus.txt, more.txt", corpus_fingerprint="0" * 64)
    assert check_files(files).status is Status.PASS


@pytest.mark.parametrize("content", ["[1, 2]", "{", '{"counts": 3, "dtype": [], "source": 1}'])
def test_a_strange_card_is_passed_over(tmp_path: Path, content: str) -> None:
    """meta.json may belong to another program."""
    files = _encoded(tmp_path)
    _write(tmp_path / "meta.json", content)
    assert check_files(files).status is Status.PASS


FRENCH = "Un caf\u00e9 cr\u00e8me \u2014 s\u2019il vous pla\u00eet.\nEncore un caf\u00e9.\n"


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (FRENCH.encode().decode("cp1252", "replace"), "wrong_encoding"),
        (FRENCH.encode().decode("latin-1"), "wrong_encoding"),
        (FRENCH.encode().decode("ascii", "ignore"), "text_lost"),
        (FRENCH.encode().decode("ascii", "replace"), "text_lost"),
    ],
)
def test_text_that_was_read_wrongly_is_recognised(tmp_path: Path, read: str, reason: str) -> None:
    """What train_text holds is what the wrong reading gives."""
    path = _write(tmp_path / "a.txt", FRENCH)
    result = check_files(path, text=read[: len(read) // 2])
    assert (result.status, result.reason) == (Status.FAIL, f"files.{reason}")


def test_translated_line_ends_warn(tmp_path: Path) -> None:
    """What open(path) does by default."""
    path = _write(tmp_path / "a.txt", "one\r\ntwo\r\n")
    result = check_files(path, text="one\ntwo\n")
    assert (result.status, result.reason) == (Status.WARN, "files.newlines_read")


@pytest.mark.parametrize("text", [FRENCH, FRENCH[:10], "more " + FRENCH, "something else"])
def test_text_read_rightly_or_from_elsewhere_passes(tmp_path: Path, text: str) -> None:
    """A part of the file, or a corpus joined from several, or no relation at all."""
    assert check_files(_write(tmp_path / "a.txt", FRENCH), text=text).status is Status.PASS


def test_headers_are_read_without_the_data(tmp_path: Path) -> None:
    """Shape, type and start of the data."""
    assert npy_header(_npy(tmp_path / "a.npy")) == ((100,), np.dtype("uint16"), 128)


def test_in_a_pipeline(tmp_path: Path) -> None:
    """Without files it skips and names the argument; missing ones fail."""
    skipped = diagnose(Pipeline(Bigram(5)), only=["files"])["files"]
    assert (skipped.status, skipped.numbers["missing"]) == (Status.SKIP, ["files"])
    failed = diagnose(Pipeline(Bigram(5), files=[tmp_path / "no"]), only=["files"])["files"]
    assert failed.reason == "files.missing"


def test_no_path_at_all_is_an_error() -> None:
    """An empty list would pass vacuously."""
    with pytest.raises(ValueError, match="at least one"):
        check_files([])


@pytest.mark.parametrize(
    ("names", "same", "reason"),
    [
        (("train_ids.npy", "val_ids.npy"), True, "identical"),
        (("my_training.txt", "my-dev.txt"), True, "identical"),
        (("train_ids.npy", "val_ids.npy"), False, "ok"),
        (("train_ids.npy", "train_backup.npy"), True, "ok"),
        (("one.npy", "two.npy"), True, "ok"),
    ],
)
def test_two_splits_must_not_be_the_same(
    tmp_path: Path, names: tuple[str, str], same: bool, reason: str
) -> None:
    """Equal bytes under the names of two splits; a backup of one split is fine."""
    content = "".join(f"line {i}\n" for i in range(50)).encode()
    paths = [tmp_path / name for name in names]
    for path, extra in zip(paths, (0, 0 if same else 1), strict=True):
        if path.suffix == ".npy":
            np.save(path, np.arange(100) + extra)
        else:
            path.write_bytes(content)
    assert check_files(paths).reason == f"files.{reason}"


def test_ids_older_than_their_text_warn_where_no_card_decides(tmp_path: Path) -> None:
    """Two minutes between them; a card beside the ids makes the dates irrelevant."""
    files = _encoded(tmp_path)
    os.utime(files[2], (1_000_000, 1_000_000))
    os.utime(files[0], (1_000_120, 1_000_120))
    os.utime(files[1], (1_000_000, 1_000_000))
    assert check_files(files).status is Status.PASS
    (tmp_path / "meta.json").unlink()
    result = check_files(files)
    assert (result.status, result.reason) == (Status.WARN, "files.older")
    assert "older than corpus.txt" in result.claim
    os.utime(files[0], (1_000_030, 1_000_030))
    assert check_files(files).status is Status.PASS


@pytest.mark.parametrize(
    ("how", "status", "reason"),
    [
        ({"encoding": "latin-1"}, Status.WARN, "files.not_utf8"),
        ({"encoding": "utf-8", "errors": "ignore"}, Status.FAIL, "files.text_lost"),
        ({"encoding": "utf-8", "errors": "replace"}, Status.FAIL, "files.text_lost"),
    ],
    ids=["as it is", "ignore", "replace"],
)
def test_a_latin_1_file_is_judged_by_how_it_was_read(
    tmp_path: Path, how: dict[str, str], status: Status, reason: str
) -> None:
    """Read as what it is, nothing is lost; read as UTF-8, its accents are gone or marked."""
    path = tmp_path / "corpus.txt"
    path.write_bytes("un caf\u00e9 pr\u00e8s d'ici\n".encode("latin-1") * 40)
    text = path.read_text(**how)
    result = check_files(path, text=text)
    assert (result.status, result.reason) == (status, reason)
