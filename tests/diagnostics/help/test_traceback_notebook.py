"""Tracebacks of a notebook and of pytest: arrows, cells, `>` and `E` lines."""

from __future__ import annotations

import json

import pytest

from diagnostics.help.traceback import read_traceback
from tests.diagnostics.help.tracebacks import (
    place_of,
)

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
    assert place_of(reading) == ("Cell In[1]", 5, "train")
    assert reading.form == "notebook"
    assert reading.way[0] == "Cell In[2]:2 <module>"
    old = read_traceback(OLD_NOTEBOOK)
    assert place_of(old) == ("~/course/model.py", 4, "train")


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
    assert place_of(reading) == ("Cell In[1]", 5, "train")


def test_a_cell_that_cannot_be_compiled() -> None:
    reading = read_traceback("  Cell In[3], line 1\n    x = (1\n          ^\nSyntaxError: no end\n")
    assert (reading.kind, place_of(reading)) == ("SyntaxError", ("Cell In[3]", 1, ""))


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
    assert place_of(reading) == ("test_model.py", 5, "train")
    assert reading.where is not None
    assert reading.where.code == "return rows[n]"
    assert reading.count == 1


def test_pytest_in_its_short_form_and_in_one_line() -> None:
    short = (
        "____ test_a ____\ntest_model.py:8: in test_a\n    train(7)\n"
        "test_model.py:5: in train\n    return rows[n]\n"
        "E   IndexError: list index out of range\n"
    )
    assert place_of(read_traceback(short)) == ("test_model.py", 5, "train")
    line = "/srv/me/test_model.py:5: IndexError: list index out of range\n"
    assert place_of(read_traceback(line)) == ("/srv/me/test_model.py", 5, "")
    summary = "FAILED test_model.py::test_a - IndexError: list index out of range\n"
    assert read_traceback(summary).kind == "IndexError"


def test_a_failed_assert_of_pytest_has_a_kind() -> None:
    text = PYTEST.replace("E       IndexError: list index out of range", "E       assert 1 == 2")
    text = text.replace("test_model.py:5: IndexError", "test_model.py:5: AssertionError")
    reading = read_traceback(text.partition("=========================== short")[0])
    assert (reading.kind, reading.message) == ("AssertionError", "assert 1 == 2")
