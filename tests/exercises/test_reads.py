"""Which parts a check reads: what was not read can be replaced by anything without a difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from diagnostics import CATALOG, diagnose
from diagnostics._pipeline import _CALLABLE_PARTS
from exercises._lab import Lab
from exercises._reads import PARTS, diagnose_watched


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def raising(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("a part was called that the check was said not to read")


@pytest.mark.parametrize("check", [name for name, row in CATALOG.items() if not row.learns])
def test_unread_parts_make_no_difference(lab: Lab, check: str) -> None:
    """The same result, number by number, with every unread part replaced by one that raises."""
    report, read = diagnose_watched(lab.pipeline(), check, seed=lab.seed)
    assert report.results[0].passed
    unread = {name: raising for name in _CALLABLE_PARTS if name not in read}
    assert unread, "a check that reads everything proves nothing here"
    again = diagnose(lab.pipeline(**unread), seed=lab.seed, only=[check])
    first, second = (json.loads(each.to_json())["results"] for each in (report, again))
    assert first == second


def test_reads_are_parts_and_the_obvious_ones(lab: Lab) -> None:
    _, read = diagnose_watched(lab.pipeline(), "shift", seed=lab.seed)
    assert read <= PARTS
    assert "get_batch" in read
    assert "evaluate" not in read


def test_replaced_parts_are_those_of_the_last_pipeline_described(lab: Lab) -> None:
    """An edited model is in every part that makes one; what is not known counts as all."""
    first = lab.pipeline(evaluate=raising)
    assert lab.replaced_parts(first) == {"evaluate"}
    edited = lab.pipeline(edit_model=lambda model: model, evaluate=raising)
    assert lab.replaced_parts(edited) == {
        "model", "make_model", "load", "load_state", "evaluate",
    }  # fmt: skip
    assert lab.replaced_parts(first) is None, "another one was described since"
    assert lab.replaced_parts(lab.pipeline()) is None, "the bug is outside of the parts"
    switched = lab.pipeline(evaluate=raising)
    lab.undo_later(lambda: None)
    assert lab.replaced_parts(switched) is None, "a switch of the process can be read anywhere"
    lab.restore()
