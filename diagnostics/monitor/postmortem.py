"""The post-mortem: one JSON file that says what broke, where, and what came before.

Schema `diagnostics.monitor.postmortem`, version 1. Every number that JSON cannot hold is a string:
"nan", "inf" or "-inf". A reader must accept keys that it does not know; a key that is described
here keeps its meaning for as long as the version is 1.

    schema, version
    reason         of the event, such as "monitor.loss_not_finite"; "exception" where none was seen
    step           number of the update, 1 for the first
    sentence       what a person reads
    loss, grad_norm, learning_rates    of that update; null where they were not seen
    exception      null, or {type, message}
    where          {phase, module, kind, operation, place, parameter, inputs_finite, nan, infinite,
                   total}: phase is "forward", "backward", "weights" (they were not finite before
                   the step could be run again) or "" (not found)
    replay         {made, reproduced, trouble, loss}
    weights        {finite, non_finite: [names, at most 200]}
    gradients      {seen, non_finite: [names, at most 200]}
    batch          null, or {shape, dtype, smallest, largest}
    history        the last updates, oldest first: {step, loss, grad_norm, learning_rates, clipped}
    events, notes  everything the monitor has said, as objects
    environment    {python, torch, device, dtype, parameters}
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

SCHEMA = "diagnostics.monitor.postmortem"
VERSION = 1


def describe_environment(model: nn.Module | None) -> dict[str, Any]:
    """Return the versions and the device that the numbers come from."""
    first = None if model is None else next(model.parameters(), None)
    count = 0 if model is None else sum(p.numel() for p in model.parameters())
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": None if first is None else str(first.device),
        "dtype": None if first is None else str(first.dtype).removeprefix("torch."),
        "parameters": count,
    }


def describe_batch(ids: Tensor | None) -> dict[str, Any] | None:
    """Return what a batch looked like; its contents stay out of the file."""
    if ids is None:
        return None
    empty = ids.numel() == 0
    return {
        "shape": list(ids.shape),
        "dtype": str(ids.dtype).removeprefix("torch."),
        "smallest": None if empty else ids.min().item(),
        "largest": None if empty else ids.max().item(),
    }


def write(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write `folder`/postmortem-step-N.json whole or not at all; raises OSError.

    A file of an earlier run is kept: the new one gets a number behind its name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"postmortem-step-{record['step']:08d}"
    path = folder / f"{stem}.json"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{stem}-{number}.json"
    temporary = path.with_suffix(f".json.{os.getpid()}.tmp")
    text = json.dumps(strict(record), indent=1, ensure_ascii=True, allow_nan=False)
    try:
        with temporary.open("w", encoding="ascii") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def strict(value: Any) -> Any:
    """Return the value with only what strict JSON holds; the rest becomes strings."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): strict(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [strict(part) for part in value]
    return str(value)
