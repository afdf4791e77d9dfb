"""Gradescope's autograder.zip: grading where nobody sits and watches.

The zip holds what Gradescope runs (`setup.sh`, `run_autograder`), this library as it is installed
here, the versions it is installed with, and the instructor's rubric, private code and secret. Equal
inputs give equal bytes: names are sorted, times are fixed, and nothing is compressed, because
compressors differ from one system to the next.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from minigpt._cli import CommandError
from minigpt._files import atomic_write

PACKAGES = ("minigpt", "diagnostics", "exercises")
REQUIREMENTS = ("torch", "numpy", "tqdm", "safetensors")
DATA_FILES = ("README.md", "SHA256SUMS", "guide.txt")
SCRIPTS = ("run_autograder", "setup.sh")
DATE = (1980, 1, 1, 0, 0, 0)  # the first one that a zip file can store
FILE_BYTES_MAX = 20_000_000


def build_autograder(
    path: Path,
    *,
    rubric: Path | None = None,
    private: Path | None = None,
    secret: Path | None = None,
    torch_index: str | None = None,
) -> tuple[str, ...]:
    """Write autograder.zip in one piece and return the names in it.

    private: a folder of the instructor's own implementations.    secret: a file that seeds are
    made from; without it the grader's usual one is taken.    torch_index: where pip finds torch
    without CUDA, a tenth of the size.

    Raises CommandError for an input that is missing, and OSError where the zip cannot be written.
    """
    contents = dict(_contents(rubric, private, secret, torch_index))
    with atomic_write(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name in sorted(contents):
            info = zipfile.ZipInfo(name, DATE)
            info.create_system = 3  # Unix, so that the mode is read, wherever the zip is built
            mode = 0o755 if name in SCRIPTS else 0o644
            info.external_attr = (stat.S_IFREG | mode) << 16
            archive.writestr(info, contents[name])
    return tuple(sorted(contents))


def library_root() -> Path:
    """Return the folder that holds the packages: a checkout, or where a wheel was installed."""
    return _package_folder("minigpt").parent


def requirements_text(torch_index: str | None = None) -> str:
    """Return requirements.txt: the versions that are installed here."""
    index = [] if torch_index is None else [f"--extra-index-url {torch_index}"]
    return "\n".join([*index, *pinned_requirements()]) + "\n"


def pinned_requirements() -> Iterator[str]:
    """Yield the runtime packages with the versions that are installed here."""
    for name in REQUIREMENTS:
        version = importlib.metadata.version(name).split("+")[0]  # 2.13.0+cpu is 2.13.0 elsewhere
        yield f"{name}=={version}"


def _contents(
    rubric: Path | None, private: Path | None, secret: Path | None, torch_index: str | None
) -> Iterator[tuple[str, bytes]]:
    scripts = Path(__file__).parent / "gradescope_files"
    for name in SCRIPTS:
        yield name, (scripts / name).read_bytes().replace(b"\r\n", b"\n")
    yield "requirements.txt", requirements_text(torch_index).encode()
    for package in PACKAGES:
        yield from _folder(_package_folder(package), f"library/{package}")
    for name in DATA_FILES:
        if (path := library_root() / "data" / name).is_file():  # a wheel has them in minigpt/_data
            yield f"library/data/{name}", path.read_bytes()
    if (path := library_root() / "pyproject.toml").is_file():
        yield "library/pyproject.toml", path.read_bytes()
    for given, name in ((rubric, "rubric.toml"), (secret, "secret")):
        if given is not None:
            yield name, _file(given)
    if private is not None:
        if not private.is_dir():
            raise CommandError(f"there is no folder {private}; check the name")
        yield from _folder(private, "private")


def _package_folder(package: str) -> Path:
    specification = importlib.util.find_spec(package)
    if specification is None or specification.origin is None:
        raise CommandError(f"the package {package} is not installed as files")
    return Path(specification.origin).parent


def _folder(folder: Path, name: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        hidden = any(part.startswith(".") or part == "__pycache__" for part in parts)
        if path.is_file() and not hidden and path.suffix != ".pyc":
            yield "/".join([name, *parts]), _file(path)


def _file(path: Path) -> bytes:
    if not path.is_file():
        raise CommandError(f"there is no file {path}; check the name")
    if path.stat().st_size > FILE_BYTES_MAX:
        raise CommandError(f"{path} has more than {FILE_BYTES_MAX} bytes; leave it out")
    return path.read_bytes()
