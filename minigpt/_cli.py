"""What every command shares: exit codes, and one clear line instead of a traceback.

Exit codes: 0 as expected, 1 a check failed, 2 usage or missing input, 3 the tool itself is broken,
130 interrupted with Ctrl-C. Imports nothing heavy, so that `--help` stays quick.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_BROKEN = 3
EXIT_INTERRUPTED = 130

LIBRARIES = ("torch", "numpy", "tqdm", "safetensors")  # what pyproject.toml asks for
REMEDIES = {
    errno.ENOSPC: "free some space or choose another folder",
    errno.EDQUOT: "free some space or choose another folder",
    errno.EFBIG: "choose a folder without such a limit",
    errno.EACCES: "check its permissions or choose another folder",
    errno.EPERM: "check its permissions or choose another folder",
    errno.EROFS: "choose another folder",
    errno.ENOENT: "check the name",
    errno.ENOTDIR: "check the name: a part of it is a file",
    errno.EISDIR: "give a file",
}


class CommandError(Exception):
    """The command cannot go on with what it was given; the message says what to do about it."""


class CheckFailedError(Exception):
    """A check said no; the message says which, and what was not done because of it."""


class Parser(argparse.ArgumentParser):
    """Answers a wrong flag with one line; argparse would put the whole usage before it."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and the line."""
        one_line = " ".join(message.split())
        self.exit(EXIT_USAGE, f"error: {one_line}; `{self.prog} --help` shows what fits\n")


def require_writable(path: str | os.PathLike[str] | None, flag: str) -> None:
    """Raise CommandError where no file can be written, before minutes go into its content.

    Creates nothing. None, for a flag that was not given, passes.
    """
    if path is None:
        return
    target = Path(path)
    folder = target.parent
    if target.is_dir():
        raise CommandError(f"{flag} wants a file to write, got the folder {path}")
    if not folder.is_dir():
        raise CommandError(f"{flag} {path}: there is no folder {folder}; create it first")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise CommandError(f"{flag} {path} cannot be written; choose another folder")


def run_command(main: Callable[[], int | None]) -> int:
    """Run `main` and return its exit code, turning what went wrong into one `error:` line.

    `CheckFailedError` gives 1; `CommandError`, `OSError`, too little memory and a library that is
    not installed are about the input or the machine and give 2; Ctrl-C gives 130; anything else is
    a fault of ours: it keeps its traceback, to be reported, and gives 3.
    `SystemExit` (argparse) passes through.
    """
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # a console may lack letters of a path
    with _interrupts_noted() as interrupts:
        return _run(main, interrupts)


def _run(main: Callable[[], int | None], interrupts: list[int]) -> int:
    try:
        code = main()
        sys.stdout.flush()  # a full disk or a closed pipe shows here, not at interpreter exit
        return EXIT_OK if code is None else code
    except KeyboardInterrupt:
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader, `| head` for example, has seen enough
        _discard_output()
        return EXIT_OK
    except OSError as error:
        _print_error(describe_error(error))
        _discard_output()
        return EXIT_USAGE
    except CommandError as error:
        _print_error(describe_error(error))
        return EXIT_USAGE
    except CheckFailedError as error:
        _print_error(describe_error(error))
        return EXIT_CHECK_FAILED
    except Exception as error:
        if interrupts:  # it came while a library was loading, which made another error of it
            _print_error("interrupted")
            return EXIT_INTERRUPTED
        if isinstance(error, ModuleNotFoundError) and error.name in LIBRARIES:
            _print_error(
                f"{error.name} is not installed for {sys.executable}; activate the environment of "
                "the course, or `python -m pip install -e .` where its pyproject.toml is"
            )
            return EXIT_USAGE
        if _is_out_of_memory(error):
            _print_error("there is not enough memory for these sizes; give smaller numbers")
            return EXIT_USAGE
        traceback.print_exc()
        _print_error("this is a fault of the program; the lines above say where")
        return EXIT_BROKEN


def describe_error(error: BaseException) -> str:
    """Return the error as one line; an `OSError` gives its reason, its file, what to do."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename is not None else ""
        remedy = REMEDIES.get(error.errno or 0)
        text = f"{error.strerror}{where}" + (f"; {remedy}" if remedy else "")
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def _interrupts_noted() -> Iterator[list[int]]:
    """Yield a list that gets an entry for every Ctrl-C; each one raises KeyboardInterrupt.

    Where somebody has decided otherwise about Ctrl-C, and outside the main thread, the list
    stays empty.
    """
    noted: list[int] = []
    usual = signal.getsignal(signal.SIGINT) in (signal.SIG_DFL, signal.default_int_handler)
    if not usual or threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: object) -> None:
        noted.append(number)
        if any(map(_is_loading, ("numpy", "torch"))):
            # A half-loaded library may swallow the exception and go on; nothing is lost yet.
            _print_error("interrupted")
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _is_loading(name: str) -> bool:
    specification = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(specification, "_initializing", False))


def _is_out_of_memory(error: Exception) -> bool:
    """Tell too large a number from a fault of ours; torch has no class of its own for the CPU."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in said for words in ("allocate memory", "out of memory", "enough memory"))
    )


def _print_error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)


def _discard_output() -> None:
    """Stop the interpreter from failing once more on its way out, on output nobody can take.

    Output that can still be written is written; only what is left afterwards goes nowhere.
    """
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError):  # a replaced standard output, in tests, has no descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
