"""Files: what the pipeline reads is there, whole, of the right kind, and current.

Why it matters
    A truncated corpus, an error page saved under a data file's name, or ids that were
    encoded before the text changed: each trains without an error, on something else
    than you think.

How it is measured
    Each path must be a file that is not empty. Known kinds are judged by their content:
    the size that a .npy or .safetensors header promises, the index and checksums of a
    .pt archive, JSON that parses, text that is UTF-8 from its first byte to its last. A
    `meta.json` beside encoded ids is compared with them (how many, which type) and with
    the text and the tokenizer among the files (their fingerprints). Where train_text is
    given, a text file is compared with it, and the usual ways of reading a file wrongly
    are tried until one fits. Two splits must not hold the same bytes. Big files are
    read in pieces.

What it cannot see
    Whether the content is good: that is for `text` and `range`. Raw .bin ids carry
    neither type nor length; only an odd size shows. Flipped bits in .npy, .safetensors
    and text, which carry no checksum of their own. Ids that are older than their text
    get a warning and no more, because copying changes dates; a card with fingerprints
    beside them decides.

Break it
    python -m exercises.break_files
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from diagnostics._file_formats import TEXT_SUFFIXES, FileFault, find_fault, npy_header
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._tokenizer import fingerprint_of

TEXT_COMPARED_MAX = 64 * 2**20  # bytes up to which a text file is compared with train_text
ENCODED_NAMES = ("train_ids", "val_ids", "test_ids", "train", "val", "test")
AGE_SECONDS = 60  # one run may take as long to write its files
COPY_MIN, COPY_MAX = 64, 2**30  # bytes; tiny files can be equal by chance, huge ones take seconds
_SPLITS = {
    "train": {"train", "training"},
    "validation": {"val", "valid", "validation", "dev"},
    "test": {"test"},
}
_CARD_MAX = 2**20  # bytes; a card is small
_PREPARE = "python -m minigpt.prepare"
_TRAIN = "python -m minigpt.train"

Path_ = str | os.PathLike[str]


def check_files(paths: Path_ | Iterable[Path_], *, text: str | None = None) -> CheckResult:
    """Check that files exist, are whole, and belong together.

    paths: one path or several; a missing file is a FAIL, not an exception.
    text: the text that was read from one of them; None: not compared.
    Raises ValueError when there is no path at all.
    """
    several = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    if not several:
        raise ValueError("paths must name at least one file, got none")
    files = [Path(path) for path in several]
    warning: CheckResult | None = None
    for result in _judgements(files, text):
        if result.failed:
            return result
        warning = result if warning is None else warning
    if warning is not None:
        return warning
    sizes = measure_sizes(files)
    return CheckResult(
        check="files",
        status=Status.PASS,
        reason="files.ok",
        claim=say(
            "{count:file is|files are} there and whole: {sizes}",
            count=len(files),
            sizes=", ".join(f"{Path(path).name} {size:,} bytes" for path, size in sizes.items()),
        ),
        numbers={"bytes": sizes},
    )


def run(probe: Probe) -> CheckResult:
    """Judge the files that the pipeline names."""
    if not probe.pipeline.files:
        raise MissingPartError("files", why="no paths are given")
    return check_files(probe.pipeline.files, text=probe.pipeline.train_text)


def measure_sizes(paths: Iterable[Path_]) -> dict[str, int]:
    """Return the size in bytes of each path that is a file."""
    files = [Path(path) for path in paths]
    return {str(path): path.stat().st_size for path in files if path.is_file()}


def _judgements(files: list[Path], text: str | None) -> Iterable[CheckResult]:
    """Yield what is not in order: each file by itself first, then together."""
    for path in files:
        result = _judge_presence(path)
        if result is not None:
            yield result
            continue
        try:
            fault = find_fault(path)
        except OSError as error:
            fault = FileFault(
                "files.unreadable", say("cannot be read: {error}", error=error.strerror)
            )
        if fault is not None:
            yield _result_of(path, _beside_text(path, fault, text))
    yield from _judge_copies(files)
    for path in files:
        if path.is_file() and path.name in _encoded_names(path):
            yield from _judge_card(path, files)
    if text:
        yield from _judge_text(files, text)


def _beside_text(path: Path, fault: FileFault, text: str | None) -> FileFault:
    """A file in another encoding may have been read as what it is, or with pieces dropped."""
    if fault.reason != "files.not_utf8" or not text or path.stat().st_size > TEXT_COMPARED_MAX:
        return fault
    raw = path.read_bytes()
    if any(_contains(raw.decode(codec, "replace"), text) for codec in ("latin-1", "cp1252")):
        return dataclasses.replace(fault, warn=True)
    for errors in ("ignore", "replace"):
        if _contains(raw.decode("utf-8", errors), text):
            return FileFault(
                "files.text_lost",
                say("holds characters that are missing in train_text")
                if errors == "ignore"
                else say("holds characters that are U+FFFD in train_text"),
                say(
                    'errors="{errors}" hides that the file is no UTF-8; it may be latin-1',
                    errors=errors,
                ),
            )
    return fault


def _judge_presence(path: Path) -> CheckResult | None:
    if not path.exists():
        command = _command_for(path)
        return verdict(
            Status.FAIL,
            "files.missing",
            say("there is no file at {path}", path=str(path)),
            measured=say("no file"),
            expected=say("a file, seen from the folder where the command runs"),
            next_step=say("create it with {command}", command=command)
            if command
            else say("create it, or correct the path in Pipeline(files=...)"),
            numbers={"path": str(path)},
        )
    if path.is_dir():
        return verdict(
            Status.FAIL,
            "files.folder",
            say("{path} is a folder, not a file", path=str(path)),
            expected=say("the path of a file"),
            next_step=say("name the file inside it: {names}", names=_names_in(path)),
            numbers={"path": str(path)},
        )
    if path.is_file() and path.stat().st_size == 0:
        return _result_of(
            path,
            FileFault(
                "files.empty",
                say("is empty (0 bytes)"),
                say("the program that wrote it was stopped before its first byte"),
            ),
        )
    return None


def _judge_card(path: Path, files: list[Path]) -> Iterable[CheckResult]:
    """Compare encoded ids with the card beside them, and the card with text and tokenizer."""
    card = read_card(path.with_name("meta.json"))
    if not card:
        yield from _judge_age(path, files)
        return
    split = path.stem.removesuffix("_ids")
    counts = card.get("counts")
    wanted = counts.get(split) if isinstance(counts, Mapping) else None
    found = _count_ids(path, card.get("dtype"))
    if isinstance(wanted, int) and found is not None and found != wanted:
        yield _stale(
            path,
            say("holds {found:id|ids}, and meta.json says {wanted}", found=found, wanted=wanted),
            say("one of the two was written by another run"),
        )
    for other in files:
        recorded, actual, what = _fingerprints(other, card)
        if recorded is not None and actual is not None and recorded != actual:
            yield _stale(
                path,
                say(
                    "was made with another {what} than {other}: fingerprint {recorded}..., "
                    "not {actual}...",
                    what=what,
                    other=other.name,
                    recorded=recorded[:12],
                    actual=actual[:12],
                ),
                say("the {what} changed, and the ids were not made again", what=what),
            )


def _judge_age(path: Path, files: list[Path]) -> Iterable[CheckResult]:
    """Without a card only the dates speak, and copying changes them: a warning at most."""
    written = path.stat().st_mtime
    for other in files:
        is_source = other.suffix in TEXT_SUFFIXES or "tokenizer" in other.name
        if is_source and other.is_file() and other.stat().st_mtime - written > AGE_SECONDS:
            told = say("is older than {other}, which it was made from", other=other.name)
            cause = say("{other} changed, and the ids were not made again", other=other.name)
            yield _result_of(path, FileFault("files.older", told, cause, warn=True))


def _judge_copies(files: list[Path]) -> Iterable[CheckResult]:
    """Two splits with the same bytes: validation on what was trained on."""
    by_size: dict[int, list[Path]] = {}
    for path in dict.fromkeys(files):
        if path.is_file() and COPY_MIN <= path.stat().st_size <= COPY_MAX:
            by_size.setdefault(path.stat().st_size, []).append(path)
    for same_size in by_size.values():
        for first, second in itertools.combinations(same_size, 2):
            splits = {_split_of(first), _split_of(second)} - {""}
            if (
                len(splits) == 2
                and not first.samefile(second)
                and _sha256(first) == _sha256(second)
            ):
                told = say("holds the same bytes as {other}", other=first.name)
                cause = say("one split was copied or written over the other")
                yield _result_of(second, FileFault("files.identical", told, cause))


def _split_of(path: Path) -> str:
    words = set(re.split(r"[^a-z]+", path.stem.lower()))
    return next((split for split, names in _SPLITS.items() if words & names), "")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_card(path: Path) -> dict[str, Any]:
    """Return the JSON object in a small file, or an empty one when there is none to read."""
    try:
        if path.stat().st_size > _CARD_MAX:
            return {}
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _fingerprints(path: Path, card: dict[str, Any]) -> tuple[str | None, str | None, str]:
    """Return (fingerprint on the card, fingerprint of the file, what the file is)."""
    if path.suffix == ".json" and path.name != "meta.json":
        chars = read_card(path).get("chars")
        known = isinstance(chars, list) and all(isinstance(char, str) for char in chars)
        actual = fingerprint_of(chars) if known and chars else None
        return _text_or_none(card.get("tokenizer_fingerprint")), actual, "tokenizer"
    recorded = _text_or_none(card.get("corpus_fingerprint"))
    # a corpus may be joined from several files; only the one that the card names is compared
    named = path.suffix in TEXT_SUFFIXES and path.name in str(card.get("source", ""))
    if recorded is None or not named or not path.is_file() or _names_several(card):
        return None, None, "text"
    return recorded, _sha256(path), "text"


def _judge_text(files: list[Path], text: str) -> Iterable[CheckResult]:
    """Find out whether train_text was read from a file as the file has it."""
    for path in files:
        if path.suffix not in TEXT_SUFFIXES or not path.is_file():
            continue
        if path.stat().st_size > TEXT_COMPARED_MAX:
            continue
        raw = path.read_bytes()
        try:
            content = raw.decode("utf-8")
        except UnicodeDecodeError:
            continue  # `_beside_text` has judged it
        if _contains(content, text):
            continue
        for reason, told, cause, reading in _readings(raw, content):
            if reading != content and _contains(reading, text):
                fault = FileFault(
                    reason, Text(told, {}), Text(cause, {}), reason == "files.newlines_read"
                )
                yield _result_of(path, fault)
                break


def _readings(raw: bytes, content: str) -> Iterable[tuple[str, str, str, str]]:
    """Yield the usual ways of reading a file wrongly, and the text that each of them gives."""
    yield (
        "files.newlines_read",
        "has line ends CR LF that train_text has as LF",
        'open(path) translates line ends; newline="" keeps them',
        content.replace("\r\n", "\n").replace("\r", "\n"),
    )
    for codec in ("cp1252", "latin-1"):
        yield (
            "files.wrong_encoding",
            f"is UTF-8, and train_text was read from it as {codec}",
            'open(path) without encoding="utf-8" takes the system\'s own',
            raw.decode(codec, "replace"),
        )
    for codec in ("ascii", "utf-8"):
        yield (
            "files.text_lost",
            "holds characters that are missing in train_text",
            'errors="ignore" drops every byte that does not decode',
            raw.decode(codec, "ignore"),
        )
    yield (
        "files.text_lost",
        "holds characters that are U+FFFD in train_text",
        'errors="replace" puts one mark in place of every byte that does not decode',
        raw.decode("ascii", "replace"),
    )


def _contains(content: str, text: str) -> bool:
    """Whether one of the two lies in the other; a corpus may be joined from several files."""
    return text in content or content in text


def _count_ids(path: Path, dtype: Any) -> int | None:
    if path.suffix == ".npy":
        try:
            shape, _, _ = npy_header(path)
        except (ValueError, EOFError, OSError):
            return None
        return shape[0] if len(shape) == 1 else None
    sizes = {"uint8": 1, "uint16": 2, "int16": 2, "uint32": 4, "int32": 4, "int64": 8}
    if path.suffix == ".bin" and dtype in sizes:
        return path.stat().st_size // sizes[dtype]
    return None


def _result_of(path: Path, fault: FileFault) -> CheckResult:
    command = _command_for(path)
    return CheckResult(
        check="files",
        status=Status.WARN if fault.warn else Status.FAIL,
        reason=fault.reason,
        claim=say("{path} {told}", path=str(path), told=fault.told),
        measured=say("{size:byte|bytes}", size=path.stat().st_size),
        expected=_EXPECTED.get(fault.reason, say("a whole file of its kind")),
        causes=() if fault.cause is None else (fault.cause,),
        next_step=say("create it again with {command}", command=command)
        if command
        else _NEXT.get(fault.reason, say("fetch or create the file again")),
        numbers={"path": str(path), "bytes": path.stat().st_size},
    )


_EXPECTED = {
    "files.replacement_characters": say("no U+FFFD"),
    "files.mojibake": say("one character where the writer meant one"),
    "files.mixed_newlines": say("one kind of line end"),
    "files.byte_order_mark": say("text from the first character on"),
    "files.not_utf8": say("UTF-8 from the first byte to the last"),
    "files.wrong_encoding": say("the text as the file has it"),
    "files.text_lost": say("the text as the file has it"),
    "files.newlines_read": say("the text as the file has it"),
    "files.older": say("ids that are younger than text and tokenizer"),
    "files.identical": say("splits that share nothing"),
    "files.stale": say("ids, tokenizer and text of one run"),
}
_NEXT = {
    "files.lfs_pointer": say("git lfs pull"),
    "files.wrong_encoding": say('open(path, encoding="utf-8")'),
    "files.text_lost": say("open(path, encoding=...) with the file's own, without errors=..."),
    "files.newlines_read": say('open(path, encoding="utf-8", newline="")'),
    "files.replacement_characters": say(
        "go back to the source of the text, and decode it as it is"
    ),
    "files.mojibake": say('text.encode("cp1252").decode("utf-8"), and look at the result'),
    "files.mixed_newlines": say("decide on one line end, and write the text with it"),
    "files.byte_order_mark": say('open(path, encoding="utf-8-sig")'),
    "files.not_utf8": say("find its encoding, and save it as UTF-8"),
    "files.unreadable": say("look at the file's permissions"),
    "files.stale": say("encode the text again"),
    "files.older": say("encode the text again, and store its fingerprint beside the ids"),
    "files.identical": say("split the text again, and write each part to its own path"),
}


def _stale(path: Path, told: Text, cause: Text) -> CheckResult:
    return _result_of(path, FileFault("files.stale", told, cause))


def _command_for(path: Path) -> str:
    """Return the command that makes a file of the default layout, or nothing."""
    if path.parent.name == "encoded" or path.name == "char_tokenizer.json":
        return _PREPARE
    return _TRAIN if path.parent.name == "checkpoints" else ""


def _encoded_names(path: Path) -> set[str]:
    return {f"{name}{path.suffix}" for name in ENCODED_NAMES}


def _names_in(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "") or "it holds none"


def _names_several(card: dict[str, Any]) -> bool:
    source = card.get("source", "")
    return not isinstance(source, str) or any(mark in source for mark in (",", ";", " + "))


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None
