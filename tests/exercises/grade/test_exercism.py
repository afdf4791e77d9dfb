from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema

from exercises.grade._results import StudentGrade
from exercises.grade.exercism import TRUNCATED, exercism_results, write_exercism
from tests.exercises.grade import samples

SCHEMA: dict[str, Any] = {  # https://exercism.org/docs/building/tooling/test-runners/interface
    "type": "object",
    "required": ["version", "status"],
    "additionalProperties": False,
    "properties": {
        "version": {"const": 3},
        "status": {"enum": ["pass", "fail", "error"]},
        "message": {"type": "string", "maxLength": 65_535},
        "tests": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "status", "test_code"],
                "additionalProperties": False,
                "properties": {
                    "name": {"type": "string"},
                    "status": {"enum": ["pass", "fail", "error"]},
                    "message": {"type": "string", "maxLength": 65_535, "minLength": 1},
                    "output": {"type": "string", "maxLength": 500},
                    "test_code": {"type": "string"},
                    "task_id": {"type": "integer", "minimum": 1},
                },
                "if": {"properties": {"status": {"const": "pass"}}},
                "else": {"required": ["message"]},
            },
        },
    },
    "if": {"properties": {"status": {"const": "error"}}},
    "then": {"required": ["message"]},
    "else": {"required": ["tests"], "not": {"required": ["message"]}},
}
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_one_test_per_file_in_order() -> None:
    assert exercism_results(samples.student(samples.FIX, samples.INVALID, samples.TIMEOUT)) == {
        "version": 3,
        "status": "fail",
        "tests": [
            {
                "name": "fix_shift",
                "status": "pass",
                "test_code": "python -m exercises.break_shift --fix",
                "task_id": 1,
                "output": "[OK] fix_shift.py passes",
            },
            {
                "name": "check_sampling",
                "status": "fail",
                "test_code": "python -m exercises.break_sampling --check check_sampling.py",
                "task_id": 2,
                "message": "[FAIL] accepts 2 of 3 correct implementations, so it is not valid\n"
                "it rejects the correct implementation sorted: sum is 0.9999999, expected 1 "
                "(line 12)",
            },
            {
                "name": "model",
                "status": "error",
                "test_code": "python -m diagnostics --target model.py:build_pipeline",
                "task_id": 3,
                "message": "[ERROR] model.py did not end in time",
            },
        ],
    }


def test_all_right_passes() -> None:
    assert exercism_results(samples.student(samples.FIX))["status"] == "pass"


def test_an_error_only_where_nothing_was_graded() -> None:
    assert exercism_results(samples.BOMBER) == {
        "version": 3,
        "status": "error",
        "message": "a unpacks to 1000000000000 bytes",
    }
    assert exercism_results(samples.student())["message"] == "there is nothing to grade"
    assert exercism_results(samples.student(samples.TIMEOUT)) == {
        "version": 3,
        "status": "error",
        "message": "[ERROR] model.py did not end in time",
    }


def test_long_output_is_cut_with_a_notice() -> None:
    noisy = replace(samples.FIX, notes=tuple(replace(n, text="é" * 400) for n in [
        samples.BOMBER.problems[0]] * 3))  # fmt: skip
    output = exercism_results(samples.student(noisy))["tests"][0]["output"]
    assert output.endswith("é" + TRUNCATED)
    assert 499 <= len(output.encode()) <= 500


@samples.any_grade
def test_any_grade_fits_the_schema(grade: StudentGrade) -> None:
    VALIDATOR.validate(exercism_results(grade))


def test_the_file_is_what_is_returned(tmp_path: Path) -> None:
    write_exercism(tmp_path / "results.json", samples.ALICE)
    content = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert content == exercism_results(samples.ALICE)
