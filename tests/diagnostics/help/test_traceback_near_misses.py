"""Where the text does not point to a cause, nothing is claimed."""

# ruff: noqa: E501  # rows of tables: a message stands in one line, as it is printed
from __future__ import annotations

import pytest

from diagnostics.help.traceback import read_traceback
from tests.diagnostics.help.tracebacks import (
    CALL,
    EMBEDDING,
    SITE,
    STEP,
    TRAIN,
    python,
    told_of,
)

# false alarms cost trust: near misses, and what a rule must not say of them
SILENT = [
    ("KeyError: 'x'", ("rows.py", 3, "encode_row", "return row['x']")),  # a field, no character
    ("KeyError: 'learning_rate'", ("run.py", 3, "encode", "return stoi[name]")),
    ("KeyError: 3", ("run.py", 3, "encode", "return stoi[name]")),
    ("AttributeError: 'tuple' object has no attribute 'append'", STEP),
    ("AttributeError: 'tuple' object has no attribute 'shape'", ("a.py", 1, "f", "pair.shape")),
    ("AttributeError: module 'config' has no attribute 'block'", ("config.py", 1, "<module>", "import config")),
    ("ImportError: cannot import name 'GPT' from 'model' (/srv/me/model.py)", STEP),
    ("ValueError: embedding out of range", STEP),
    ("AssertionError: loss is nan", STEP),
    ("RuntimeError: my own words: out of memory of the story", STEP),
    ("RecursionError: maximum recursion depth exceeded", STEP),  # one own frame is no recursion
    ("TypeError: cannot pickle '_thread.lock' object", ("a.py", 1, "f", "copy.deepcopy(model)")),
    ("EOFError: Ran out of input", ("a.py", 1, "f", "read_row(file)")),
    ("EOFError", ("a.py", 1, "ask", "answer = input()")),
    ("ValueError: Classification metrics can't handle a mix of continuous and binary targets", STEP),
    ("ValueError: nothing to do with torch", STEP),
    ("CheckFailedError: somebody else's", STEP),
]  # fmt: skip


@pytest.mark.parametrize(("last", "row"), SILENT, ids=[row[0][:60] for row in SILENT])
def test_near_misses_have_no_cause(last: str, row: tuple[str, int, str, str]) -> None:
    reading = read_traceback(python(last, TRAIN, row))
    assert reading.found
    assert reading.explanation is None


def test_index_out_of_range_of_another_lookup_is_no_embedding() -> None:
    """index_select says the same words; without an embedding's frame nothing is claimed."""
    select = (f"{SITE}/torch/_ops.py", 5, "__call__", "return self._op(*args)")
    assert (
        read_traceback(python("IndexError: index out of range in self", STEP, select)).explanation
        is None
    )
    both = ("model.py", 4, "forward", "x = self.wte(ids) + self.wpe(at)")
    found, _, step = told_of(
        read_traceback(python("IndexError: index out of range in self", both, CALL, EMBEDDING))
    )
    assert found == "index.embedding"  # the line calls two tables, so both are named
    assert step.startswith("print(ids.min()")


def test_a_product_outside_of_a_layer_is_not_called_a_layer() -> None:
    last = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x3 and 5x7)"
    _, cause, _ = told_of(read_traceback(python(last, ("a.py", 1, "forward", "return q @ k"))))
    assert cause == "the first matrix has 3 columns, the second 5 rows"


def test_item_after_the_backward_call_did_not_cut_the_loss() -> None:
    last = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
    line = ("a.py", 1, "f", "loss.backward(); total += loss.item()")
    assert told_of(read_traceback(python(last, line)))[0] == "gradient.none"


def test_names_that_cannot_be_code_are_not_put_into_a_line_to_copy() -> None:
    last = (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n"
        '\tMissing key(s) in state_dict: "x);os.remove(1).head". \n'
        '\tUnexpected key(s) in state_dict: "head". '
    )
    found, _, step = told_of(read_traceback(python(last)))
    assert found == "state.other_model"
    assert "remove" not in step


def test_a_large_state_dict_is_compared_whole() -> None:
    """GPT-2 has 148 names, which torch prints in one line each."""
    names = [f"blocks.{n}.attention.projection.weight" for n in range(900)]
    missing = ", ".join(f'"{name}"' for name in names)
    unexpected = ", ".join(f'"module.{name}"' for name in names)
    last = (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n"
        f"\tMissing key(s) in state_dict: {missing}. \n"
        f"\tUnexpected key(s) in state_dict: {unexpected}. "
    )
    assert told_of(read_traceback(python(last)))[0] == "state.prefix.module"


SIZES = [
    ("blocks.0.mlp.0.weight", [256, 64], [128, 64]),  # another expansion factor, not the width
    ("blocks.0.sa.heads.0.key.weight", [16, 64], [32, 64]),  # another head size, no vocabulary
    ("encoder.conv.weight", [8, 8, 3], [8, 8, 5]),
]


@pytest.mark.parametrize(("name", "stored", "wanted"), SIZES)
def test_sizes_that_point_nowhere_get_no_name(
    name: str, stored: list[int], wanted: list[int]
) -> None:
    last = (
        "RuntimeError: Error(s) in loading state_dict for GPT:\n\tsize mismatch for "
        f"{name}: copying a param with shape torch.Size({stored}) from checkpoint, the shape in "
        f"current model is torch.Size({wanted})."
    )
    found, cause, _ = told_of(read_traceback(python(last)))
    assert found == "state.size"
    assert cause == "the weights are of a model with other sizes than this one"


def test_a_last_layer_of_another_size_is_no_vocabulary() -> None:
    last = (
        "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight: "
        "copying a param with shape torch.Size([10, 64]) from checkpoint, the shape in current "
        "model is torch.Size([2, 64])."
    )
    assert told_of(read_traceback(python(last)))[0] == "state.outputs"
