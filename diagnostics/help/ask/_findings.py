"""What a request for help says was found: the first failure in full, the others in a line each."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from diagnostics._result import Status
from diagnostics._text import say
from diagnostics.help.ask._text import FILL_IN, block, bullets, quote, sentences

_TITLE_MAX = 160  # characters of the claim
_FAILING = (Status.FAIL, Status.ERROR)


def first_failure(content: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the result that the report names to be mended first, or else any that failed."""
    failing: list[Mapping[str, Any]] = [r for r in content["results"] if r["status"] in _FAILING]
    named = [result for result in failing if result["check"] == content["first_failure"]]
    return next(iter([*named, *failing]), None)


def title(content: Mapping[str, Any], first: Mapping[str, Any] | None) -> str:
    """Return the heading: the first failure, or a place for what the person sees."""
    if first is None:
        known = "nothing fails" if content["passed"] else "nothing could be measured"
        return f"# {FILL_IN} in one line, what goes wrong ({known})"
    word = "raises" if first["status"] == Status.ERROR else "fails"
    claim = textwrap.shorten(first["claim"], _TITLE_MAX, placeholder=" ...")
    return f"# {quote(first['check'])} {word}: {quote(claim)}"


def expected_and_actual(content: Mapping[str, Any], first: Mapping[str, Any] | None) -> str:
    """Return the section on the first failure; without one it asks the person for the symptom."""
    return _nothing_failed(content) if first is None else _failure(first)


def _failure(first: Mapping[str, Any]) -> str:
    """Return the first failure in full; an ERROR expected nothing but to come to an end."""
    actual = [first["claim"]]
    actual += [f"{name}: {first[name]}" for name in ("measured", "where") if first[name]]
    parts = [
        "## Expected and actual",
        f"Check {quote(first['check'])}, stage {quote(first['stage'])}, reason "
        f"{quote(first['reason'])}.",
        f"Expected:\n\n{sentences(first['expected'] or 'the check comes to its end')}",
        f"Actual:\n\n{sentences(*actual)}",
    ]
    trace = first.get("traceback") or first["numbers"].get("traceback")
    if isinstance(trace, str) and trace:
        parts.append(f"Traceback:\n\n{block(trace)}")
    if first["causes"]:
        causes = [f"{n}. {cause}" for n, cause in enumerate(first["causes"], 1)]
        parts.append(
            f"What could produce these numbers, most likely first:\n\n{sentences(*causes)}"
        )
    elif first["status"] == Status.FAIL:
        parts.append("The numbers do not point to a cause.")
    if first["next_step"]:
        parts.append(f"Next step that the report names:\n\n{sentences(first['next_step'])}")
    parts.append(f"{FILL_IN} what did you want to do, and what did you see yourself?")
    return "\n\n".join(parts)


def _nothing_failed(content: Mapping[str, Any]) -> str:
    results = content["results"]
    count = sum(result["status"] in (Status.PASS, Status.WARN) for result in results)
    told = (
        say(
            "Nothing failed: {n:check|checks} of {total} measured something, and all of them "
            "passed or warned. So the checks do not see what goes wrong.",
            n=count,
            total=len(results),
        )
        if count
        else say("Nothing could be measured: each of the checks lacks a part of the pipeline.")
    )
    return "\n\n".join(
        [
            "## Expected and actual",
            told,
            f"{FILL_IN} what did you expect, and what did you see instead: which number, which "
            "text, after how many steps?",
            'To find the check that measures it: `python -m diagnostics --symptom "what you see"`',
        ]
    )


def other_findings(content: Mapping[str, Any], first: Mapping[str, Any] | None) -> str:
    """Return the further failures and the warnings, one line each."""
    results = content["results"]
    failing = [r for r in results if r["status"] in _FAILING and r is not first]
    own = [_finding(r) for r in failing if r["consequence_of"] is None]
    following = [
        f"- {quote(r['check'])}: likely a consequence of {quote(r['consequence_of'])}"
        for r in failing
        if r["consequence_of"] is not None
    ]
    warnings = [_finding(r) for r in results if r["status"] == Status.WARN]
    parts = []
    if failing:
        parts.append("## Other failures\n\n" + bullets([*own, *following]))
    if warnings:
        parts.append("## Warnings\n\n" + bullets(warnings))
    return "\n\n".join(parts)


def _finding(result: Mapping[str, Any]) -> str:
    told = f"- {quote(result['check'])} ({quote(result['reason'])}): {quote(result['claim'])}"
    for name in ("measured", "expected"):
        told += f"; {name} {quote(result[name])}" if result[name] else ""
    return told


def measured(content: Mapping[str, Any]) -> str:
    """Return which checks passed, and what would unlock those that measured nothing."""
    results = content["results"]
    passed = [quote(r["check"]) for r in results if r["status"] == Status.PASS]
    skipped = [r for r in results if r["status"] == Status.SKIP]
    lines = []
    if passed:
        lines.append(say("Passed, {n}: ", n=len(passed)) + ", ".join(passed) + ".")
    if skipped:
        rows = [f"- {quote(r['check'])}: {quote(r['next_step'] or r['claim'])}" for r in skipped]
        lines.append(say("Not measured, {n}:", n=len(skipped)) + "\n\n" + bullets(rows))
    return "\n\n".join(["## What else was measured", *lines]) if lines else ""
