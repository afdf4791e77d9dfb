"""Every line of the table is executed: the bug is injected and caught for its reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from diagnostics import Status
from exercises._lab import Lab
from tests.catalogue._row import Caught, Unseen
from tests.catalogue._table import all_rows, caught_rows, run, unseen_rows


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One laboratory for the whole table."""
    with Lab() as made:
        yield made


@pytest.mark.parametrize("row", caught_rows(), ids=lambda row: row.id)
def test_injected_bug_is_caught_for_its_reason(row: Caught, lab: Lab) -> None:
    """The check that the table names speaks, with the reason that the table names."""
    result = run(row.check, row.inject, lab)
    assert (result.check, result.status, result.reason) == (row.check, row.status, row.reason), (
        result.claim
    )


@pytest.mark.parametrize("row", caught_rows(), ids=lambda row: row.id)
def test_without_the_bug_the_check_measures_and_does_not_fail(row: Caught, lab: Lab) -> None:
    """A catch counts only if the same pipeline without the bug is measured and not accused."""
    result = run(row.check, row.healthy, lab)
    assert result.status in (Status.PASS, Status.WARN), (result.status, result.claim)
    assert result.reason != row.reason


@pytest.mark.parametrize("row", unseen_rows(), ids=lambda row: row.id)
def test_unseen_bugs_say_why(row: Unseen) -> None:
    """A line that cannot be executed gives a reason in a whole sentence."""
    assert len(row.why.split()) >= 6


def test_each_bug_stands_in_one_line() -> None:
    """No id is listed twice."""
    assert [i for i, n in Counter(row.id for row in all_rows()).items() if n > 1] == []
