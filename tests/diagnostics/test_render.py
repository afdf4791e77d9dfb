"""Plain text: status words, 88 columns, ASCII, the headline last."""

from __future__ import annotations

import re

import pytest

from diagnostics import Status
from diagnostics._catalog import CATALOG
from diagnostics._render import WIDTH, render_catalog, render_report, render_result
from tests.diagnostics.test_report import report, result

LONG = "a sentence of twelve words that has to be broken somewhere in the middle " * 3


@pytest.mark.parametrize(
    ("status", "label"),
    [
        (Status.PASS, "[OK]"),
        (Status.WARN, "[WARN]"),
        (Status.FAIL, "[FAIL]"),
        (Status.SKIP, "[SKIP]"),
        (Status.ERROR, "[ERROR]"),
    ],
)
def test_status_words_come_first(status: Status, label: str) -> None:
    """Never colour alone."""
    assert render_result(result("shift", status)).startswith(f"{label} shift: a claim")


def test_a_pass_is_one_line() -> None:
    """Its claim holds the number; measured and next are for those that did not pass."""
    passed = result("shift", Status.PASS, measured="1", next_step="none", causes=("x",))
    assert render_result(passed) == "[OK] shift: a claim"


def test_a_failure_shows_every_field_in_order() -> None:
    """What came, what was wanted, where, why, and what to do."""
    failed = result(
        "shift",
        Status.FAIL,
        measured="0.5",
        expected="1",
        where="row 3",
        causes=("first", "second"),
        next_step="look",
    )
    assert render_result(failed).splitlines() == [
        "[FAIL] shift: a claim",
        "  measured 0.5",
        "  expected 1",
        "  where    row 3",
        "  likely causes, most likely first",
        "    1. first",
        "    2. second",
        "  next     look",
    ]


def test_fields_without_content_are_left_out() -> None:
    """No empty headings."""
    assert render_result(result("shift", Status.FAIL)) == "[FAIL] shift: a claim"


def test_long_sentences_are_wrapped_with_a_hanging_indent() -> None:
    """Also inside a report, which indents by two."""
    failed = result("shift", Status.FAIL, claim=LONG, measured=LONG, causes=(LONG,), next_step=LONG)
    text = render_report(report(failed, notes=(LONG,)))
    assert max(map(len, text.splitlines())) <= WIDTH
    assert text.isascii()
    joined = re.sub(r"\s+", " ", text)
    assert (
        joined.count(LONG.strip()) == 7
    )  # four fields, the note, claim and next step of the headline


def test_what_cannot_be_broken_stays_whole() -> None:
    """A path is copied as one piece, even when it is long."""
    path = "/".join(["folder"] * 20)
    assert path in render_result(result("files", Status.FAIL, claim="no file", where=path))


def test_consequences_are_named() -> None:
    """They say what to mend first."""
    shown = render_result(result("shapes", Status.FAIL, consequence_of="batches"))
    assert "likely a consequence of batches: mend it first" in shown


def test_the_headline_stands_last() -> None:
    """Counts, then what to mend first with its next step."""
    text = render_report(
        report(
            result("shift", Status.PASS, seconds=1.0),
            result("loss", Status.FAIL, claim="it is wrong", next_step="do this"),
            result("overfit", Status.SKIP),
        )
    )
    assert text.splitlines()[-3:] == [
        "3 checks: 1 passed, 1 failed, 1 skipped (1.0 s)",
        "mend first: loss (loss): it is wrong",
        "       next: do this",
    ]
    assert text.splitlines()[0] == "batches"


@pytest.mark.parametrize(
    ("statuses", "headline"),
    [
        ([Status.PASS, Status.WARN], "all checks passed"),
        ([Status.PASS, Status.SKIP], "all checks that could run passed; a skipped check says"),
        ([Status.SKIP], "nothing could be measured; each skipped check says"),
        ([], "nothing could be measured"),
    ],
)
def test_headline_without_a_failure(statuses: list[Status], headline: str) -> None:
    """A skip is never shown as green."""
    names = list(CATALOG)
    text = render_report(report(*(result(names[n], s) for n, s in enumerate(statuses))))
    assert text.splitlines()[-1].startswith(headline)


def test_the_list_shows_every_check_under_its_stage() -> None:
    """One line a check where the question is short enough."""
    text = render_catalog()
    assert max(map(len, text.splitlines())) <= WIDTH
    for row in CATALOG.values():
        assert re.search(rf"^  {row.name} ", text, re.MULTILINE)
    assert text.splitlines()[0] == "environment"
