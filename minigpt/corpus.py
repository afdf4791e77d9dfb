"""Where texts come from, and how they are cut into training, validation and test text.

Text is read exactly as it is stored: UTF-8 without replacements, line ends untouched. Anything
else changes the vocabulary from one machine to the next, or loses characters without a word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

FRACTIONS = (0.9, 0.05, 0.05)  # train, validation, test
SPLIT_NAMES = {
    "train": "train",
    "valid": "validation",
    "validation": "validation",
    "val": "validation",
    "test": "test",
}
# wiki.train.tokens, wiki.valid.raw, train.txt, wikitext-2-raw-v1.test.txt, test
SPLIT_FILE = re.compile(
    r"(?:wiki[\w-]*[._-])?(?P<split>train|validation|valid|val|test)(?:\.(?:tokens|raw|txt))*",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A text in three parts; `notes` say what a person should know about how it was cut."""

    name: str
    train: str
    validation: str
    test: str
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """All three parts, one after the other."""
        return self.train + self.validation + self.test


def guide() -> Corpus:
    """Return the built-in guide to debugging a small GPT, which is course text and corpus."""
    return cut_corpus("the built-in guide", read_text(data_path("guide.txt")))


def cut_corpus(name: str, text: str) -> Corpus:
    """Cut one text in order: the first 90 % train, 5 % validation, the last 5 % test."""
    train, validation, test = split_text(text, FRACTIONS)
    return Corpus(name=name, train=train, validation=validation, test=test)


def split_text(text: str, fractions: Sequence[float] = FRACTIONS) -> tuple[str, ...]:
    """Cut `text` in order into one part per fraction; the parts joined are the text again.

    Neighbours stay together, because a random split would put the end of a sentence into the
    validation text and its start into the training text. Raises `ValueError` unless the fractions
    are positive and add up to 1.
    """
    if any(not fraction > 0 for fraction in fractions) or not abs(sum(fractions) - 1) < 1e-9:
        raise ValueError(f"fractions must be positive and add up to 1, got {tuple(fractions)}")
    ends = [round(len(text) * share) for share in accumulate(fractions)]
    return tuple(text[start:end] for start, end in pairwise([0, *ends]))


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a UTF-8 file, line ends as they are, without a byte order mark.

    Raises `OSError` when it cannot be read and `ValueError` when it is not UTF-8; the message
    names the first byte that does not fit and where it is.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"no text file at {path}; check the name") from None
    try:
        return content.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        guess = " (it looks like UTF-16)" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        raise ValueError(
            f"{path} must be UTF-8 text, got byte 0x{content[error.start]:02X} at offset "
            f"{error.start}{guess}; save it as UTF-8"
        ) from None


def data_path(name: str) -> Path:
    """Return where the built-in file `name` lies.

    An installed wheel carries the files inside the package, as `minigpt/_data`; a checkout and an
    editable install have them in the folder `data` beside the package.
    """
    package = Path(__file__).resolve().parent
    candidates = (package / "_data" / name, package.parent / "data" / name)
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    places = " nor at ".join(map(str, candidates))
    raise FileNotFoundError(f"no built-in file at {places}; install the package again")


def python_docs() -> str:
    """Return the topics of Python's own documentation, sorted by name, one after the other.

    About 465,000 characters that come with the interpreter; the exact text depends on its version.
    Raises `FileNotFoundError` where a distribution has left them out.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise FileNotFoundError(
            "this Python comes without pydoc_data.topics; use another --source"
        ) from None
    return "\n".join(topics[name] for name in sorted(topics))


def wikitext(folder: str | os.PathLike[str]) -> Corpus:
    """Return WikiText from the files in `folder` or below, under any of their usual names.

    Where several folders hold such files, the one with the most splits is taken. A missing split
    is cut from a neighbour, and the notes say so: a missing train file from the validation file
    (90 % of it), a missing validation file from the end of the train file (5 %), a missing test
    file from the end of the validation text (half). Raises `FileNotFoundError` when there are too
    few files for that.
    """
    texts = {split: read_text(path) for split, path in _find_splits(Path(folder)).items()}
    notes = []
    if "train" not in texts:
        texts["train"], texts["validation"] = split_text(texts["validation"], (0.9, 0.1))
        notes.append(
            "no train file: the first 90 % of the validation file is used for training and its "
            "last 10 % for validation, so losses do not compare with published ones"
        )
    if "validation" not in texts:
        texts["train"], texts["validation"] = split_text(texts["train"], (0.95, 0.05))
        notes.append("no validation file: the last 5 % of the train file is used for it")
    if "test" not in texts:
        texts["validation"], texts["test"] = split_text(texts["validation"], (0.5, 0.5))
        notes.append("no test file: the second half of the validation text is used for it")
    return Corpus(name=f"WikiText in {folder}", notes=tuple(notes), **texts)


def _find_splits(folder: Path) -> dict[str, Path]:
    """Return {split: file}; guarantees a train file, or a validation and a test file."""
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder at {folder}; give the one with the WikiText files")
    found: dict[Path, dict[str, Path]] = {}
    for path in sorted(folder.rglob("*")):
        match = SPLIT_FILE.fullmatch(path.name)
        if match and path.is_file():
            split = SPLIT_NAMES[match["split"].lower()]
            found.setdefault(path.parent, {}).setdefault(split, path)
    # Most splits first; among equals the folder nearest to the one that was asked for.
    ranked = sorted(found, key=lambda place: (-len(found[place]), len(place.parts), place))
    best = found[ranked[0]] if ranked else {}
    if "train" not in best and not {"validation", "test"} <= best.keys():
        names = ", ".join(path.name for path in best.values()) or "none"
        raise FileNotFoundError(
            f"{folder} must hold a train file, or a validation and a test file (wiki.train.tokens, "
            f"train.txt, valid.txt, ...), got {names}"
        )
    return best
