from __future__ import annotations

import pytest

from diagnostics.page._verdicts import read_stored
from tests.diagnostics.page.stored_reports import failing, report, result


def test_the_first_failure_is_the_named_one_then_one_of_its_own_then_any() -> None:
    explained = result("text", "fail", consequence_of="range")
    own = result("overfit", "fail")
    named = read_stored(report(explained, own, first_failure="overfit")).first
    unnamed = read_stored(report(explained, own, first_failure=None)).first
    alone = read_stored(report(explained, first_failure="gone")).first
    assert [v.check for v in (named, unnamed, alone) if v] == ["overfit", "overfit", "text"]


def test_a_name_that_did_not_fail_is_no_failure() -> None:
    assert read_stored(report(result("shift"), first_failure="shift")).first is None


def test_anchors_are_readable_unique_and_never_made_of_a_hostile_name() -> None:
    stored = read_stored(
        report(result("shift"), result("shift"), result('x" onclick="y'), result("\u202e"))
    )
    assert [v.anchor for v in stored.verdicts] == [
        "check-shift",
        "check-shift.1",
        "check-.2",
        "check-.3",
    ]


def test_parts_that_may_stand_twice_have_no_anchors() -> None:
    stored = read_stored(failing(), linked=False)
    assert {v.anchor for v in stored.verdicts} == {""}
    assert {stage.anchor for stage in stored.stages} == {""}


def test_a_stage_that_only_the_report_knows_follows_those_of_the_catalogue() -> None:
    stages = read_stored(report(result("mine", stage="mine"), result("shift"))).stages
    assert (len(stages), stages[-1].name, stages[-1].status) == (15, "mine", "pass")


def test_names_are_put_in_one_order_with_numbers_by_their_size() -> None:
    numbers = {"blocks.10": 1, "blocks.2": {"b": 1, "a": [{"d": 1, "c": 2}]}, "a": 0}
    (verdict,) = read_stored(report(result("shift", numbers=numbers))).verdicts
    assert list(verdict.numbers) == ["a", "blocks.2", "blocks.10"]
    assert list(verdict.numbers["blocks.2"]) == ["a", "b"]
    assert list(verdict.numbers["blocks.2"]["a"][0]) == ["c", "d"]


@pytest.mark.parametrize("wrong", [None, 3, "text", [1]])
def test_a_part_of_another_form_counts_as_missing(wrong: object) -> None:
    entry = result("shift", numbers=wrong, causes=3, claim=None)
    stored = read_stored(report(entry, environment=wrong, debug=wrong, notes=3))
    (verdict,) = stored.verdicts
    assert (verdict.numbers, verdict.causes, verdict.claim) == ({}, (), "")
    assert (stored.environment, stored.debug, stored.notes) == ({}, {}, ())
