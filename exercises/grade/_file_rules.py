"""Which files of a submission are taken, under which name, and why the others are not.

The rules are the same for folders and zip files and on every system, so that one submission gets
one grade wherever it is graded.
"""

from __future__ import annotations

import difflib
import re
import sys
import unicodedata
from dataclasses import dataclass
from typing import Any

from diagnostics._catalog import CATALOG
from exercises.grade._notes import note
from exercises.grade._results import Kind, Note

Parts = tuple[str, ...]  # the names from the top of the submission down to the file

NAMED_FILE = re.compile(r"(fix|check)_(?:break_)?(\w+)\.py")
COPY_MARK = re.compile(
    r"(?: ?\(\d+\)| - copy|_copy)(?=\.)", re.IGNORECASE
)  # browsers, file managers
FORBIDDEN = frozenset('\\:<>"|?*')  # each one means something to some system
DEVICES = frozenset(
    ["con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))]
)
JUNK = frozenset(["__macosx", ".ds_store", "thumbs.db", "desktop.ini"])  # nobody put them there
STARTUP = frozenset(["conftest.py", "sitecustomize.py", "usercustomize.py", "pytest.ini"])
# What the grader and torch import; a student's module of that name would take its place.
IMPORTED = frozenset({
    "minigpt", "diagnostics", "exercises", "torch", "torchgen", "functorch", "numpy", "tqdm",
    "safetensors", "typing_extensions", "sympy", "mpmath", "networkx", "jinja2", "markupsafe",
    "filelock", "fsspec", "triton", "setuptools", "pkg_resources", "packaging",
})  # fmt: skip

SENTENCES = {
    "submission.slip": "{name} is left out: its name leads out of the submission",
    "submission.name": "{name} is left out: not every system can store a file of this name",
    "submission.long_name": "{name} is left out: a name may have at most {limit} bytes",
    "submission.deep": "{name} is left out: it lies more than {limit} folders deep",
    "submission.link": "{name} is left out: it is a link, and links are not followed; hand in "
    "the file itself",
    "submission.special": "{name} is left out: it is neither a file nor a folder",
    "submission.hidden": "{name} is left out: it is hidden, because its name starts with a dot",
    "submission.cache": "{name} is left out: compiled code is made anew from the source",
    "submission.startup": "{name} is left out: it would change how Python starts",
    "submission.shadow": "{name} is left out: it would take the place of the module {module}; "
    "rename it",
    "submission.duplicate": "{name} is left out: it is there {count} times; hand it in once",
    "submission.misnamed": "{name} is not graded under this name; rename it to {wanted}",
    "submission.misplaced": "{name} is not graded there; put it at the top of the submission",
    "submission.unknown_exercise": "{name} is not graded: there is no exercise {exercise}",
    "submission.too_large": "{name} is left out: with its {size} bytes the submission would be "
    "larger than {limit} bytes",
    "submission.zip_bomb": "{name} is left out: {packed} bytes of the zip unpack to {size}, more "
    "than the {limit} that are accepted",
    "submission.encrypted": "{name} is left out: it is encrypted; make a zip without a password",
    "submission.compression": "{name} is left out: it is packed with a method other than deflate; "
    "make a plain zip",
    "submission.broken_file": "{name} is left out: it cannot be unpacked; make the zip again",
    "submission.unreadable": "{name} is left out: it cannot be read ({why})",
}


@dataclass(frozen=True, kw_only=True)
class SubmissionLimits:
    """What a submission may cost before it is refused; bytes are those of the unpacked files."""

    total_bytes: int = 20_000_000
    graded_file_bytes: int = 1_000_000
    files: int = 1000
    depth: int = 8
    name_bytes: int = 200


@dataclass(frozen=True, order=True)
class Part:
    """One file that is graded: what it is, for which exercise, under which name it is stored."""

    kind: Kind
    exercise: str
    name: str


def left_out(reason: str, parts: Parts | str, **facts: Any) -> Note:
    """Return the note that says why a file is not taken."""
    name = parts if isinstance(parts, str) else "/".join(parts)
    shown = name if len(name) <= 100 else f"{name[:60]}...{name[-30:]}"
    return note(reason, SENTENCES[reason], name=shown, **facts)


def part_of(name: str) -> Part | None:
    """Return what a file at the top of the submission is graded as; None for any other file.

    fix_break_shift.py is fix_shift.py: both names of an exercise are welcome.
    """
    if name == "model.py":
        return Part(Kind.MODEL, "model", name)
    if name == "answers.json":
        return Part(Kind.ANSWERS, "answers", name)
    match = NAMED_FILE.fullmatch(name)
    if match is None or match[2] not in CATALOG:
        return None
    return Part(Kind(match[1]), match[2], f"{match[1]}_{match[2]}.py")


def split_name(name: str, limits: SubmissionLimits) -> Parts | Note:
    """Return the parts of a stored name, NFC; a note where it is not safe on every system."""
    parts = tuple(part for part in unicodedata.normalize("NFC", name).split("/") if part != ".")
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name) or name[1:2] == ":":
        return left_out("submission.slip", name)
    parts = tuple(part for part in parts if part)
    if not parts or not all(map(_is_portable, parts)):
        return left_out("submission.name", name)
    if any(len(part.encode()) > limits.name_bytes for part in parts):
        return left_out("submission.long_name", parts, limit=limits.name_bytes)
    if len(parts) > limits.depth + 1:
        return left_out("submission.deep", parts, limit=limits.depth)
    return parts


def _is_portable(part: str) -> bool:
    return (
        part.isprintable()
        and not FORBIDDEN & set(part)
        and not part.endswith((".", " "))
        and part.split(".")[0].strip().casefold() not in DEVICES
    )


def is_junk(parts: Parts) -> bool:
    """Tell whether a system put it there without asking anybody; it is passed over in silence."""
    return any(part.casefold() in JUNK or part.startswith("._") for part in parts)


def why_set_aside(parts: Parts) -> Note | None:
    """Return the note for hidden and compiled files, wherever they lie; it names the top of them.

    A hidden folder is one note, however many files it holds.
    """
    for depth, part in enumerate(parts, start=1):
        if part.startswith("."):
            return left_out("submission.hidden", parts[:depth])
        if part.casefold() == "__pycache__" or part.casefold().endswith((".pyc", ".pyo")):
            return left_out("submission.cache", parts[:depth])
    return None


def why_not_taken(parts: Parts) -> Note | None:
    """Return the note for a file that could talk to the grader before it is graded."""
    last = parts[-1].casefold()
    if last in STARTUP or last.endswith(".pth"):
        return left_out("submission.startup", parts)
    module = parts[0].split(".")[0].casefold()
    importable = len(parts) > 1 or last.endswith((".py", ".pyd", ".so", ".dll", ".zip", ".egg"))
    if importable and module in sys.stdlib_module_names | IMPORTED:
        return left_out("submission.shadow", parts, module=module)
    return None


def why_not_graded(parts: Parts) -> Note | None:
    """Return the note for a file that is taken, but was probably meant to be graded."""
    name = COPY_MARK.sub("", parts[-1])
    meant = part_of(name.casefold())
    if meant is not None and len(parts) > 1:
        return left_out("submission.misplaced", parts)
    if meant is not None and part_of(parts[-1]) is None:
        return left_out("submission.misnamed", parts, wanted=meant.name)
    match = NAMED_FILE.fullmatch(name.casefold())
    if match is not None and meant is None and len(parts) == 1:
        close = difflib.get_close_matches(match[2], CATALOG, n=1)
        if close:
            return left_out("submission.misnamed", parts, wanted=f"{match[1]}_{close[0]}.py")
        return left_out("submission.unknown_exercise", parts, exercise=match[2])
    return None
