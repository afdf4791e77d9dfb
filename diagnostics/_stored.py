"""A stored report, read back: `--json FILE` of this or an earlier release, and nothing else.

What pages, comparisons and questions rely on is checked here, by hand and without jsonschema, so
that no other file has to doubt it. Checks that this release does not know are read like any other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from diagnostics._report import KIND, SCHEMA_VERSION
from diagnostics._result import Status
from diagnostics._stored_json import StoredReportError, load_json
from diagnostics._text import printable

__all__ = ["StoredReportError", "load_report"]

_DIGEST = re.compile(r"[0-9a-f]{64}")
FAILED = (Status.FAIL, Status.ERROR)
_REPORT_TEXTS = ("check", "stage", "family", "status", "reason", "claim")
_OTHER_TEXTS = ("measured", "expected", "where", "next_step")


def load_report(path_or_text: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the content of a stored report, as `Report.to_dict` gave it when it was written.

    path_or_text: a path, or the JSON itself: a str whose first character is "{" or "[".
    Reads schema versions 1 and 2; UTF-8, and UTF-16 or UTF-32 with or without a byte order mark.
    Non-finite numbers stay the strings "nan", "inf" and "-inf".

    Raises StoredReportError for what is no JSON, no report, a report of a newer version, larger
    than 64 MB, nested deeper than 64 levels, holds a key twice, a value of another type than the
    schema has, or results that contradict the verdict; and for a file that cannot be read.
    """
    name, content = load_json(path_or_text)
    _require_report(content, name)
    _require_form(content, name)
    return content


# ---- is it a report? -------------------------------------------------------------------------


def _require_report(content: Any, name: str) -> None:
    if not isinstance(content, dict):
        raise StoredReportError(f"{name} holds {_kind_of(content)}, and a report is an object")
    version = content.get("schema_version")
    if content.get("kind") != KIND and not (_is_version_1(content)):
        raise StoredReportError(f"{name} holds {_other_kind(content)}, not a report")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise StoredReportError(
            f"{name}: schema_version must be 1 to {SCHEMA_VERSION}, got {_shown(version)}"
        )
    if version > SCHEMA_VERSION:
        raise StoredReportError(
            f"{name} has schema version {version}, written by a newer release; this one reads up "
            f"to version {SCHEMA_VERSION}"
        )


def _is_version_1(content: Mapping[str, Any]) -> bool:
    return "kind" not in content and content.get("schema_version") == 1 and "results" in content


def _other_kind(content: Mapping[str, Any]) -> str:
    kind = content.get("kind", content.get("schema", content.get("format")))
    if kind == "diagnostics.self_test" or {"trials", "healthy"} <= content.keys():
        return "a self-test, whose report of the healthy pipeline is its part `healthy`"
    if kind == "diagnostics.monitor.postmortem":
        return "a post-mortem of the training monitor"
    if kind == "minigpt-diagnostics grades" or {"tests", "score"} <= content.keys():
        return "grades"
    if isinstance(kind, str):
        return f"JSON of the kind {kind[:80]!r}"
    keys = ", ".join(repr(key[:40]) for key in list(content)[:4])
    return f"an object with the keys {keys}" if keys else "an empty object"


# ---- does it have the form that the schema gives it? -----------------------------------------


def _require_form(content: Mapping[str, Any], name: str) -> None:
    """Check every value that a page, a comparison or a sentence is made from."""
    _require(content, name, "", "passed", bool)
    _require(content, name, "", "first_failure", str, or_null=True)
    _require(content, name, "", "seed", int)
    for field in ("debug", "environment"):
        _require(content, name, "", field, dict)
    if "subject" in content or content["schema_version"] > 1:
        _require_subject(content, name)
    _require_texts(content, name, "", "notes")
    _require(content, name, "", "results", list)
    for index, result in enumerate(content["results"]):
        _require_result(result, name, f"results[{index}]")
    _require_agreement(content, name)


def _require_subject(content: Mapping[str, Any], name: str) -> None:
    """Check the digests that a comparison believes; a report made by hand has none of them."""
    _require(content, name, "", "subject", dict)
    for field, value in content["subject"].items():
        if field.endswith("_sha256"):
            _require(content["subject"], name, "subject", field, str, or_null=True)
            if value is not None and not _DIGEST.fullmatch(value):
                raise StoredReportError(
                    f"{name}: subject.{printable(field[:40])} must be 64 hexadecimal digits or "
                    f"null, got {_shown(value)}"
                )
    if "options" in content["subject"]:
        _require(content["subject"], name, "subject", "options", dict)


def _require_result(result: Any, name: str, place: str) -> None:
    if not isinstance(result, dict):
        raise StoredReportError(f"{name}: {place} must be an object, got {_kind_of(result)}")
    for field in (*_REPORT_TEXTS, *_OTHER_TEXTS):
        _require(result, name, place, field, str)
    for field in _REPORT_TEXTS:
        if not result[field]:
            raise StoredReportError(f"{name}: {place}.{field} is empty")
    if result["status"] not in list(Status):
        raise StoredReportError(
            f"{name}: {place}.status must be one of {', '.join(Status)}, got "
            f"{_shown(result['status'])}"
        )
    _require_texts(result, name, place, "causes")
    _require(result, name, place, "numbers", dict)
    _require(result, name, place, "consequence_of", str, or_null=True)
    if "claim_template" in result:
        _require(result, name, place, "claim_template", str)
        _require(result, name, place, "claim_facts", dict)
    if "seconds" in result:
        _require(result, name, place, "seconds", float)


def _require_agreement(content: Mapping[str, Any], name: str) -> None:
    """Refuse a verdict that its results contradict: a page would show both."""
    statuses: dict[str, str] = {}
    for result in content["results"]:
        if result["check"] in statuses:
            raise StoredReportError(f"{name} holds two results of {_shown(result['check'])}")
        statuses[result["check"]] = result["status"]
    failed = any(status in FAILED for status in statuses.values())
    measured = any(status in (Status.PASS, Status.WARN) for status in statuses.values())
    if content["passed"] != (measured and not failed):
        raise StoredReportError(
            f"{name} says that passed is {str(content['passed']).lower()}, and its results say "
            f"the opposite"
        )
    first = content["first_failure"]
    if first is not None and statuses.get(first) not in FAILED:
        raise StoredReportError(
            f"{name} names {_shown(first)} as its first failure, and no such result failed"
        )


_WORDS = {
    bool: "true or false",
    str: "a string",
    int: "a whole number",
    float: "a number",
    dict: "an object",
    list: "a list",
}


def _require(
    values: Mapping[str, Any], name: str, place: str, field: str, kind: type, or_null: bool = False
) -> None:
    where = f"{place}.{field}" if place else field
    if field not in values:
        raise StoredReportError(f"{name}: {where} is missing")
    value = values[field]
    if value is None and or_null:
        return
    wanted: tuple[type, ...] = (int, float) if kind is float else (kind,)
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        words = _WORDS[kind] + (" or null" if or_null else "")
        raise StoredReportError(f"{name}: {where} must be {words}, got {_kind_of(value)}")


def _require_texts(values: Mapping[str, Any], name: str, place: str, field: str) -> None:
    _require(values, name, place, field, list)
    for index, text in enumerate(values[field]):
        if not isinstance(text, str):
            where = f"{place}.{field}" if place else field
            raise StoredReportError(
                f"{name}: {where}[{index}] must be a string, got {_kind_of(text)}"
            )


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    return next(word for kind, word in _WORDS.items() if isinstance(value, kind))


def _shown(value: Any) -> str:
    return "null" if value is None else printable(repr(value)[:80])
