"""Small reports as plain values, written by hand, for tests of what is made from them."""

from __future__ import annotations

from typing import Any

from diagnostics._catalog import CATALOG

HOSTILE = (
    "</summary></details></style><script>alert(1)</script><img src=x onerror=alert(2)> "
    "\"'`&lt; \x1b[31m\x00 \u202e \u05e9\u05dc\u05d5\u05dd \ud83d \U0001f600 " + "x" * 200
)


def result(check: str, status: str = "pass", **fields: Any) -> dict[str, Any]:
    """Return one result as the JSON report has it."""
    return {
        "check": check,
        "stage": CATALOG[check].stage if check in CATALOG else "custom",
        "status": status,
        "reason": f"{check}.{status}",
        "claim": f"the claim of {check}",
        "measured": "",
        "expected": "",
        "where": "",
        "causes": [],
        "next_step": "",
        "numbers": {},
        "consequence_of": None,
    } | fields


def report(*results: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a report of these results."""
    failed = [r["check"] for r in results if r["status"] in ("fail", "error")]
    return {
        "schema_version": 2,
        "passed": not failed,
        "first_failure": failed[0] if failed else None,
        "seed": 42,
        "debug": {},
        "environment": {"python": "3.12.1", "cuda_available": False, "cuda_devices": []},
        "notes": [],
        "results": list(results),
    } | fields


def failing() -> dict[str, Any]:
    """Return a report with one fault, one consequence, one fault that nothing explains, a skip."""
    return report(
        result("environment", claim="Python 3.12.1 with torch 2.4.0"),
        result(
            "range",
            "fail",
            claim="train_ids hold the id 87 at position 7, outside 0 to 86",
            measured="ids from 0 to 87",
            expected="0 to 86, for a vocabulary of 87",
            where="1 of 36000 ids; first is position 7",
            causes=["a special token was added", "ids of another tokenizer"],
            next_step="print(tokenizer.vocab_size, model.config.vocab_size)",
            numbers={"max": 87, "counts": {"train_ids": 36000}},
        ),
        result("text", "fail", claim="ids decode to nothing", consequence_of="range"),
        result("shift"),
        result("loss", "warn", claim="the loss is smoothed", next_step="declare it"),
        result("padding", "skip", claim="not measured", next_step="give Pipeline pad_id"),
        result("evaluation", "error", claim="the check could not finish: ValueError: no data"),
        notes=["the model could not be copied"],
    )


def healthy() -> dict[str, Any]:
    """Return a report in which all of the catalogue passes but one check, which was skipped."""
    results = [result(check) for check in CATALOG if check != "padding"]
    skip = result("padding", "skip", claim="not measured", next_step="give Pipeline pad_id")
    results.insert(list(CATALOG).index("padding"), skip)
    return report(*results)
