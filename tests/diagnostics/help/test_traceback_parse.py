"""From pasted text to what, where and which way, whoever printed it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from diagnostics.help.traceback import TracebackReading, read_traceback, render
from tests.diagnostics.help.tracebacks import (
    CALL,
    EMBEDDING,
    HEADER,
    SITE,
    STEP,
    TRAIN,
    prefixed,
    python,
    run,
)


def _where(reading: TracebackReading) -> tuple[str, int | None, str] | None:
    frame = reading.where
    return None if frame is None else (frame.file, frame.line, frame.function)


def test_what_where_and_which_way() -> None:
    """The last line, the last own frame, and the calls between."""
    reading = read_traceback(python("ValueError: too short", TRAIN, STEP, CALL, EMBEDDING))
    assert (reading.kind, reading.message) == ("ValueError", "too short")
    assert _where(reading) == ("train.py", 7, "step")
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
        ("/home/me/course/lib/tools.py", True),
        ("/home/me/torch_course/nn.py", True),
        ("Cell In[3]", True),
        ("<stdin>", True),
        ("<ipython-input-3-0a1b>", True),
        (r"C:\work\lib\model.py", True),
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
        assert _where(reading) == ("C:\\work\\train.py", 4, "table")
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
    assert _where(reading) == ("train.py", 3, "<module>")


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
    assert _where(reading) == ("train.py", 3, "")
    assert reading.explanation is not None
    assert reading.explanation.name == "python.syntax"


def test_repeated_calls_are_counted(tmp_path: Path) -> None:
    text = run(tmp_path, "def again(n):\n    return again(n + 1)\nagain(0)\n")
    reading = read_traceback(text)
    assert reading.kind == "RecursionError"
    assert any("more times in a row" in note for note in reading.notes)
    assert reading.explanation is not None
    assert reading.explanation.name == "python.recursion"


NOTEBOOK = """\
---------------------------------------------------------------------------
IndexError                                Traceback (most recent call last)
Cell In[2], line 2
      1 x = 1
----> 2 train(7)
      3 y = 2

Cell In[1], line 5, in train(n)
      3 def train(n):
      4     e = nn.Embedding(5, 2)
----> 5     return e(torch.tensor([n]))

File /opt/course/lib/python3.11/site-packages/torch/nn/modules/sparse.py:189, in Embedding.forward(self, input)
    188 def forward(self, input: Tensor) -> Tensor:
--> 189     return F.embedding(
    190         input,

IndexError: index out of range in self
"""  # noqa: E501

OLD_NOTEBOOK = """\
IndexError                                Traceback (most recent call last)
<ipython-input-7-91ab> in <module>
----> 1 train(7)

~/course/model.py in train(n)
      3     e = nn.Embedding(5, 2)
----> 4     return e(torch.tensor([n]))

IndexError: index out of range in self
"""


def test_a_notebook_is_read_by_its_arrows() -> None:
    reading = read_traceback(NOTEBOOK)
    assert _where(reading) == ("Cell In[1]", 5, "train")
    assert reading.form == "notebook"
    assert reading.way[0] == "Cell In[2]:2 <module>"
    old = read_traceback(OLD_NOTEBOOK)
    assert _where(old) == ("~/course/model.py", 4, "train")


@pytest.mark.parametrize(
    "head",
    ["Input In [3], in <cell line: 2>()", "Input In [3], in train(n)", "Cell In [3], line 2"],
)
def test_other_spellings_of_a_cell(head: str) -> None:
    text = NOTEBOOK.replace("Cell In[1], line 5, in train(n)", head)
    frame = read_traceback(text).where
    assert frame is not None
    assert (frame.line, frame.code) == (5, "return e(torch.tensor([n]))")


def test_a_notebook_file_gives_its_last_error() -> None:
    cells = [
        {"cell_type": "markdown", "source": "Traceback"},
        {"outputs": [{"output_type": "error", "traceback": ["\x1b[31m" + NOTEBOOK]}]},
        {"outputs": [{"output_type": "stream", "text": "done"}]},
    ]
    reading = read_traceback(json.dumps({"cells": cells, "nbformat": 4}))
    assert _where(reading) == ("Cell In[1]", 5, "train")


def test_a_cell_that_cannot_be_compiled() -> None:
    reading = read_traceback("  Cell In[3], line 1\n    x = (1\n          ^\nSyntaxError: no end\n")
    assert (reading.kind, _where(reading)) == ("SyntaxError", ("Cell In[3]", 1, ""))


PYTEST = """\
=================================== FAILURES ===================================
____________________________________ test_a ____________________________________

    def test_a():
        x = 3
>       train(7)

test_model.py:8:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

n = 7

    def train(n):
        rows = [1, 2]
>       return rows[n]
               ^^^^^^^
E       IndexError: list index out of range

test_model.py:5: IndexError
=========================== short test summary info ============================
FAILED test_model.py::test_a - IndexError: list index out of range
"""


def test_pytest_in_its_long_form() -> None:
    reading = read_traceback(PYTEST)
    assert (reading.kind, reading.message) == ("IndexError", "list index out of range")
    assert _where(reading) == ("test_model.py", 5, "train")
    assert reading.where is not None
    assert reading.where.code == "return rows[n]"
    assert reading.count == 1


def test_pytest_in_its_short_form_and_in_one_line() -> None:
    short = (
        "____ test_a ____\ntest_model.py:8: in test_a\n    train(7)\n"
        "test_model.py:5: in train\n    return rows[n]\n"
        "E   IndexError: list index out of range\n"
    )
    assert _where(read_traceback(short)) == ("test_model.py", 5, "train")
    line = "/home/me/test_model.py:5: IndexError: list index out of range\n"
    assert _where(read_traceback(line)) == ("/home/me/test_model.py", 5, "")
    summary = "FAILED test_model.py::test_a - IndexError: list index out of range\n"
    assert read_traceback(summary).kind == "IndexError"


def test_a_failed_assert_of_pytest_has_a_kind() -> None:
    text = PYTEST.replace("E       IndexError: list index out of range", "E       assert 1 == 2")
    text = text.replace("test_model.py:5: IndexError", "test_model.py:5: AssertionError")
    reading = read_traceback(text.partition("=========================== short")[0])
    assert (reading.kind, reading.message) == ("AssertionError", "assert 1 == 2")


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank1]: ",
        "trainer-1  | ",
        "2026-01-01T10:00:00.123Z ",
        "> ",
        "    ",
        "Jan 01 10:00 box[7]: ",
    ],
)
def test_prefixes_of_a_log_are_taken_off(prefix: str) -> None:
    text = prefixed("step 3 loss 2.0\n" + python("ValueError: bad\n\tlist"), prefix)
    reading = read_traceback(text + prefix.rstrip() + "\n")
    assert (reading.kind, _where(reading)) == ("ValueError", ("train.py", 7, "step"))
    assert reading.message == "bad\n\tlist"


def test_a_prefix_may_count_the_time() -> None:
    lines = python("ValueError: bad").rstrip("\n").split("\n")
    text = "".join(f"10:00:{n:02d},{n * 37:03d} app[12] {line}\n" for n, line in enumerate(lines))
    assert _where(read_traceback(text)) == ("train.py", 7, "step")


def test_a_progress_bar_before_the_header_is_no_prefix() -> None:
    text = "  3%|3  | 3/100 [00:01<00:40]" + python("ValueError: bad")
    assert _where(read_traceback(text)) == ("train.py", 7, "step")


def test_interleaved_ranks_come_apart_and_the_first_own_error_is_read() -> None:
    """Rank 0 only lost its peer; torchrun's own traceback comes last and says nothing."""
    bad = prefixed(python("IndexError: list index out of range"), "[rank1]: ").split("\n")
    lost = prefixed(
        python(
            "RuntimeError: Connection closed by peer [10.0.0.1]:8327", ("train.py", 30, "f", "x")
        ),
        "[rank0]: ",
    ).split("\n")
    mixed = "\n".join(line for pair in zip(lost, bad, strict=False) for line in pair)
    mixed += "\n" + "\n".join(bad[len(lost) :])
    text = (
        mixed
        + "\n"
        + python(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            ("/opt/course/bin/torchrun", 8, "<module>", "sys.exit(main())"),
        )
    )
    reading = read_traceback(text)
    assert (reading.rank, reading.kind) == (1, "IndexError")
    assert "rank 1 is the first in this text whose error is its own" in reading.notes
    root = "Root Cause (first observed failure):\n[0]:\n  host : box\n  rank      : 1 (local_rank: 1)\n"
    assert "torchrun observed rank 1 as the first failure" in read_traceback(text + root).notes


def test_several_ranks_with_errors_of_their_own_are_named() -> None:
    text = prefixed(python("ValueError: a"), "[rank2]: ") + prefixed(
        python("ValueError: b"), "[rank0]: "
    )
    reading = read_traceback(text)
    assert (reading.rank, reading.message) == (2, "a")
    assert "ranks 0 have errors of their own too" in reading.notes


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
    assert _where(reading) == ("rows.py", 9, "__getitem__")
    assert reading.message == "list index out of range"
    assert reading.raised_from[0].startswith("reported as IndexError: Caught IndexError")


def test_code_under_torch_compile_is_found_in_the_message() -> None:
    text = python(
        "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node: got RuntimeError('a and "
        "b must have same reduction dim, but got [2, 2] X [3, 3].')\n\nfrom user code:\n"
        '   File "model.py", line 5, in forward\n    return x @ self.w\n\n'
        "Set TORCHDYNAMO_VERBOSE=1 for the internal stack trace",
        TRAIN,
        CALL,
    )
    reading = read_traceback(text)
    assert _where(reading) == ("model.py", 5, "forward")
    assert reading.explanation is not None
    assert reading.explanation.name == "shape.same_dimension"


def test_a_stack_of_c_calls_is_left_out() -> None:
    text = python(
        "RuntimeError: it broke\nException raised from run at ../c10/run.cpp:12 (most recent call "
        "first):\nframe #0: c10::Error::Error() + 0x57 (0x7f01 in libc10.so)\nframe #1: clone + 0x3f"
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
    assert (without_end.kind, _where(without_end)) == ("", ("train.py", 7, "step"))
    assert "the last line of this traceback is missing" in " ".join(without_end.notes)
    assert "what       the last line is missing" in render(without_end)
    without_start = read_traceback(whole.partition("\n")[2])
    assert (without_start.kind, _where(without_start)) == ("ValueError", ("train.py", 7, "step"))
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
