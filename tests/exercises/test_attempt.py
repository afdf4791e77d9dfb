"""An attempt is code that differs: comments, blanks and docstrings are none."""

from __future__ import annotations

import pytest

from exercises._attempt import (
    assertions,
    changed_lines,
    closest,
    code_digest,
    first_difference,
)

CODE = '''"""A title."""

def implementation(data):
    """What it does."""
    return data + 1
'''


@pytest.mark.parametrize(
    "same",
    [
        CODE.replace("data + 1", "data + 1  # the shift"),
        CODE.replace("data + 1", "( data  +  1 )"),
        CODE.replace('    """What it does."""\n', ""),
        CODE.replace("A title.", "Another title."),
        CODE.replace("\n    return", "\n\n    # no change\n    return"),
    ],
)
def test_comments_blanks_and_docstrings_change_nothing(same: str) -> None:
    assert same != CODE
    assert code_digest(same) == code_digest(CODE)


@pytest.mark.parametrize(
    "other",
    [
        CODE.replace("+ 1", "+ 2"),
        CODE.replace("+ 1", "+ 1.0"),
        CODE.replace("return data", "return -data"),
        CODE + "\nimplementation = None\n",
    ],
)
def test_other_code_is_another_attempt(other: str) -> None:
    assert code_digest(other) not in (code_digest(CODE), None)


@pytest.mark.parametrize("nothing", ["def implementation(:\n", "a\0b", "(" * 500])
def test_what_is_no_python_is_no_attempt(nothing: str) -> None:
    assert code_digest(nothing) is None


def test_a_function_of_a_docstring_alone_can_be_compared() -> None:
    assert code_digest('def f():\n    """Nothing."""\n') == code_digest("def f():\n    pass\n")


def test_differences_are_lines() -> None:
    after = CODE.replace("+ 1", "+ 2")
    assert changed_lines(CODE, after) == ["-     return data + 1", "+     return data + 2"]
    assert first_difference(CODE, after) == (5, "return data + 1", "return data + 2")
    with pytest.raises(ValueError, match="do not differ"):
        first_difference(CODE, CODE)


def test_the_closest_is_what_a_file_began_as() -> None:
    other = "def implementation(logits):\n    return logits.softmax(-1)\n"
    assert closest(CODE.replace("+ 1", "+ 3"), [other, CODE]) == 1
    assert closest(other + "# mine\n", [other, CODE]) == 0


def test_assertions_are_found_with_all_their_lines() -> None:
    source = (
        "def check(implementation):\n"
        "    assert (\n"
        "        implementation(1) == 2\n"
        "    )\n"
        "    torch.testing.assert_close(1, 1)\n"
        "    assert_shape(1)\n"
        "    print(1)\n"
        "    if False:\n"
        "        raise ValueError('no')\n"
    )
    assert sorted((lines.start, lines.stop, text) for lines, text in assertions(source)) == [
        (2, 5, "assert ("),
        (5, 6, "torch.testing.assert_close(1, 1)"),
        (6, 7, "assert_shape(1)"),
        (9, 10, "raise ValueError('no')"),
    ]
