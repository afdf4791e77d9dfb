from __future__ import annotations

from typing import Any

from diagnostics.page._report_headline import counts, headline
from diagnostics.page._verdicts import read_stored
from tests.diagnostics.page.parsing import Node, read
from tests.diagnostics.page.stored_reports import failing, healthy, report, result


def card(content: dict[str, Any]) -> Node:
    return read(headline(read_stored(content), "h1"))


def facts(tree: Node) -> dict[str, str]:
    rows = tree.one("dl", "facts")
    return {dt.text: dd.text for dt, dd in zip(rows.all("dt"), rows.all("dd"), strict=True)}


def test_a_failure_says_what_to_mend_first_and_why() -> None:
    tree = card(failing())
    assert tree.one("h1").text == "\N{BALLOT X} Failed: mend range first"
    assert tree.one("p", "lead").text == "train_ids hold the id 87 at position 7, outside 0 to 86"
    assert facts(tree) == {
        "why first": "it likely explains 1 other finding further down",
        "measured": "ids from 0 to 87",
        "expected": "0 to 86, for a vocabulary of 87",
        "where": "1 of 36000 ids; first is position 7",
        "likely cause": "a special token was added",
        "next": "print(tokenizer.vocab_size, model.config.vocab_size)",
    }


def test_the_other_findings_follow_each_with_what_explains_it() -> None:
    tree = card(failing())
    assert [node.text for node in tree.one("ul", "plain").all("li")] == [
        "\N{BALLOT X} failed text \N{EN DASH} likely a consequence of range: mend that first",
        "! warned loss \N{EN DASH} the loss is smoothed",
        "\N{DOWNWARDS ZIGZAG ARROW} raised evaluation \N{EN DASH} "
        "the check could not finish: ValueError: no data",
    ]


def test_a_failure_without_a_cause_says_that_the_numbers_point_to_none() -> None:
    tree = card(report(result("shift", "fail")))
    assert facts(tree) == {
        "why first": "no other check failed",
        "likely cause": "the numbers do not point to one",
    }


def test_a_check_that_raised_names_no_cause() -> None:
    tree = card(report(result("shift", "error"), result("overfit", "error")))
    assert tree.one("h1").text == "\N{DOWNWARDS ZIGZAG ARROW} Raised: mend shift first"
    assert facts(tree) == {
        "why first": "it is the first fault in the order of the pipeline: batches"
    }


def test_a_healthy_report_says_what_was_not_measured_and_what_a_pass_is_worth() -> None:
    tree = card(healthy())
    assert tree.one("h1").text == "\N{CHECK MARK} 32 checks passed, 1 could not be measured"
    assert tree.one("p", "lead").text == "Something was measured at all 14 stages."
    assert tree.one("p", "list-title").text == "1 check says nothing: it could not be measured"
    assert tree.one("ul", "plain").text == "padding \N{EN DASH} give Pipeline pad_id"
    assert "not that the model is right" in tree.one("section").text


def test_a_report_of_some_stages_names_them() -> None:
    tree = card(report(result("shift"), result("overfit")))
    assert tree.one("p", "lead").text == (
        "Something was measured at 2 of 14 stages: batches, overfit."
    )


def test_a_report_that_mostly_skipped_is_not_green() -> None:
    tree = card(report(result("shift"), result("files", "skip"), result("split", "skip")))
    assert tree.one("h1").text == "\N{WHITE CIRCLE} 1 check passed, 2 could not be measured"
    assert tree.one("h1").classes == ["skip"]


def test_a_report_that_only_skipped_passed_nothing() -> None:
    tree = card(report(result("files", "skip")))
    assert tree.one("h1").text == "\N{WHITE CIRCLE} Nothing could be measured"
    assert "passed" not in tree.text


def test_an_empty_report_says_that_nothing_was_asked_for() -> None:
    assert card(report()).one("h1").text == "\N{WHITE CIRCLE} No check was asked for"


def test_a_warning_asks_for_a_judgement() -> None:
    tree = card(report(result("shift"), result("loss", "warn", claim="the loss is smoothed")))
    assert tree.one("h1").text == "! 1 check passed, 1 warned"
    assert tree.one("p", "list-title").text == "A person has to judge"
    assert tree.one("ul", "plain").text == "loss \N{EN DASH} the loss is smoothed"


def test_what_the_file_calls_a_pass_is_judged_by_its_results() -> None:
    content = report(result("shift", "fail")) | {"passed": True, "first_failure": None}
    assert card(content).one("h1").text == "\N{BALLOT X} Failed: mend shift first"


def test_the_first_failure_is_the_one_that_the_report_names() -> None:
    """A fault that is latent on this device may come earlier and still not be the first to mend."""
    content = report(result("shapes", "fail"), result("overfit", "fail"), first_failure="overfit")
    tree = card(content)
    assert tree.one("h1").text == "\N{BALLOT X} Failed: mend overfit first"
    assert facts(tree)["why first"] == (
        "what failed before it raised, or harms nothing where the run is now"
    )


def test_the_counts_are_of_every_state_and_of_what_was_not_asked_for() -> None:
    tree = read(counts(read_stored(failing())))
    assert [node.text for node in tree.all("li")] == [
        "2 \N{CHECK MARK} passed",
        "1 ! warned",
        "2 \N{BALLOT X} failed",
        "1 \N{DOWNWARDS ZIGZAG ARROW} raised",
        "1 \N{WHITE CIRCLE} skipped",
        "26 \N{MIDDLE DOT} not asked for",
    ]
