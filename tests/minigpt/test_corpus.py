"""Corpora: read exactly, found everywhere, cut in order."""

import shutil
from pathlib import Path

import pytest

from minigpt import corpus
from minigpt.corpus import (
    cut_corpus,
    data_path,
    guide,
    python_docs,
    read_text,
    split_text,
    wikitext,
)


def test_text_is_cut_in_order() -> None:
    """100 characters become 90, 5 and 5, in order."""
    text = "".join(map(chr, range(1000, 1100)))
    parts = cut_corpus("hundred", text)
    assert (parts.train, parts.validation, parts.test) == (text[:90], text[90:95], text[95:])
    assert parts.text == text


@pytest.mark.parametrize("length", range(0, 40))
def test_no_character_is_lost_by_cutting(length: int) -> None:
    """Rounding never drops or repeats a character."""
    text = "abcdefghij" * 4
    assert "".join(split_text(text[:length], (1 / 3, 1 / 3, 1 / 3))) == text[:length]


@pytest.mark.parametrize(
    "fractions", [(0.5, 0.4), (1.5, -0.5), (1.0, 0.0), (float("nan"), 0.5), ()]
)
def test_fractions_must_add_up(fractions: tuple[float, ...]) -> None:
    """Parts that would lose text, or be empty, are refused."""
    with pytest.raises(ValueError, match="positive and add up to 1"):
        split_text("text", fractions)


def test_text_is_read_as_it_is(tmp_path: Path) -> None:
    """Line ends stay, a byte order mark at the start goes, one inside stays."""
    path = tmp_path / "text.txt"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n" + "é😀\ufeff".encode())
    assert read_text(path) == "a\r\nb\rc\né😀\ufeff"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"abc\xff", "0xFF at offset 3"), (b"\xff\xfea\x00", "offset 0 .*UTF-16"), (b"\xc3", "0xC3")],
)
def test_other_encodings_name_the_byte(content: bytes, message: str, tmp_path: Path) -> None:
    """The message gives the path, the byte and where it is."""
    (tmp_path / "text.txt").write_bytes(content)
    with pytest.raises(ValueError, match=rf"text\.txt must be UTF-8 text, got .*{message}"):
        read_text(tmp_path / "text.txt")


def test_missing_text_names_the_path(tmp_path: Path) -> None:
    """A missing file is a `FileNotFoundError` with its path."""
    with pytest.raises(FileNotFoundError, match=r"nowhere\.txt"):
        read_text(tmp_path / "nowhere.txt")


def test_guide_is_found_and_long_enough() -> None:
    """The built-in text is there and fills every split."""
    parts = guide()
    assert len(parts.text) > 80_000
    assert min(len(parts.validation), len(parts.test)) > 4_000
    assert parts.notes == ()


def test_wheel_layout_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`minigpt/_data` of a wheel is preferred, the checkout's `data` comes second."""
    package = tmp_path / "minigpt"
    for folder in (package / "_data", tmp_path / "data"):
        folder.mkdir(parents=True)
        (folder / "guide.txt").write_text(folder.name, encoding="utf-8")
    monkeypatch.setattr(corpus, "__file__", str(package / "corpus.py"))
    assert data_path("guide.txt") == package / "_data" / "guide.txt"
    shutil.rmtree(package / "_data")
    assert data_path("guide.txt") == tmp_path / "data" / "guide.txt"
    with pytest.raises(FileNotFoundError, match=r"nothing\.txt"):
        data_path("nothing.txt")


def test_python_docs_repeat() -> None:
    """The interpreter's topics are long, English and the same each time."""
    assert len(python_docs()) > 300_000
    assert 'The "assert" statement' in python_docs()
    assert python_docs() == python_docs()


def write(folder: Path, **texts: str) -> None:
    """Write files; an underscore in a keyword stands for a dot in the name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "names",
    [
        ("wiki_train_tokens", "wiki_valid_tokens", "wiki_test_tokens"),
        ("wiki_train_raw", "wiki_valid_raw", "wiki_test_raw"),
        ("train_txt", "validation_txt", "test_txt"),
        ("train_txt", "val_txt", "test_txt"),
        (
            "wikitext-2-raw-v1_train_txt",
            "wikitext-2-raw-v1_valid_txt",
            "wikitext-2-raw-v1_test_txt",
        ),
    ],
)
@pytest.mark.parametrize("below", ["", "wikitext-2-raw"])
def test_wikitext_under_its_usual_names(
    names: tuple[str, str, str], below: str, tmp_path: Path
) -> None:
    """Every usual name is found, in the folder or in one below it."""
    write(tmp_path / below, **dict(zip(names, ("T", "V", "E"), strict=True)), README_txt="no")
    parts = wikitext(tmp_path)
    assert (parts.train, parts.validation, parts.test, parts.notes) == ("T", "V", "E", ())


def test_wikitext_takes_one_folder_only(tmp_path: Path) -> None:
    """Raw and tokenised versions side by side are not mixed; the complete one wins."""
    write(tmp_path / "a", wiki_train_raw="other", wiki_test_raw="other")
    write(tmp_path / "b", wiki_train_tokens="T", wiki_valid_tokens="V", wiki_test_tokens="E")
    assert wikitext(tmp_path).text == "TVE"


@pytest.mark.parametrize(
    ("files", "expected", "note"),
    [
        (
            {"valid_txt": "v" * 90 + "w" * 10, "test_txt": "E"},
            ("v" * 90, "w" * 10, "E"),
            "no train",
        ),
        ({"train_txt": "t" * 95 + "u" * 5, "test_txt": "E"}, ("t" * 95, "u" * 5, "E"), "no valid"),
        ({"train_txt": "T", "valid_txt": "vw"}, ("T", "v", "w"), "no test"),
    ],
)
def test_missing_split_is_cut_from_a_neighbour_and_said(
    files: dict[str, str], expected: tuple[str, str, str], note: str, tmp_path: Path
) -> None:
    """A missing split is replaced in a documented way, and the notes say so."""
    write(tmp_path, **files)
    parts = wikitext(tmp_path)
    assert (parts.train, parts.validation, parts.test) == expected
    assert len(parts.notes) == 1
    assert note in parts.notes[0]


@pytest.mark.parametrize("files", [{}, {"valid_txt": "V"}, {"test_txt": "E"}])
def test_too_few_wikitext_files(files: dict[str, str], tmp_path: Path) -> None:
    """Too little to train on is an error that lists what was found."""
    write(tmp_path, **files)
    found = next(iter(files), "none").replace("_", ".")
    with pytest.raises(FileNotFoundError, match=rf"must hold a train file.*got {found}"):
        wikitext(tmp_path)
    with pytest.raises(FileNotFoundError, match="no folder"):
        wikitext(tmp_path / "nowhere")
