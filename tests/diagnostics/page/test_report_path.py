from __future__ import annotations

from typing import Any

from diagnostics._catalog import STAGES
from diagnostics.page._report_path import path, path_note
from diagnostics.page._verdicts import read_stored
from tests.diagnostics.page.parsing import Node, read
from tests.diagnostics.page.stored_reports import failing, healthy, report, result


def nodes(content: dict[str, Any]) -> dict[str, Node]:
    tree = read(path(read_stored(content)))
    return {node.one("span", "stage-name").text: node for node in tree.one("ol").all("li")}


def states(content: dict[str, Any]) -> dict[str, str]:
    return {name: node.one("span", "word").text for name, node in nodes(content).items()}


def marks(content: dict[str, Any]) -> dict[str, str]:
    found = {name: node.all("span", "mark") for name, node in nodes(content).items()}
    return {name: mark[0].text for name, mark in found.items() if mark}


def test_all_stages_stand_in_their_order_asked_for_or_not() -> None:
    assert list(nodes(report())) == list(STAGES)
    assert set(states(report()).values()) == {"not asked for"}


def test_a_stage_is_as_well_as_its_worst_check() -> None:
    found = states(failing())
    assert {name: state for name, state in found.items() if state != "not asked for"} == {
        "environment": "passed",
        "ids": "failed",
        "batches": "passed",
        "loss": "warned",
        "causality": "skipped",
        "validation": "raised",
    }


def test_the_first_broken_stage_is_marked_and_what_is_downstream_may_follow_from_it() -> None:
    content = failing()
    content["results"].append(result("overfit", "fail", consequence_of="range"))
    assert marks(content) == {
        "ids": "mend first",
        "loss": "may be a consequence",
        "validation": "may be a consequence",
        "overfit": "likely a consequence",
    }
    downstream = [name for name, node in nodes(content).items() if "downstream" in node.classes]
    assert downstream == list(STAGES[STAGES.index("ids") + 1 :])


def test_a_skip_beside_passes_is_told_and_a_stage_of_skips_is_no_pass() -> None:
    assert marks(healthy()) == {"causality": "1 of 6 skipped"}
    assert states(report(result("padding", "skip")))["causality"] == "skipped"


def test_a_stage_with_checks_leads_to_them_and_another_is_plain_text() -> None:
    found = nodes(report(result("shift")))
    assert found["batches"].one("a").attributes["href"] == "#stage-batches"
    assert not found["files"].all("a")


def test_stages_of_your_own_come_last() -> None:
    content = report(result("mine", stage="my stage"))
    assert list(nodes(content)) == [*STAGES, "my stage"]


def test_the_note_tells_a_broken_pipeline_from_a_check_that_could_not_finish() -> None:
    failed = path_note(read_stored(report(result("shift", "fail"))))
    raised = path_note(read_stored(report(result("shift", "error"))))
    assert read(failed or "").text == (
        "What follows batches was measured on a pipeline that is broken there, and its passes "
        "too. Mend that, and run the checks again."
    )
    assert read(raised or "").text == (
        "What follows batches comes after a check that could not finish. Mend that, and run the "
        "checks again."
    )
    assert path_note(read_stored(healthy())) is None
