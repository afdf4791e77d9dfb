"""The post-mortem file: strict JSON, whole or not there, of a documented form."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch import nn

from diagnostics import TrainingMonitor
from diagnostics.monitor import postmortem
from tests.diagnostics.monitor.loops import V, train
from tests.diagnostics.tiny import TinyGPT

NUMBER = {"anyOf": [{"type": ["number", "null"]}, {"enum": ["nan", "inf", "-inf"]}]}
TEXT = {"type": ["string", "null"]}
NAMES = {"type": "array", "items": {"type": "string"}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "schema": {"const": "diagnostics.monitor.postmortem"},
        "version": {"const": 1},
        "reason": {"type": "string"},
        "step": {"type": "integer"},
        "sentence": {"type": "string"},
        "loss": NUMBER,
        "grad_norm": NUMBER,
        "learning_rates": {"type": "array", "items": NUMBER},
        "exception": {"type": ["object", "null"], "required": ["type", "message"]},
        "where": {
            "properties": {
                "phase": {"enum": ["forward", "backward", "weights", ""]},
                "module": TEXT,
                "kind": TEXT,
                "operation": TEXT,
                "place": TEXT,
                "parameter": TEXT,
                "inputs_finite": {"type": ["boolean", "null"]},
                "nan": {"type": "integer"},
                "infinite": {"type": "integer"},
                "total": {"type": "integer"},
            },
            "additionalProperties": False,
        },
        "replay": {"required": ["made", "reproduced", "trouble", "loss"]},
        "weights": {"properties": {"finite": {"type": "boolean"}, "non_finite": NAMES}},
        "gradients": {"properties": {"seen": {"type": "boolean"}, "non_finite": NAMES}},
        "batch": {"type": ["object", "null"], "required": ["shape", "dtype"]},
        "history": {"type": "array", "items": {"required": ["step", "loss", "grad_norm"]}},
        "events": {"type": "array", "items": {"required": ["reason", "step", "claim", "count"]}},
        "notes": {"type": "array"},
        "environment": {"required": ["python", "torch", "device", "dtype", "parameters"]},
    },
    "additionalProperties": False,
}
SCHEMA["required"] = list(SCHEMA["properties"])


def refuse(literal: str) -> None:
    raise AssertionError(f"{literal} is not JSON")


def read(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_text(encoding="ascii"), parse_constant=refuse)
    jsonschema.validate(record, SCHEMA)
    return record


def poison(model: torch.nn.Module, step: int) -> None:
    if step == 7:
        with torch.no_grad():
            model.blocks[0].norm1.weight.fill_(1e30)  # type: ignore[union-attr,index,operator]
            model.blocks[0].attention.qkv.weight.fill_(1e30)  # type: ignore[union-attr,index,operator]


def test_a_run_that_broke(tmp_path: Path) -> None:
    """Called before the optimizer, the monitor still sees the weights that gave the infinity."""
    monitor = train(9, before=poison, folder=tmp_path, keep_steps=5)
    assert [path.name for path in tmp_path.iterdir()] == ["postmortem-step-00000007.json"]
    record = read(tmp_path / "postmortem-step-00000007.json")
    assert (record["reason"], record["step"]) == ("monitor.loss_not_finite", 7)
    assert record["loss"] == "nan"
    assert record["where"]["module"] == "blocks.0.attention.qkv"
    assert record["where"]["operation"] == "aten.addmm.default"
    assert record["weights"] == {"finite": True, "non_finite": []}
    assert record["replay"]["reproduced"] is True
    assert [row["step"] for row in record["history"]] == [3, 4, 5, 6, 7]
    assert record["batch"]["shape"] == [8, 12]
    assert record["events"][0]["reason"] == "monitor.loss_not_finite"
    assert monitor.postmortem_path == tmp_path / "postmortem-step-00000007.json"


def test_called_after_the_optimizer_the_weights_are_gone(tmp_path: Path) -> None:
    monitor = train(8, before=poison, folder=tmp_path, step_first=True)
    record = read(tmp_path / "postmortem-step-00000007.json")
    assert record["where"]["phase"] == "weights"
    assert record["where"]["parameter"] == "tokens.weight"
    assert record["weights"]["finite"] is False
    assert record["replay"]["made"] is False
    assert "gone, so it cannot be run again" in str(monitor.events[0])


def test_an_exception_ends_the_block_with_a_post_mortem(tmp_path: Path) -> None:
    """A loop that raises by itself: `begin` has told the batch, so the step can be run again."""
    model = TinyGPT(V)
    ids = torch.zeros(2, 12, dtype=torch.int64)

    def loop() -> None:
        with TrainingMonitor(model, on_event=None, folder=tmp_path) as monitor:
            monitor.step(1.0)
            monitor.begin(ids, ids)
            poison(model, 7)
            raise FloatingPointError("mine")

    with pytest.raises(FloatingPointError, match="mine"):
        loop()
    record = read(tmp_path / "postmortem-step-00000002.json")
    assert record["reason"] == "exception"
    assert record["exception"] == {"type": "FloatingPointError", "message": "mine"}
    assert record["where"]["module"] == "blocks.0.attention.qkv"


def test_an_interrupt_and_a_second_story_write_nothing(tmp_path: Path) -> None:
    with (
        pytest.raises(KeyboardInterrupt),
        TrainingMonitor(TinyGPT(V), on_event=None, folder=tmp_path),
    ):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []

    def loop() -> None:
        with TrainingMonitor(TinyGPT(V), on_event=None, folder=tmp_path) as monitor:
            monitor.step(math.nan)
            raise ValueError("nan loss")

    with pytest.raises(ValueError, match="nan loss"):
        loop()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_made_does_not_stop_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monitor = TrainingMonitor(on_event=None, folder=tmp_path / "file")
    monitor.step(math.nan)
    assert [e.reason for e in monitor.events] == [
        "monitor.loss_not_finite",
        "monitor.postmortem_not_written",
    ]
    assert monitor.postmortem is not None
    assert monitor.postmortem["loss"] != monitor.postmortem["loss"]


def test_an_older_file_is_kept_and_nothing_half_written_stays(tmp_path: Path) -> None:
    first = postmortem.write(tmp_path, {"step": 3, "x": 1})
    second = postmortem.write(tmp_path, {"step": 3, "x": 2})
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "postmortem-step-00000003-2.json",
        "postmortem-step-00000003.json",
    ]
    assert json.loads(first.read_text())["x"] == 1
    assert json.loads(second.read_text())["x"] == 2


def test_strict_values() -> None:
    value = {"a": (math.nan, -math.inf, 1.5), 2: {"b": Path("x"), "c": None, "d": True}}
    assert postmortem.strict(value) == {
        "a": ["nan", "-inf", 1.5],
        "2": {"b": "x", "c": None, "d": True},
    }


def test_batches_are_described_and_not_copied() -> None:
    assert postmortem.describe_batch(torch.tensor([[3, 9]])) == {
        "shape": [1, 2],
        "dtype": "int64",
        "smallest": 3,
        "largest": 9,
    }
    assert postmortem.describe_batch(torch.empty(0, 2))["smallest"] is None  # type: ignore[index]
    assert postmortem.describe_batch(None) is None


def test_a_model_of_thousands_of_parameters_makes_no_endless_file() -> None:
    """All 300 are said in the sentence, and the first 200 are listed."""
    model = nn.ParameterList([nn.Parameter(torch.full((1,), math.nan)) for _ in range(300)])
    monitor = TrainingMonitor(model, on_event=None)
    monitor.step(math.nan)
    record = monitor.postmortem
    assert record is not None
    assert "300 weight tensors are not finite" in record["sentence"]
    assert record["weights"]["non_finite"] == [str(index) for index in range(200)]
