"""Stored reports: what is read, and what each thing that is none is called."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

from diagnostics import Pipeline, Status, _stored_json, diagnose
from diagnostics._self_test import self_test
from diagnostics._stored import StoredReportError, load_report
from diagnostics._text import say
from diagnostics.monitor import postmortem
from tests.diagnostics.test_report import report, result
from tests.diagnostics.tiny import Bigram

WHOLE = report(
    result("shift", Status.FAIL, claim=say("{n} rows", n=3), numbers={"share": math.nan}),
    result("loss", Status.PASS, seconds=1.5),
    result("mine", Status.SKIP),
    seed=7,
    notes=("a note",),
)
CONTENT = WHOLE.to_dict(timings=True)


def _refused(given: Any) -> str:
    with pytest.raises(StoredReportError) as caught:
        load_report(given)
    message = str(caught.value)
    assert message.isprintable()
    return message


def _changed(*path: Any, value: Any) -> str:
    content = copy.deepcopy(CONTENT)
    *parents, last = path
    part: Any = content
    for name in parents:
        part = part[name]
    part[last] = value
    return json.dumps(content)


# ---- what is read ----------------------------------------------------------------------------


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(WHOLE.to_json(timings=True), encoding="utf-8")
    assert load_report(path) == load_report(str(path)) == CONTENT
    assert load_report(WHOLE.to_json(timings=True)) == CONTENT
    assert load_report(path)["results"][0]["numbers"]["share"] == "nan"


def test_a_real_report_is_read() -> None:
    real = diagnose(Pipeline(Bigram()), fast=True)
    assert load_report(real.to_json()) == json.loads(real.to_json())


def test_version_1_had_no_kind() -> None:
    old = {name: value for name, value in CONTENT.items() if name != "kind"}
    old["schema_version"] = 1
    assert load_report(json.dumps(old)) == old
    del old["subject"]
    assert load_report(json.dumps(old)) == old
    old["subject"] = []
    assert "subject must be an object, got a list" in _refused(json.dumps(old))


def test_a_subject_is_read_whatever_else_a_later_release_writes_in_it() -> None:
    subject = {"weights_sha256": None, "text_sha256": "0" * 64, "model": "GPT", "device": "cpu"}
    changed = _changed("subject", value=subject)
    assert load_report(changed)["subject"] == subject


def test_checks_stages_and_fields_of_a_later_release_are_read() -> None:
    for changed in (
        _changed("results", 1, "check", value="tomorrow"),
        _changed("results", 1, "stage", value="serving"),
        _changed("results", 1, "owner", value="me"),
        _changed("environment", "rocm", value=True),
        _changed("a_new_field", value=[1]),
    ):
        assert load_report(changed) == json.loads(changed)


def test_hostile_text_comes_back_unharmed() -> None:
    hostile = "<script>\x1b[2J\u202e\U0001f600\ud800"
    assert load_report(_changed("results", 0, "claim", value=hostile))["results"][0]["claim"] == (
        hostile
    )


@pytest.mark.parametrize(
    "encoding",
    [
        *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"),
        *("utf-32", "utf-32-le", "utf-32-be"),
    ],
)
def test_what_a_shell_may_write_is_read(encoding: str, tmp_path: Path) -> None:
    """PowerShell's `>` writes UTF-16 with a byte order mark; an editor may add one to UTF-8."""
    path = tmp_path / "r.json"
    path.write_bytes(json.dumps(CONTENT, ensure_ascii=False).encode(encoding))
    assert load_report(path) == CONTENT


def test_text_may_begin_with_a_mark_or_with_space() -> None:
    text = json.dumps(CONTENT)
    assert load_report("\ufeff" + text) == load_report("\n  " + text) == CONTENT


# ---- what is no JSON -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "the text is no JSON: expecting property name enclosed in double quotes at line 1"),
        ('{"a": 1}\n{"a": 1}', "the text is no JSON: extra data at line 2, column 1"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice in one object"),
        ('{"a": NaN}', 'NaN is a bare word; a report writes such numbers as "nan" or "inf"'),
        ('{"a": -Infinity}', "-Infinity is a bare word"),
        ('{"a": 1e999}', "the number 1e999 is too large for a float"),
        ('{"a": ' + "1" * 5000 + "}", "a whole number has 5,000 digits"),
        ("[" * 100_000, "the text is nested deeper than 64 levels, which no report is"),
        ('{"a":' * 70 + "1" + "}" * 70, "the text is nested deeper than 64 levels"),
        ("[1, 2]", "the text holds a list, and a report is an object"),
        ("{}", "the text holds an empty object, not a report"),
        ('{"tool": 1, "runs": 2}', "an object with the keys 'tool', 'runs', not a report"),
    ],
)
def test_text_that_is_none(text: str, message: str) -> None:
    assert message in _refused(text)


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def says(raw: bytes) -> str:
        Path("r.json").write_bytes(raw)
        return _refused("r.json")

    assert says(b"") == says(b" \n") == "r.json is empty"
    assert says(b"shift\n  [OK] shift: all 12 targets are") == (
        "r.json is no JSON: expecting value at line 1, column 1; it looks like what a terminal "
        "shows, and `--json FILE` writes the report"
    )
    assert says(b'{"a": "\xff"}') == "r.json is no UTF-8 text: byte 7 does not fit"
    assert says(b"\xff\xfe{") == "r.json is no UTF-16 text: byte 2 does not fit"
    assert says(b'"a report"') == "r.json holds a string, and a report is an object"
    assert says(b"\x89PNG\r\n\x1a\n").startswith("r.json is no UTF-8 text")


def test_places_that_cannot_be_read(tmp_path: Path) -> None:
    assert _refused(tmp_path / "none.json").endswith("cannot be read: No such file or directory")
    assert "cannot be read" in _refused(tmp_path)
    assert "cannot be read" in _refused("a\0b")
    assert "cannot be read" in _refused("")
    assert "\\u202e" in _refused("no\u202efile")


def test_a_huge_file_is_not_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_stored_json, "SIZE_MAX_BYTES", 2**20)
    path = tmp_path / "r.json"
    path.write_bytes(b" " * (2**20 + 1))
    assert _refused(path) == f"{path} is larger than 1 MB, which no report is"
    assert _refused("{" + " " * 2**20) == "the text is larger than 1 MB, which no report is"


# ---- what is JSON of another kind ------------------------------------------------------------


def test_other_files_of_ours_are_named() -> None:
    found = self_test(Pipeline(Bigram()), only=["padding"])
    assert "a self-test, whose report of the healthy pipeline is its part `healthy`" in _refused(
        found.to_json()
    )
    dead = {"schema": postmortem.SCHEMA, "version": postmortem.VERSION}
    assert "a post-mortem of the training monitor" in _refused(json.dumps(dead))
    grades = {"format": "minigpt-diagnostics grades", "version": 1, "students": []}
    assert "holds grades, not a report" in _refused(json.dumps(grades))
    other = {"kind": "diagnostics.run", "schema_version": 1}
    assert "JSON of the kind 'diagnostics.run'" in _refused(json.dumps(other))


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (3, "has schema version 3, written by a newer release; this one reads up to version 2"),
        (0, "schema_version must be 1 to 2, got 0"),
        ("2", "schema_version must be 1 to 2, got '2'"),
        (True, "schema_version must be 1 to 2, got True"),
        (None, "schema_version must be 1 to 2, got null"),
        (2.0, "schema_version must be 1 to 2, got 2.0"),
    ],
)
def test_versions_that_are_not_known(version: Any, message: str) -> None:
    assert message in _refused(_changed("schema_version", value=version))


# ---- what has another form -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("passed",), 0, "passed must be true or false, got a whole number"),
        (("first_failure",), 3, "first_failure must be a string or null, got a whole number"),
        (("seed",), 7.5, "seed must be a whole number, got a number"),
        (("seed",), True, "seed must be a whole number, got true or false"),
        (("debug",), None, "debug must be an object, got null"),
        (("environment",), [], "environment must be an object, got a list"),
        (("notes",), "a note", "notes must be a list, got a string"),
        (("notes",), [3], "notes[0] must be a string, got a whole number"),
        (("results",), {}, "results must be a list, got an object"),
        (("results", 1), "x", "results[1] must be an object, got a string"),
        (("results", 1, "check"), "", "results[1].check is empty"),
        (("results", 1, "stage"), None, "results[1].stage must be a string, got null"),
        (("results", 1, "status"), "ok", "results[1].status must be one of pass, warn, fail,"),
        (("results", 1, "causes"), [[]], "results[1].causes[0] must be a string, got a list"),
        (("results", 1, "numbers"), [], "results[1].numbers must be an object, got a list"),
        (("results", 1, "where"), 3, "results[1].where must be a string, got a whole number"),
        (("results", 1, "consequence_of"), 3, "results[1].consequence_of must be a string or null"),
        (("results", 0, "claim_facts"), [], "results[0].claim_facts must be an object, got a list"),
        (("results", 1, "seconds"), "1 s", "results[1].seconds must be a number, got a string"),
        (("results", 1, "check"), "shift", "holds two results of 'shift'"),
        (("subject",), None, "subject must be an object, got null"),
        (("subject",), {"weights_sha256": 1}, "subject.weights_sha256 must be a string or null"),
        (("subject",), {"weights_sha256": "A" * 64}, "must be 64 hexadecimal digits or null, got"),
        (("subject",), {"\x1b_sha256": "a"}, "subject.\\x1b_sha256 must be 64 hexadecimal digits"),
        (("subject",), {"options": []}, "subject.options must be an object, got a list"),
        (("passed",), True, "says that passed is true, and its results say the opposite"),
        (("first_failure",), "loss", "names 'loss' as its first failure, and no such result"),
        (("first_failure",), "none", "names 'none' as its first failure, and no such result"),
    ],
)
def test_wrong_types_and_contradictions(path: tuple[Any, ...], value: Any, message: str) -> None:
    assert message in _refused(_changed(*path, value=value))


@pytest.mark.parametrize("name", sorted(set(CONTENT) - {"kind", "schema_version"}))
def test_each_field_is_missed(name: str) -> None:
    content = {key: value for key, value in CONTENT.items() if key != name}
    assert f"{name} is missing" in _refused(json.dumps(content))


@pytest.mark.parametrize(
    "name", sorted(set(CONTENT["results"][1]) - {"claim_template", "claim_facts", "seconds"})
)
def test_each_field_of_a_result_is_missed(name: str) -> None:
    def drop(result: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in result.items() if key != name}

    assert f"results[0].{name} is missing" in _refused(
        _changed("results", value=[drop(r) for r in CONTENT["results"]])
    )


def test_hostile_names_stay_on_one_line() -> None:
    hostile = json.dumps({"\x1b[2J\u202e\n\ud800": 1})
    assert "\\x1b[2J\\u202e\\n\\ud800" in _refused(hostile)
