"""The schema of a report: it says what the catalogue says, and takes reports and nothing else."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

import diagnostics
from diagnostics import Pipeline, Report, Status, diagnose
from diagnostics._catalog import CATALOG, FAMILIES, STAGES
from diagnostics._debug_fields import debug_fields
from diagnostics._report import KIND, SCHEMA_VERSION
from diagnostics._subject import measure_subject
from diagnostics._text import say
from diagnostics._versions import _OPTIONAL
from diagnostics.environment import measure_environment
from minigpt import CharTokenizer
from tests.diagnostics.test_report import report, result
from tests.diagnostics.test_suite import pipeline, unshifted, windows

PATH = Path(diagnostics.__file__).with_name("report.schema.json")
SCHEMA = json.loads(PATH.read_text(encoding="utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
HOSTILE = "<script>\x1b[2J\u202e\U0001f600\ud800{x}"


def _content(given: Report) -> Any:
    return json.loads(given.to_json(timings=True))


def _mistakes(content: Any) -> list[str]:
    return [f"{list(e.absolute_path)}: {e.message}" for e in VALIDATOR.iter_errors(content)]


@pytest.fixture(scope="module")
def healthy() -> Any:
    text = "to be or not to be, that is the question\n" * 20
    tokenizer = CharTokenizer.from_text(text)
    ids = torch.tensor(tokenizer.encode(text))
    parts = {"train_ids": ids, "tokenizer": tokenizer, "train_text": text}
    whole = pipeline(vocab_size=19, **parts)
    described = [rule["if"]["properties"]["check"]["const"] for rule in _rules()]
    return _content(diagnose(whole, only=described, skip=["honesty"], overfit_steps=20))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_words_are_those_of_the_catalogue() -> None:
    """A stage, a family or a verdict that is added here has to be added there."""
    fields = SCHEMA["$defs"]["result"]["properties"]
    assert fields["stage"]["enum"] == [*STAGES, "custom"]
    assert fields["family"]["enum"] == [*FAMILIES, "custom"]
    assert fields["status"]["enum"] == list(Status)
    assert SCHEMA["properties"]["kind"]["const"] == KIND
    assert SCHEMA["properties"]["schema_version"]["const"] == SCHEMA_VERSION
    assert SCHEMA["$id"].endswith(f":{SCHEMA_VERSION}")


def test_fields_are_those_of_a_report() -> None:
    """Nothing is described that is not written, and nothing written that is not described."""
    content = _content(report(result("shift", Status.PASS, claim=say("{n} rows", n=3))))
    assert set(SCHEMA["properties"]) == set(SCHEMA["required"]) == set(content)
    assert set(SCHEMA["$defs"]["result"]["properties"]) == set(content["results"][0])
    subject = SCHEMA["properties"]["subject"]["properties"]
    measured = measure_subject(Pipeline(nn.Identity()))
    assert set(subject) == set(measured)
    assert set(subject["options"]["properties"]) == set(subject["options"]["required"])
    assert set(subject["options"]["required"]) == set(measured["options"])
    debug = SCHEMA["properties"]["debug"]
    assert set(debug["properties"]) == set(debug["required"]) == set(debug_fields(report()))
    optional = set(_OPTIONAL)  # packages of others, described by one sentence together
    described = set(SCHEMA["properties"]["environment"]["properties"])
    assert described == set(measure_environment()) - optional


def test_numbers_are_described_for_checks_that_exist() -> None:
    described = [rule["if"]["properties"]["check"]["const"] for rule in _rules()]
    assert len(set(described)) == len(described)
    assert set(described) <= set(CATALOG)


def test_every_number_that_is_described_is_written(healthy: Any) -> None:
    """A name that a check gave up would be described for ever."""
    written = {r["check"]: set(r["numbers"]) for r in healthy["results"]}
    elsewhere = {
        "fingerprint": {"fingerprint"},  # of checks and parts that this pipeline leaves out
        "range": {"pieces"},
        "initial_loss": {"loss", "uniform", "unigram", "exchanged", "loss_random", "baseline"},
        "schedule": {"curve", "peak", "peak_step", "last", "max_steps"},
        "honesty": {"uniform", "chain"},
        "optimizer": {"update_to_weight", "update_to_weight_by_name"},
    }
    for rule in _rules():
        check = rule["if"]["properties"]["check"]["const"]
        names = set(rule["then"]["properties"]["numbers"]["properties"])
        assert names <= written.get(check, set()) | elsewhere.get(check, set()), check


def test_everything_is_described() -> None:
    """Each field says what it is; references and alternatives are described where they lead."""
    for place, part in _fields(SCHEMA, "report"):
        assert part.get("description"), place


def test_a_healthy_report_fits(healthy: Any) -> None:
    assert _mistakes(healthy) == []
    names = {r["check"] for r in healthy["results"] if r["status"] != "skip"}
    assert {"range", "shift", "causal_independence", "gradients", "overfit"} <= names


def test_failing_erring_and_skipped_results_fit() -> None:
    def raises(data: Any) -> Any:
        raise RuntimeError(HOSTILE)

    cases = [
        diagnose(pipeline(get_batch=unshifted), only=["range", "shift", "batches"]),
        diagnose(pipeline(get_batch=raises), only=["range", "shift", "batches", "text"]),
        diagnose(Pipeline(nn.Embedding(5, 5), vocab_size=5), fast=True),
        diagnose(pipeline(train_ids=torch.tensor([0, 1, 99] * 40)), only=["range"]),
        diagnose(pipeline(labels="same"), only=["shift"]),
    ]
    assert [_mistakes(_content(case)) for case in cases] == [[]] * len(cases)
    statuses = {r.status for case in cases for r in case.results}
    assert {Status.FAIL, Status.ERROR, Status.SKIP, Status.PASS} <= statuses


def test_hostile_text_and_odd_numbers_fit() -> None:
    one = result(
        "mine",
        Status.WARN,
        claim=say("{word}", word=HOSTILE),
        causes=(HOSTILE,),
        where=HOSTILE,
        numbers={HOSTILE: [math.nan, -math.inf, {"deep": None}], "sample": "of another shape"},
    )
    assert _mistakes(_content(report(one, notes=(HOSTILE,)))) == []


def test_a_report_put_together_by_hand_fits() -> None:
    assert _mistakes(_content(report())) == []


@pytest.mark.parametrize("seed", [0, -1, 2**70])
def test_any_seed_fits(seed: int) -> None:
    assert _mistakes(_content(report(result("shift", Status.PASS), seed=seed))) == []


@pytest.mark.parametrize("model", [nn.Identity(), nn.LazyLinear(3), nn.Linear(1, 1)])
def test_any_subject_fits(model: nn.Module) -> None:
    subject = measure_subject(Pipeline(model), only=["shift"], skip=["loss"], fast=True)
    assert _mistakes(_content(report(subject=subject))) == []


def _put(*path: Any, value: Any) -> Callable[[Any], None]:
    def mutate(content: Any) -> None:
        *parents, last = path
        for name in parents:
            content = content[name]
        content[last] = value

    return mutate


def _drop(*path: Any) -> Callable[[Any], None]:
    def mutate(content: Any) -> None:
        *parents, last = path
        for name in parents:
            content = content[name]
        del content[last]

    return mutate


MUTATIONS = {
    "another kind": _put("kind", value="diagnostics.self_test"),
    "no kind": _drop("kind"),
    "version 1": _put("schema_version", value=1),
    "version as text": _put("schema_version", value="2"),
    "a new field": _put("verdict", value="good"),
    "passed as a word": _put("passed", value="yes"),
    "first failure as a number": _put("first_failure", value=3),
    "seed as a fraction": _put("seed", value=0.5),
    "no figure": _drop("debug", "initial_loss"),
    "a figure in words": _put("debug", "initial_loss", value="about 3"),
    "no subject": _drop("subject"),
    "no digest of weights": _drop("subject", "weights_sha256"),
    "a digest in capitals": _put("subject", "weights_sha256", value="A" * 64),
    "a short digest": _put("subject", "train_ids_sha256", value="a" * 63),
    "a digest as a number": _put("subject", "val_ids_sha256", value=3),
    "parameters below none": _put("subject", "parameters", value=-1),
    "a misspelt part of the subject": _put("subject", "weights", value=None),
    "one check by name": _put("subject", "options", "only", value="shift"),
    "no option of fast": _drop("subject", "options", "fast"),
    "a range of one id": _put("debug", "token_range", value=[0]),
    "a note that is none": _put("notes", value=[None]),
    "no threads": _put("environment", "threads", value=0),
    "results by name": _put("results", value={}),
    "a status of another tool": _put("results", 0, "status", value="failed"),
    "a stage that is none": _put("results", 0, "stage", value="training"),
    "a family that is none": _put("results", 0, "family", value="style"),
    "a reason without its check": _put("results", 0, "reason", value="identical"),
    "a reason with a space": _put("results", 0, "reason", value="shift.not identical"),
    "no claim": _put("results", 0, "claim", value=""),
    "one cause": _put("results", 0, "causes", value="the mask"),
    "no numbers": _put("results", 0, "numbers", value=None),
    "no next step": _drop("results", 0, "next_step"),
    "a misspelt field": _put("results", 0, "next", value="print it"),
    "a claim without facts": _drop("results", 0, "claim_facts"),
    "negative time": _put("results", 0, "seconds", value=-1),
    "no infinity of ours": _put("results", 0, "numbers", "agreement", "1", value="Infinity"),
    "no place of its own": _drop("results", 0, "numbers", "sample", "first_column"),
    "a third row": _put("results", 0, "numbers", "sample", "rows", value=[0, 1, 2]),
    "an id as text": _put("results", 0, "numbers", "sample", "inputs", 0, 0, value="a"),
    "text of no id": _put("results", 0, "numbers", "sample", "pieces", value={"a": "a"}),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_report_does_not_fit(name: str) -> None:
    content = copy.deepcopy(_shift_report())
    assert _mistakes(content) == []
    MUTATIONS[name](content)
    assert _mistakes(content) != []


def _shift_report() -> Any:
    ids = torch.arange(400) % 19
    parts = {"train_ids": ids, "tokenizer": _Letters(), "get_batch": windows}
    return _content(diagnose(pipeline(**parts), only=["shift"]))


class _Letters:
    """Id 0 is "a"."""

    vocab_size = 19

    def encode(self, text: str) -> list[int]:
        return [ord(character) - ord("a") for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(chr(ord("a") + i) for i in ids)


def _rules() -> list[Any]:
    rules: list[Any] = SCHEMA["$defs"]["result"]["allOf"]
    return rules


def _fields(part: Any, place: str) -> Iterator[tuple[str, Any]]:
    for name, field in part.get("properties", {}).items():
        yield f"{place}.{name}", field
        yield from _fields(field, f"{place}.{name}")
    for rule in part.get("allOf", []):
        yield from _fields(rule["then"], place)
    for name, definition in part.get("$defs", {}).items():
        yield name, definition
        yield from _fields(definition, name)
    if isinstance(part.get("items"), dict):
        yield from _fields(part["items"], f"{place}[]")
