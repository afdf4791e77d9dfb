"""Exit codes, and one line instead of a traceback."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt._cli import (
    CommandError,
    Parser,
    describe_error,
    require_writable,
    run_command,
)


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (1, 1)])
def test_result_is_the_exit_code(value: int | None, code: int) -> None:
    """What the command returns is the code; nothing means 0."""
    assert run_command(lambda: value) == code


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (CommandError("no text\nat x; give one"), 2, "error: no text at x; give one"),
        (
            OSError(errno.ENOSPC, "No space left on device", "a.npy"),
            2,
            "error: No space left on device: a.npy; free some space or choose another folder",
        ),
        (FileNotFoundError("no ids at x; create it"), 2, "error: no ids at x; create it"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_expected_trouble_is_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Input, machine and Ctrl-C give their code and exactly one line on standard error."""

    def main() -> int:
        raise error

    assert run_command(main) == code
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", line + "\n")


def test_own_fault_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A fault of the program is code 3 and says where it happened."""

    def main() -> int:
        raise ZeroDivisionError("the fault")

    assert run_command(main) == 3
    error = capsys.readouterr().err
    assert "ZeroDivisionError: the fault" in error
    assert error.splitlines()[-1].startswith("error: this is a fault of the program")


def test_argparse_exit_passes_through() -> None:
    """`--help` and usage errors end as argparse wants."""
    with pytest.raises(SystemExit, match="2"):
        run_command(lambda: sys.exit(2))


def test_closed_pipe_is_no_error() -> None:
    """A reader that has seen enough (`| head`) leaves no message behind."""
    code = (
        "from minigpt._cli import run_command\n"
        "raise SystemExit(run_command(lambda: print('line\\n' * 100_000)))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).resolve().parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_error_without_words_gives_its_name() -> None:
    """Even an empty error says something."""
    assert describe_error(CommandError()) == "CommandError"


def test_a_wrong_flag_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """No usage text before it: the line says what was wrong and where to look."""
    with pytest.raises(SystemExit) as stop:
        Parser(prog="python -m it").parse_args(["--nonsense"])
    assert stop.value.code == 2
    line = "error: unrecognized arguments: --nonsense; `python -m it --help` shows what fits\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    ],
)
def test_too_little_memory_is_about_the_sizes(
    error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers too large for the machine are input: code 2, one line, no traceback."""

    def main() -> int:
        raise error

    assert run_command(main) == 2
    assert capsys.readouterr().err.startswith("error: there is not enough memory")


def test_a_library_that_is_not_installed_is_no_fault_of_the_program(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line with the interpreter, which is usually another one; a module of ours is a fault."""

    def main(name: str) -> int:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    assert run_command(lambda: main("torch")) == 2
    assert capsys.readouterr().err == (
        f"error: torch is not installed for {sys.executable}; activate the environment of the "
        "course, or `python -m pip install -e .` where its pyproject.toml is\n"
    )
    assert run_command(lambda: main("minigpt.nothing")) == 3
    assert capsys.readouterr().err.startswith("Traceback")


def test_letters_that_a_console_lacks_do_not_end_a_run() -> None:
    """A folder with an accent, printed after hours of training to a console that has ASCII only."""
    code = "from minigpt._cli import run_command; run_command(lambda: print('caf\\u00e9'))"
    environment = os.environ | {"PYTHONIOENCODING": "ascii:strict"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    assert done.stdout.strip() == b"caf\\xe9"
    assert done.returncode == 0


def test_an_interrupt_that_a_library_turned_into_another_error_stays_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """torch, while it loads, may swallow Ctrl-C and fail on what is half loaded."""

    def main() -> int:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise AttributeError("module 'numpy' has no attribute 'intp'") from None
        return 0

    before = signal.getsignal(signal.SIGINT)
    assert run_command(main) == 130
    assert capsys.readouterr().err == "error: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_place_for_a_report_is_looked_at_before_the_work(tmp_path: Path) -> None:
    """A folder, and a file in a folder that is not there, are refused; nothing is created."""
    require_writable(None, "--json")
    require_writable(tmp_path / "new.json", "--json")
    with pytest.raises(CommandError, match="--json wants a file to write, got the folder"):
        require_writable(tmp_path, "--json")
    with pytest.raises(CommandError, match=r"nowhere.r\.json: there is no folder .*create it"):
        require_writable(tmp_path / "nowhere" / "r.json", "--json")
    assert list(tmp_path.iterdir()) == []
