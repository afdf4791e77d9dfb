"""Whose code a frame is: a person's own, or a library's, the interpreter's, torch's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

# these checks, wherever they are installed: an editable install lies in no library folder
_CHECKS = Path(__file__).resolve().parents[2].as_posix() + "/"
SHOWN_PARTS = 3  # of a long path: the file and two folders

_LIBRARY_FOLDERS = re.compile(
    r"/(?:site|dist)-packages/"
    r"|(?:^|/)lib(?:64)?/(?:python|pypy)\d+(?:\.\d+)?t?/"  # the standard library but on Windows
    r"|/python\d+\.zip/",
    re.IGNORECASE,
)
_WINDOWS_LIBRARY = re.compile(
    r"^[a-z]:/.*/(?:python\d[\d.]*t?|python/(?:[\d.]+/x64|current)|(?:ana|mini)conda\d*|envs/[^/]+"
    r"|mini(?:forge|mamba)\d*|mambaforge|cpython-[^/]+|pythoncore-[^/]+"
    r"|PythonSoftwareFoundation[^/]+)/lib/",
    re.IGNORECASE,
)
_LIBRARY_SOURCES = re.compile(  # source checkouts, and paths that torch shows without a folder
    r"(?:^|/pytorch/)torch/(?:_\w+|nn|utils|optim|autograd|distributed|multiprocessing|fx|jit|cuda"
    r"|mps|serialization\.py|functional\.py|storage\.py)(?:/|$|\.py$)"
    r"|/transformers/src/transformers/"
)
_SHELL = re.compile(r"/bin/(?:torchrun|accelerate|py\.?test|ipython\d?|jupyter[\w-]*|deepspeed)$")


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One call: file, line and function as the traceback gives them, and its line of code.

    line is None where only the function is known. marked: the part of the code under the marks ^
    and ~, "" without marks. repeats: how often the frames up to this one
    came again, as a recursion's traceback says.
    """

    file: str
    line: int | None = None
    function: str = ""
    code: str = ""
    marked: str = ""
    repeats: int = 0

    @property
    def is_own(self) -> bool:
        """Whether it is a person's own code; a relative path, a notebook's cell and stdin are."""
        path = self.file.replace("\\", "/")
        if path.startswith("<"):
            is_generated = path == "<string>" and self.function not in {"<module>", ""}
            return path.startswith(("<ipython-input", "<stdin", "<string")) and not is_generated
        return not (
            _LIBRARY_FOLDERS.search(path)
            or _WINDOWS_LIBRARY.search(path)
            or _LIBRARY_SOURCES.search(path)
            or _SHELL.search(path)
            or path.startswith(_CHECKS)
        )

    @property
    def library(self) -> str:
        """The package of a frame that is not own, such as torch; "python" for the interpreter."""
        path = self.file.replace("\\", "/")
        match = re.search(r"/(?:site|dist)-packages/([\w-]+)", path, re.IGNORECASE)
        if match:
            return match.group(1)
        if path.startswith(_CHECKS):
            return "diagnostics"
        source = _LIBRARY_SOURCES.search(path)
        if source:
            return "transformers" if "transformers" in source.group() else "torch"
        return "python"

    @property
    def place(self) -> str:
        """File and line, with the last folders of a long path only."""
        path = self.file.replace("\\", "/")
        parts = path.split("/")
        if len(path) > 50 and len(parts) > SHOWN_PARTS:
            path = ".../" + "/".join(parts[-SHOWN_PARTS:])
        return path if self.line is None else f"{path}:{self.line}"

    @property
    def name(self) -> str:
        """The file's name without folders."""
        return self.file.replace("\\", "/").rpartition("/")[2]
