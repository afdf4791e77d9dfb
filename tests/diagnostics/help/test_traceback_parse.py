"""From pasted text to what, where and which way, whoever printed it."""

# ruff: noqa: E501  # paths and messages stand in one line, as they are printed
from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.help.traceback import read_traceback, render
from tests.diagnostics.help.tracebacks import (
    CALL,
    EMBEDDING,
    HEADER,
    SITE,
    STEP,
    TRAIN,
    place_of,
    python,
    run,
)


def test_what_where_and_which_way() -> None:
    """The last line, the last own frame, and the calls between."""
    reading = read_traceback(python("ValueError: too short", TRAIN, STEP, CALL, EMBEDDING))
    assert (reading.kind, reading.message) == ("ValueError", "too short")
    assert place_of(reading) == ("train.py", 7, "step")
    assert reading.way == (
        "train.py:12 <module>",
        "train.py:7 step",
        "[torch: 2 calls] functional.py:2615 embedding",
    )
    assert (reading.count, reading.notes) == (1, ())


@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("train.py", True),
        ("src/model.py", True),
        ("/srv/me/course/lib/tools.py", True),
        ("/srv/me/torch_course/nn.py", True),
        ("Cell In[3]", True),
        ("<stdin>", True),
        ("<ipython-input-3-0a1b>", True),
        (r"C:\work\lib\model.py", True),
        ("/srv/me/python3/lib/model.py", True),
        ("/srv/me/torch/nn/model.py", True),
        ("/tmp/ipykernel_33/1234.py", True),
        (
            r"C:\Program Files\WindowsApps\PythonSoftwareFoundation.Python.3.11_x64\Lib\json\decoder.py",
            False,
        ),
        (r"C:\Users\me\uv\python\cpython-3.12.4-windows-x86_64-none\Lib\json\decoder.py", False),
        ("/opt/pypy/lib/pypy3.10/json/decoder.py", False),
        (f"{SITE}/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.12/json/decoder.py", False),
        ("/usr/lib/python3.13t/threading.py", False),
        ("<frozen runpy>", False),
        ("<__array_function__ internals>", False),
        ("torch/nn/modules/linear.py", False),
        ("/src/pytorch/torch/_dynamo/eval_frame.py", False),
        (r"C:\Users\me\miniconda3\Lib\site-packages\torch\nn\functional.py", False),
        (r"C:\Users\me\AppData\Local\Programs\Python\Python311\Lib\json\decoder.py", False),
        (r"C:\Users\me\miniconda3\envs\course\Lib\threading.py", False),
        ("/opt/course/bin/torchrun", False),
    ],
)
def test_own_code_is_told_from_a_library(path: str, is_own: bool) -> None:
    reading = read_traceback(python("ValueError: x", (path, 3, "work", "go()")))
    assert (reading.where is not None) is is_own


def test_without_own_code_the_library_is_named() -> None:
    reading = read_traceback(python("ValueError: x", CALL))
    assert reading.where is None
    assert "no frame of your own code; it surfaced in torch" in render(reading)


def test_marks_blank_lines_and_windows_line_ends() -> None:
    """3.11 marks a part of the line with ^, 3.13 with ~ too; CRLF was doubled by a copy."""
    text = (
        HEADER
        + '  File "C:\\work\\train.py", line 9, in <module>\n'
        + "    x = table(ids) + places(at)\n        ^^^^^^^^^^\n"
        + '  File "C:\\work\\train.py", line 4, in table\n    return a[b]\n           ~^^^\n'
        + "IndexError: list index out of range\n"
    )
    for pasted in (text, text.replace("\n", "\r\n"), text.replace("\n", "\r\r\n")):
        reading = read_traceback(pasted)
        assert place_of(reading) == ("C:\\work\\train.py", 4, "table")
        assert reading.where is not None
        assert reading.where.code == "return a[b]"
        assert reading.kind == "IndexError"


def test_colours_of_python_3_13_are_taken_off() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File \x1b[35m"train.py"\x1b[0m, line \x1b[35m3\x1b[0m, in \x1b[35m<module>\x1b[0m\n'
        "    \x1b[31mwork\x1b[0m\x1b[1;31m(1)\x1b[0m\n"
        "    \x1b[31m~~~~\x1b[0m\x1b[1;31m^^^\x1b[0m\n"
        "\x1b[1;35mZeroDivisionError\x1b[0m: \x1b[35mdivision by zero\x1b[0m\n"
    )
    reading = read_traceback(text)
    assert (reading.kind, reading.message) == ("ZeroDivisionError", "division by zero")
    assert place_of(reading) == ("train.py", 3, "<module>")


def test_a_chain_gives_the_last_and_what_it_was_raised_from() -> None:
    first = python("KeyError: 'model'", ("load.py", 2, "weights", "return state[name]"))
    last = python("RuntimeError: no weights", TRAIN)
    for joint, word in (
        ("The above exception was the direct cause of the following exception:", "raised from"),
        ("During handling of the above exception, another exception occurred:", "while handling"),
    ):
        reading = read_traceback(f"{first}\n{joint}\n\n{last}")
        assert reading.kind == "RuntimeError"
        assert reading.raised_from == (f"{word} KeyError: 'model' (load.py:2)",)
        assert reading.count == 1


def test_notes_and_long_messages_belong_to_the_exception() -> None:
    """add_note writes lines without an indentation; a state dict's list comes with tabs."""
    reading = read_traceback(python("ValueError: bad row\nwhile reading file 3\n\tand\n\nstep 4"))
    assert reading.message == "bad row\nwhile reading file 3\n\tand"


def test_a_log_that_goes_on_is_not_the_message() -> None:
    text = python("ValueError: bad row") + "2026-01-01 10:00:00 INFO next\nstep 5 loss 2.1\n"
    assert read_traceback(text).message == "bad row"


def test_an_exception_group_is_read_with_its_members(tmp_path: Path) -> None:
    code = (
        "def part(kind):\n    raise kind('bad')\n"
        "found = []\n"
        "for kind in (ValueError, TypeError):\n"
        "    try:\n        part(kind)\n"
        "    except Exception as error:\n        found.append(error)\n"
        "raise ExceptionGroup('two', [found[0], ExceptionGroup('inner', [found[1]])])\n"
    )
    reading = read_traceback(run(tmp_path, code))
    assert (reading.kind, reading.message) == ("ExceptionGroup", "two (2 sub-exceptions)")
    assert [member.partition(" (")[0] for member in reading.members] == [
        "ValueError: bad",
        "TypeError: bad",
    ]
    assert reading.where is not None
    assert reading.where.line == 2  # of the first member, not of the group


def test_a_syntax_error_names_the_file_that_could_not_be_read() -> None:
    text = HEADER + '  File "train.py", line 3\n    x = (1\n        ^\n'
    reading = read_traceback(text + "SyntaxError: '(' was never closed\n")
    assert place_of(reading) == ("train.py", 3, "")
    assert reading.explanation is not None
    assert reading.explanation.name == "python.syntax"


def test_repeated_calls_are_counted(tmp_path: Path) -> None:
    text = run(tmp_path, "def again(n):\n    return again(n + 1)\nagain(0)\n")
    reading = read_traceback(text)
    assert reading.kind == "RecursionError"
    assert any("more times in a row" in note for note in reading.notes)
    assert reading.explanation is not None
    assert reading.explanation.name == "python.recursion"


def test_a_worker_process_is_read_and_the_report_of_it_is_told() -> None:
    text = (
        python(
            "IndexError: Caught IndexError in DataLoader worker process 0.\n"
            "Original Traceback (most recent call last):\n"
            f'  File "{SITE}/torch/utils/data/_utils/fetch.py", line 54, in fetch\n'
            "    data = [self.dataset[idx] for idx in possibly_batched_index]\n"
            '  File "rows.py", line 9, in __getitem__\n    return self.rows[i]\n'
            "IndexError: list index out of range",
            TRAIN,
        )
        + "\n"
    )
    reading = read_traceback(text)
    assert place_of(reading) == ("rows.py", 9, "__getitem__")
    assert reading.message == "list index out of range"
    assert reading.raised_from[0].startswith("reported as IndexError: Caught IndexError")


def test_code_under_torch_compile_is_found_in_the_message() -> None:
    text = python(
        "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node: got RuntimeError('a "
        "and b must have same reduction dim, but got [2, 2] X [3, 3].')\n\nfrom user code:\n"
        '   File "model.py", line 5, in forward\n    return x @ self.w\n\n'
        "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
        TRAIN,
        CALL,
    )
    reading = read_traceback(text)
    assert place_of(reading) == ("model.py", 5, "forward")
    assert reading.explanation is not None
    assert reading.explanation.name == "shape.same_dimension"


def test_a_stack_of_c_calls_is_left_out() -> None:
    text = python(
        "RuntimeError: it broke\nException raised from run at ../c10/run.cpp:12 (most recent call "
        "first):\nframe #0: c10::Error::Error() + 0x57 (0x7f01 in c.so)\nframe #1: clone + 0x3f"
    )
    reading = read_traceback(text)
    assert reading.message == "it broke"
    assert any("C++" in note for note in reading.notes)


def test_of_several_the_last_complete_one_is_read() -> None:
    first, second = python("ValueError: a"), python("TypeError: b", STEP)
    reading = read_traceback(f"{first}\nstep 9\n{second}\nstep 10\n")
    assert (reading.kind, reading.count) == ("TypeError", 2)
    assert "2 tracebacks are in this text; this is the last complete one" in reading.notes
    cut = read_traceback(first + python("x", STEP).rpartition("x")[0])
    assert cut.kind == "ValueError"
    assert any("a later traceback has no last line" in note for note in cut.notes)


def test_a_missing_end_start_or_middle() -> None:
    whole = python("ValueError: bad", TRAIN, STEP)
    without_end = read_traceback(whole.rpartition("ValueError")[0])
    assert (without_end.kind, place_of(without_end)) == ("", ("train.py", 7, "step"))
    assert "the last line of this traceback is missing" in " ".join(without_end.notes)
    assert "what       the last line is missing" in render(without_end)
    without_start = read_traceback(whole.partition("\n")[2])
    assert (without_start.kind, place_of(without_start)) == ("ValueError", ("train.py", 7, "step"))
    assert "the start of this traceback is missing" in " ".join(without_start.notes)
    only_last = read_traceback("some log\nValueError: bad\n")
    assert (only_last.kind, only_last.where, only_last.count) == ("ValueError", None, 0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "step 3 loss 2.1\nEpoch: 3\nAccuracy: 0.3\n",
        "Note: read this\n",
        "{}",
        '{"cells": 3}',
    ],
)
def test_no_traceback_says_what_was_looked_for(text: str) -> None:
    reading = read_traceback(text)
    assert (reading.found, reading.exit_code) == (False, 2)
    assert "Traceback (most recent call last)" in render(reading)
