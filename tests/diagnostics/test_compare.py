"""Reports made by hand, whose differences are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diagnostics import _suite
from diagnostics._report import Report
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._stored import StoredReportError
from diagnostics.compare import Comparison, _origin, compare_files, compare_reports
from diagnostics.compare._leaves import LENGTH, Nature, difference, leaves, spell
from diagnostics.compare._verdicts import Kind

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "minigpt_diagnostics": "1.0", "threads": 1}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences are compared as they stand on 88 columns, whatever the terminal at hand."""
    monkeypatch.setenv("COLUMNS", "88")


def result(
    reason: str, status: Status = Status.PASS, claim: str = "", **fields: Any
) -> CheckResult:
    return verdict(status, reason, claim or f"{reason} is so", **fields)


def report(*results: CheckResult, seed: int = 42, **environment: Any) -> dict[str, Any]:
    """A report as its JSON gives it back."""
    made = Report(results=results, seed=seed, environment=ENVIRONMENT | environment)
    content: dict[str, Any] = json.loads(made.to_json())
    return content


def compare(a: CheckResult | None, b: CheckResult | None) -> Comparison:
    """Compare two reports that have one check beside `shapes`, which passes in both."""
    shapes = result("shapes.ok")
    before, after = ([r for r in (side, shapes) if r is not None] for side in (a, b))
    return compare_reports(report(*before), report(*after))


def flat(found: object) -> str:
    """A text in one line, wherever it was wrapped."""
    return " ".join(str(found).split())


def kind_of(a: CheckResult | None, b: CheckResult | None) -> tuple[Kind | None, int]:
    found = compare(a, b)
    return (found.verdicts[0].kind if found.verdicts else None), found.exit_code


PASS = result("shift.ok")
WARN = result("shift.odd", Status.WARN)
FAIL = result("shift.identical", Status.FAIL)
OTHER_FAIL = result("shift.too_far", Status.FAIL)
ERROR = result("shift.raised", Status.ERROR)
SKIP = result("shift.missing_part", Status.SKIP)
ALLOWED = result("shift.identical", Status.WARN)


@pytest.mark.parametrize("before", [PASS, WARN, SKIP, None])
@pytest.mark.parametrize("after", [FAIL, ERROR])
def test_what_fails_and_did_not_is_newly_failing(
    before: CheckResult | None, after: CheckResult
) -> None:
    assert kind_of(before, after) == (Kind.FAILS, 1)


@pytest.mark.parametrize("before", [PASS, WARN, FAIL])
@pytest.mark.parametrize("after", [SKIP, None])
def test_coverage_that_is_lost_is_worse_and_never_good(
    before: CheckResult, after: CheckResult | None
) -> None:
    """Also of a failure: that it is not measured any more does not mend it."""
    assert kind_of(before, after) == (Kind.UNMEASURED, 1)


@pytest.mark.parametrize(
    ("before", "after", "kind", "code"),
    [
        (PASS, WARN, Kind.WARNS, 1),
        (SKIP, WARN, Kind.WARNS, 1),
        (FAIL, OTHER_FAIL, Kind.OTHERWISE, 0),
        (FAIL, ERROR, Kind.OTHERWISE, 0),
        (ERROR, FAIL, Kind.OTHERWISE, 0),
        (FAIL, ALLOWED, Kind.ACCEPTED, 0),
        (FAIL, WARN, Kind.BETTER, 0),
        (FAIL, PASS, Kind.BETTER, 0),
        (ERROR, PASS, Kind.BETTER, 0),
        (WARN, PASS, Kind.BETTER, 0),
        (SKIP, PASS, Kind.MEASURED, 0),
        (None, PASS, Kind.MEASURED, 0),
        (WARN, ALLOWED, Kind.REASON, 0),
        (ERROR, SKIP, Kind.OTHER, 0),
        (SKIP, None, Kind.OTHER, 0),
        (None, SKIP, Kind.OTHER, 0),
        (PASS, PASS, None, 0),
        (FAIL, FAIL, None, 0),
        (SKIP, SKIP, None, 0),
    ],
)
def test_each_other_transition_has_its_kind(
    before: CheckResult | None, after: CheckResult | None, kind: Kind | None, code: int
) -> None:
    assert kind_of(before, after) == (kind, code)


def test_identical_reports_say_so_and_nothing_else() -> None:
    found = compare(PASS, PASS)
    assert found.identical
    assert str(found) == (
        "A  A: 2 checks, 2 passed; seed 42\n"
        "B  B: 2 checks, 2 passed; seed 42\n"
        "\n"
        "the two reports are identical: 2 checks, every number alike"
    )


def test_two_equal_failures_are_no_good_news() -> None:
    found = compare(FAIL, FAIL)
    assert str(found).endswith(
        "the two reports are identical: 2 checks, every number alike; shift fails in both"
    )


def test_times_do_not_make_two_reports_different() -> None:
    made = Report(results=(PASS,), seed=42, environment=ENVIRONMENT)
    other = Report(
        results=(
            CheckResult(
                check="shift", status=PASS.status, reason=PASS.reason, claim=PASS.claim, seconds=9.5
            ),
        ),
        seed=42,
        environment=ENVIRONMENT,
    )
    assert compare_reports(made.to_dict(timings=True), other.to_dict(timings=True)).identical


def test_a_new_failure_is_told_whole() -> None:
    """At 88 columns: headline, verdicts with both measurements, what is known."""
    healthy = result(
        "shift.ok",
        claim="all 256 targets are the token after their input",
        measured="100 % one place later",
    )
    broken = result(
        "shift.identical",
        Status.FAIL,
        "the targets equal the inputs",
        measured="0 % one place later",
    )
    assert str(compare(healthy, broken)) == (
        "A  A: 2 checks, 2 passed; seed 42\n"
        "B  B: 2 checks, 1 passed, 1 failed; seed 42\n"
        "\n"
        "B is worse: shift fails, and passed in A: the targets equal the inputs\n"
        "\n"
        "verdicts: 1 worse, 1 the same\n"
        "  newly failing\n"
        "    [OK] -> [FAIL] shift: the targets equal the inputs\n"
        "      A  100 % one place later\n"
        "      B  0 % one place later\n"
        "  mend first: nothing in A, shift in B\n"
        "\n"
        "what is known, and what can explain it\n"
        "  - not known for both: weights, training ids, validation ids, tokenizer fingerprint,\n"
        "    vocabulary size, token range and batch shape\n"
        "  - the seed and the environment are the same; where nothing else differs, a run\n"
        "    repeats itself bit for bit, so what differs comes from the weights, the data, the\n"
        "    options of the run, code (the model's, the loader's or this library's) or a part\n"
        "    that does not repeat itself\n"
        "  - the reports hold no digest of code, so they cannot say which"
    )


def test_causes_stand_before_their_consequences() -> None:
    """The batches come first in the catalogue's order, and are explained by the shift."""
    late = result("training_step.unclear", Status.FAIL)
    explained = CheckResult(
        check="batches", status=Status.FAIL, reason="batches.edge", claim="x", consequence_of="loss"
    )
    ok = (result("batches.ok"), result("training_step.ok"))
    found = compare_reports(report(*ok), report(explained, late))
    assert [change.check for change in found.verdicts] == ["training_step", "batches"]
    assert "    [OK] -> [FAIL] batches: likely a consequence of loss" in str(found)
    assert "B is worse: training_step fails, and passed in A" in str(found)
    assert "; 1 more verdict is worse" in flat(found)


def test_a_new_consequence_of_an_old_failure_is_named_as_one() -> None:
    """The shift fails in both: only what it explains is new."""
    explained = CheckResult(
        check="batches",
        status=Status.FAIL,
        reason="batches.edge",
        claim="x",
        consequence_of="shift",
    )
    found = compare_reports(report(FAIL, result("batches.ok")), report(FAIL, explained))
    assert "batches fails, and passed in A: x (likely a consequence of shift)\n" in str(found)


def test_a_failure_that_became_another_names_both_reasons() -> None:
    found = compare(FAIL, OTHER_FAIL)
    told = "shift fails otherwise than before: shift.identical -> shift.too_far"
    assert told in flat(found)
    assert "  mend first, in both: shift" in str(found)


def test_an_accepted_finding_is_not_called_better() -> None:
    found = compare(FAIL, ALLOWED)
    assert "  the same finding, now a warning\n" in str(found)
    assert "better" not in str(found)


def test_checks_of_one_report_alone_stand_together() -> None:
    a = report(result("shapes.ok"), result("overfit.ok"), result("honesty.ok"))
    found = compare_reports(a, report(result("shapes.ok")))
    assert "B measures less: overfit, honesty measured something in A and nothing in B" in str(
        found
    )
    assert (
        "    in A only: overfit, honesty (not asked for in the other, or unknown to its\n"
        "      version)\n"
    ) in str(found)
    assert found.exit_code == 1
    back = compare_reports(report(result("shapes.ok")), a)
    assert back.exit_code == 0
    assert "  newly measured\n    in B only: overfit, honesty" in str(back)


def test_a_check_that_the_catalogue_does_not_know_comes_last() -> None:
    a = report(result("zebra.ok"), result("shift.ok"))
    b = report(result("zebra.bad", Status.FAIL), FAIL)
    assert [c.check for c in compare_reports(a, b).verdicts] == ["shift", "zebra"]


# ---- numbers ---------------------------------------------------------------------------------


def moved(a: dict[str, Any], b: dict[str, Any], check: str = "shapes", **around: Any) -> str:
    """Compare two reports whose one check has these numbers."""
    before = report(result(f"{check}.ok", numbers=a))
    return str(compare_reports(before, report(result(f"{check}.ok", numbers=b), **around)))


def test_rows_hold_both_values_and_the_change() -> None:
    """100 -> 150 is +50 %, 1 -> 40 is x 40, 5 -> 0.25 is / 20; the largest change first."""
    text = moved(
        {"half": 100.0, "much": 1.0, "less": 5.0, "same": 7, "gone": 3},
        {"half": 150.0, "much": 40.0, "less": 0.25, "same": 7, "gone": 0},
    )
    assert text.partition("numbers: ")[2].partition("\n\n")[0] == (
        "moved in 1 of 1 check with the same verdict\n"
        "  shapes: 4 of 5 values moved\n"
        "    gone  3 -> 0, to 0\n"
        "    much  1 -> 40, x 40\n"
        "    less  5 -> 0.25, / 20\n"
        "    and 1 more"
    )


def test_a_number_that_is_lost_comes_before_all_others() -> None:
    text = moved({"a": 1.0, "b": 1.0, "name": "x"}, {"a": 90.0, "b": "nan", "name": "y"})
    rows = text.partition("values moved\n")[2].splitlines()[:3]
    assert rows == ["    b     1 -> nan", "    name  x -> y", "    a     1 -> 90, x 90"]


def test_text_is_told_from_the_number_that_looks_like_it() -> None:
    assert '    x  1 -> "1"' in moved({"x": 1}, {"x": "1"})


def test_long_texts_are_shown_from_where_they_differ() -> None:
    text = moved({"name": "a" * 40 + "one"}, {"name": "a" * 40 + "two"})
    assert "    name  ...aaaaaaone -> ...aaaaaatwo" in text
    text = moved({"name": "x" * 40}, {"name": "y" * 40})
    assert f"    name  {'x' * 21}... -> {'y' * 21}..." in text


def test_digits_are_added_until_two_values_differ() -> None:
    assert "    loss  4.46689 -> 4.46697, +0.00179 %" in moved({"loss": 4.46689}, {"loss": 4.46697})


def test_lists_of_other_lengths_are_compared_as_far_as_both_go() -> None:
    text = moved({"curve": [4.0, 2.0, 1.0]}, {"curve": [4.0, 3.0]})
    assert "  shapes: 1 of 2 values moved\n" in text
    assert "    length of curve  3 -> 2\n" in text
    assert "    curve[1]         2 -> 3, +50 %" in text


def test_values_of_one_table_are_told_by_the_largest_change() -> None:
    norms = {"a.weight": 1.0, "b.weight": 1.0, "c.weight": 1.0}
    text = moved({"norms": norms}, {"norms": norms | {"a.weight": 2.0, "b.weight": 4.0}})
    assert "    norms[b.weight]  1 -> 4, +300 %, largest of 2" in text


def test_a_list_of_names_is_one_value() -> None:
    text = moved({"missing": []}, {"missing": ["head.weight"]})
    assert '    missing  [] -> ["head.weight"]' in text


def test_an_empty_table_and_a_full_one_are_compared_whole() -> None:
    text = moved({"dead": {}}, {"dead": {"blocks.0": 0.5}})
    assert '    dead  {} -> {"blocks.0": 0.5}' in text
    assert "recorded in" not in text


def test_what_one_report_alone_records_is_no_change() -> None:
    text = moved({"kept": 1}, {"kept": 1, "histogram": {"bins": [[0, 0, 3]], "unused": 2}})
    assert "no verdict changed, and no number that both record; what differs: what is" in text
    assert "numbers: none moved in 1 check with the same verdict\n" in text
    assert "  recorded in B only: shapes.histogram" in text


def test_rounding_is_counted_and_not_listed() -> None:
    """1e-6 of the value; 0.5 % where a check trains; residuals of 1e-9 beside 1e-8."""
    text = moved({"loss": 1.0}, {"loss": 1.000001})
    assert "no verdict changed, and numbers differ by no more than rounding" in text
    assert "  of rounding size: 1 number (within 1.00e-05 of the value" in text
    assert "no more than rounding" in moved({"final": 1.0}, {"final": 1.005}, "overfit")
    assert "no more than rounding" not in moved({"final": 1.0}, {"final": 1.005})
    assert "no more than rounding" in moved({"misfits": [1e-9]}, {"misfits": [1e-8]})
    assert "no more than rounding" not in moved({"misfits": [1e-9]}, {"misfits": [1e-3]})
    assert "no more than rounding" not in moved({"rate": 1e-9}, {"rate": 1e-8})


@pytest.mark.parametrize(
    ("a", "b", "nature"),
    [
        (1, 2, Nature.MOVED),
        (10**9, 10**9 + 1, Nature.MOVED),  # a count is exact, however large
        (10**400, 1.0, Nature.MOVED),
        (1.0, 1.5, Nature.MOVED),
        (1.0, 1.0 + 1e-6, Nature.ROUNDING),
        (1.0, "nan", Nature.NOT_FINITE),
        ("inf", "-inf", Nature.NOT_FINITE),
        (float("inf"), 1.0, Nature.MOVED),  # never so in JSON; leaves spells it as a string
        ("nan", "word", Nature.EXACT),
        (True, False, Nature.EXACT),
        (1, True, Nature.EXACT),
        (None, 0, Nature.EXACT),
        ("a", "b", Nature.EXACT),
    ],
)
def test_a_difference_has_the_nature_of_its_values(a: Any, b: Any, nature: Nature) -> None:
    found = difference("shapes", ("x",), a, b, learned=False)
    assert found is not None
    assert found.nature is nature


@pytest.mark.parametrize("value", [1, 1.5, "nan", "x", None, True, []])
def test_equal_values_do_not_differ(value: Any) -> None:
    assert difference("shapes", ("x",), value, value, learned=False) is None
    assert difference("shapes", ("x",), 1, 1.0, learned=False) is None


def test_leaves_are_paths_with_lengths() -> None:
    nested = {"a": [1, 2], "b": {"c.d": "x", "e": []}, "f": ["p", "q"], "g": float("nan")}
    assert dict(leaves(nested)) == {
        ("a", LENGTH): 2,
        ("a", 0): 1,
        ("a", 1): 2,
        ("b", "c.d"): "x",
        ("b", "e"): [],
        ("f",): ["p", "q"],
        ("g",): "nan",
    }
    assert spell(("b", "c.d")) == "b[c.d]"
    assert spell(("curve", "loss", 3)) == "curve.loss[3]"
    assert spell(("curve", LENGTH)) == "length of curve"


def test_a_deep_nest_is_walked() -> None:
    deep: Any = 1
    for _ in range(5000):
        deep = {"x": deep}
    assert next(leaves(deep))[1] == 1


def test_many_checks_are_counted_after_the_first_six() -> None:
    names = ["shift", "batches", "modes", "shapes", "loss", "prefix", "context", "padding"]
    a = report(*(result(f"{n}.ok", numbers={"x": 1.0}) for n in names))
    b = report(*(result(f"{n}.ok", numbers={"x": 2.0}) for n in names))
    assert "  and in 2 more: context, padding\n" in str(compare_reports(a, b))


# ---- what can explain it ---------------------------------------------------------------------


def explained(text: str) -> str:
    return flat(text.partition("can explain it\n")[2])


def test_other_seeds_explain_numbers() -> None:
    text = moved({"x": 1.0}, {"x": 2.0}, seed=7)
    assert "no verdict changed; the seeds differ, and with them numbers of 1 check" in text
    assert (
        "the seeds differ (42 and 7), so the draws do: for that reason alone numbers differ, and a "
        "verdict near its limit can; run both with --seed 42 to leave the draws out"
    ) in explained(text)


def test_other_kernels_explain_rounding_and_no_more() -> None:
    small = explained(moved({"x": 1.0}, {"x": 1.000001}, threads=2))
    assert (
        "the seed is the same, and every difference has the size of rounding, which a difference "
        "in threads can give; no other cause is needed"
    ) in small
    assert "threads matter for a model of 1,000,000 parameters or more" in small
    large = explained(moved({"x": 1.0}, {"x": 2.0}, threads=2))
    assert (
        "a difference in threads can change rounding, and 1 number changed by more than that"
    ) in large
    assert (
        "so look at the weights, the data, the options of the run and code (the model's, the "
        "loader's or this library's) first; a run of both in one environment settles it"
    ) in large


def test_another_torch_is_not_ruled_out() -> None:
    text = moved({"x": 1.0}, {"x": 2.0}, torch="2.14.0")
    assert "  torch  2.13.0 -> 2.14.0\n" in text
    assert "another torch can also change draws, types or code" in explained(text)


def test_a_difference_that_explains_nothing_is_named_without_a_claim() -> None:
    known = {"system_release": "5"}
    a = report(result("shapes.ok", numbers={"x": 1.0}), **known)
    b = report(result("shapes.ok", numbers={"x": 2.0}), system_release="6")
    assert (
        "the seed and the environment (but for system release, which is not known to change a "
        "number here) are the same"
    ) in explained(str(compare_reports(a, b)))


def test_nothing_follows_the_environment_where_no_number_moves() -> None:
    text = moved({"x": 1.0}, {"x": 1.0}, threads=2)
    assert "no verdict changed, and no number that both record; what differs: threads" in text
    assert "nothing that was measured follows what differs: threads" in explained(text)


def test_a_package_that_an_old_report_does_not_name_is_no_difference() -> None:
    old = report(PASS)
    del old["environment"]["minigpt_diagnostics"]
    found = compare_reports(old, report(PASS, transformers="5.1"))
    assert found.facts.environment == {}
    new = compare_reports(report(PASS), report(PASS, transformers="5.1"))
    assert new.facts.environment == {"transformers": (None, "5.1")}


def test_another_tokenizer_is_named() -> None:
    def with_print(fingerprint: str) -> dict[str, Any]:
        numbers = {"fingerprint": fingerprint}
        return report(result("fingerprint.ok", numbers=numbers), result("shapes.ok"))

    text = explained(str(compare_reports(with_print("aa"), with_print("bb"))))
    assert (
        "not the same in both: tokenizer fingerprint; numbers that depend on them can differ for "
        "that reason alone"
    ) in text


def test_reports_without_seed_or_environment_claim_nothing() -> None:
    a, b = report(PASS), report(FAIL)
    a["environment"] = {}
    assert "a report does not name its environment" in explained(str(compare_reports(a, b)))
    a["seed"] = None
    assert "other draws cannot be ruled out" in explained(str(compare_reports(a, b)))


OPTIONS = {"only": None, "skip": [], "fast": False, "overfit_steps": 300}
SUBJECT = {
    "model": "GPT",
    "parameters": 10,
    "trainable": 10,
    "dtype": "float32",
    "weights_sha256": "a" * 64,
    "train_ids_sha256": "b" * 64,
    "val_ids_sha256": "c" * 64,
    "options": OPTIONS,
}


def of_subjects(
    a: dict[str, Any],
    b: dict[str, Any],
    *,
    check: str = "shapes",
    x: float = 2.0,
    **around: Any,
) -> str:
    """Compare a number, 1 in A, of reports whose subjects differ from SUBJECT by these fields."""
    before = report(result(f"{check}.ok", numbers={"x": 1.0})) | {"subject": SUBJECT | a}
    after = report(result(f"{check}.ok", numbers={"x": x}), **around) | {"subject": SUBJECT | b}
    return str(compare_reports(before, after))


def test_the_same_weights_ids_and_options_leave_code_or_what_does_not_repeat_itself() -> None:
    text = explained(of_subjects({}, {}))
    assert "the same in both: weights, training ids and validation ids - " in text
    assert (
        "the seed, the environment, the weights, the ids and the options are the same; where "
        "nothing else differs, a run repeats itself bit for bit, so what differs comes from code "
        "(the model's, the loader's or this library's) or a part that does not repeat itself"
    ) in text


def test_other_weights_are_named_and_shown_by_their_first_digits() -> None:
    text = of_subjects({}, {"weights_sha256": "d" * 64})
    assert "  weights  aaaaaaaaaaaa -> dddddddddddd\n" in text
    told = explained(text)
    assert (
        "not the same in both: weights; numbers that depend on them can differ for that reason "
        "alone - the same in both: training ids and validation ids - "
    ) in told
    assert (
        "so what differs comes from the weights (not the same), code (the model's, the loader's "
        "or this library's) or a part that does not repeat itself"
    ) in told
    assert "the seed, the environment, the ids and the options are the same;" in told


def test_other_ids_are_told_from_other_weights() -> None:
    told = explained(of_subjects({}, {"train_ids_sha256": "d" * 64, "val_ids_sha256": "e" * 64}))
    assert "comes from the training ids and validation ids (not the same), code (" in told
    assert "the seed, the environment, the weights and the options are the same;" in told


def test_frozen_parameters_differ_though_the_weights_do_not() -> None:
    told = explained(of_subjects({}, {"trainable": 3}))
    assert "not the same in both: trainable parameters; numbers that depend" in told
    assert "the same in both: weights," in told


@pytest.mark.parametrize("a", [None, "a" * 64])
def test_what_has_no_digest_is_neither_the_same_nor_other(a: str | None) -> None:
    told = explained(of_subjects({"weights_sha256": a}, {"weights_sha256": None}))
    assert "not known for both: weights, tokenizer fingerprint" in told
    assert "comes from the weights, code (the model's" in told
    assert "the seed, the environment, the ids and the options are the same;" in told


def test_ids_of_one_part_alone_do_not_clear_all_data() -> None:
    none = {"val_ids_sha256": None}
    told = explained(of_subjects(none, none))
    assert "not known for both: validation ids," in told
    assert "comes from data without a digest, code (" in told
    assert (
        "the seed, the environment, the weights, the training ids and the options are the" in told
    )


def test_a_report_without_a_subject_says_nothing_of_it() -> None:
    old = report(result("shapes.ok", numbers={"x": 1.0})) | {"schema_version": 1}
    del old["kind"], old["subject"]
    new = report(result("shapes.ok", numbers={"x": 2.0})) | {"subject": SUBJECT}
    for pair in ((old, new), (new, old)):
        found = compare_reports(*pair)
        told = explained(str(found))
        assert "not known for both: weights, training ids, validation ids," in told
        assert "the weights, the data, the options of the run, code (" in told
        assert found.to_dict()["subject"] == found.to_dict()["options"] == {}


def test_another_environment_leaves_what_is_not_the_same() -> None:
    told = explained(of_subjects({}, {"weights_sha256": "d" * 64}, threads=2))
    assert (
        "so look at the weights (not the same) and code (the model's, the loader's or this "
        "library's) first"
    ) in told


def test_other_weights_that_change_no_number_claim_nothing() -> None:
    text = of_subjects({}, {"weights_sha256": "d" * 64}, x=1.0)
    assert "no number that both record; what differs: weights\n" in text
    assert "nothing that was measured follows what differs: weights" in explained(text)


def covered(a: dict[str, Any], b: dict[str, Any], checks: tuple[str, ...]) -> str:
    """Compare a report of `shapes` and these checks with one of `shapes` alone."""
    before = report(result("shapes.ok"), *(result(f"{name}.ok") for name in checks))
    before["subject"] = SUBJECT | {"options": OPTIONS | a}
    after = report(result("shapes.ok")) | {"subject": SUBJECT | {"options": OPTIONS | b}}
    return explained(str(compare_reports(before, after)))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"fast": True}, "fast (no -> yes)"),
        ({"only": ["shapes"]}, "only (all -> shapes)"),
        ({"skip": ["honesty", "overfit"]}, "skip (none -> honesty, overfit)"),
    ],
)
def test_options_explain_lost_coverage(asked: dict[str, Any], told: str) -> None:
    text = covered({}, asked, ("overfit", "honesty"))
    assert f"other options of the run: {told} - " in text
    assert "options of B leave out overfit, honesty, which the other was asked for" in text
    assert "do not explain" not in text
    assert "nothing that was measured" not in text


def test_options_do_not_explain_a_check_that_they_ask_for() -> None:
    """`fast` leaves out `overfit` and not `range`; the same options leave out neither."""
    text = covered({}, {"fast": True}, ("overfit", "range", "zebra"))
    assert "the options of B leave out overfit, which" in text
    assert "the options do not explain that B has no range, zebra" in text
    text = covered({}, {}, ("overfit",))
    assert "other options" not in text
    assert "the options do not explain that B has no overfit" in text


def test_options_explain_a_check_that_is_new_in_b() -> None:
    before = report(result("shapes.ok")) | {"subject": SUBJECT}
    before["subject"] = SUBJECT | {"options": OPTIONS | {"fast": True}}
    after = report(result("shapes.ok"), result("overfit.ok")) | {"subject": SUBJECT}
    assert "the options of A leave out overfit" in explained(str(compare_reports(before, after)))


def test_other_steps_are_named_for_the_check_that_counts_them() -> None:
    other = {"options": OPTIONS | {"overfit_steps": 20}}
    told = explained(of_subjects({}, other))
    assert "other options of the run: overfit steps (300 -> 20) - " in told
    assert "so what differs comes from code (" in told
    told = explained(of_subjects({}, other, check="overfit"))
    assert "comes from overfit steps (for the check overfit alone), code (" in told
    assert "the seed, the environment, the weights and the ids are the same;" in told


def test_options_that_nobody_can_read_are_no_reason_to_stop() -> None:
    odd = {"options": {"only": [3], "skip": {}, "fast": "x", "overfit_steps": [HOSTILE]}}
    text = of_subjects(odd, {"options": {"only": None}, "model": [HOSTILE], "parameters": {}})
    assert "the options of the run, code" in explained(text)
    text = of_subjects(odd, {"dtype": HOSTILE, "model": HOSTILE})
    assert all(line.isprintable() for line in text.split("\n"))
    assert max(map(len, text.split("\n"))) <= 88
    text.encode("utf-8")


def test_one_limit_of_small_models() -> None:
    """The constant stands twice so that a comparison does not wait for torch."""
    assert _origin.SMALL_MODEL == _suite.ONE_THREAD_MAX


# ---- files, plain values, hostile text -------------------------------------------------------


def test_files_are_read_and_called_by_their_names(tmp_path: Path) -> None:
    for name, content in (("a.json", report(PASS)), ("b.json", report(FAIL))):
        (tmp_path / name).write_text(json.dumps(content))
    found = compare_files(tmp_path / "a.json", tmp_path / "b.json")
    assert (found.a.name, found.b.name, found.exit_code) == ("a.json", "b.json", 1)
    with pytest.raises(StoredReportError):
        compare_files(tmp_path / "a.json", tmp_path / "none.json")


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "r.json").write_text(json.dumps(report(PASS)))
    found = compare_files(tmp_path / "x" / "r.json", tmp_path / "y" / "r.json")
    assert found.a.name != found.b.name


def test_formats_of_two_versions_are_compared_as_far_as_both_go() -> None:
    old = report(PASS)
    old["schema_version"] = 1
    del old["kind"]
    assert (
        "note: A has version 1 of the format and B version 2: what one alone records is not\n"
        "      compared"
    ) in str(compare_reports(old, report(PASS)))


def test_words_that_no_number_explains_are_noted() -> None:
    text = str(compare(PASS, result("shift.ok", claim="another sentence")))
    assert "note: in words alone these differ: shift" in text


def test_plain_values_hold_everything_and_are_json() -> None:
    a = report(PASS, result("shapes.ok", numbers={"x": 1.0, "y": 1}))
    b = report(FAIL, result("shapes.ok", numbers={"x": "inf", "y": 3}), threads=2)
    content = json.loads(json.dumps(compare_reports(a, b).to_dict(), allow_nan=False))
    assert (content["kind"], content["exit_code"], content["worse"]) == (
        "diagnostics.comparison",
        1,
        1,
    )
    assert content["verdicts"][0]["b"]["reason"] == "shift.identical"
    assert [group["nature"] for group in content["numbers"][0]["groups"]] == ["not_finite", "moved"]
    assert content["numbers"][0]["groups"][0]["relative"] is None
    assert content["environment"] == {"threads": [1, 2]}
    assert content["subject"] == content["options"] == {}


HOSTILE = "\x1b[31m\u202eevil\ud800 <b> {x} \n\n" + "w" * 300


@pytest.mark.parametrize("columns", [80, 88, 120])
def test_hostile_text_stays_inside_its_lines(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    a = report(
        result("shift.ok", claim=HOSTILE, measured=HOSTILE),
        result("shapes.ok", numbers={HOSTILE: 1.0, "name": HOSTILE}),
    )
    b = report(
        result(f"shift.{HOSTILE}", Status.FAIL, HOSTILE, measured=HOSTILE),
        result("shapes.ok", numbers={HOSTILE: 2.0, "name": "x", "only": {HOSTILE: 1}}),
        python=HOSTILE,
        **{HOSTILE: 1},
    )
    text = str(compare_reports(a, b, names=(HOSTILE, "b.json")))
    assert text.isprintable() or all(line.isprintable() for line in text.split("\n"))
    assert max(map(len, text.split("\n"))) <= min(columns, 88)
    text.encode("utf-8")
