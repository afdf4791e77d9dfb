"""Memory is a budget: weights + gradients + optimizer states + activations, known beforehand.

`predict_memory` computes it from the configuration, and says at which moment the peak comes;
`measure_memory` runs the same configuration and counts. The command does both, compares with what
is there, and says which knob to turn: measure first, then batch and accumulation, length,
precision, activation checkpointing, and last weights and optimizer.

    from minigpt.memory import predict_memory
    budget = predict_memory(config, batch_size=64)
    budget.peak.name, budget.peak.total, budget.activations, budget.needed

Importing this module does not import torch, and neither does a prediction.
"""

from __future__ import annotations

from minigpt._memory_activations import MemoryRow
from minigpt._memory_advice import Knob, find_fitting, find_largest_batch, list_knobs
from minigpt._memory_budget import MemoryBudget, predict_memory
from minigpt._memory_machine import available_bytes
from minigpt._memory_measure import MeasuredMemory, MeasurementError, measure_memory
from minigpt._memory_moments import Moment
from minigpt._memory_sizes import ModelSizes, Workload

__all__ = [
    "Knob",
    "MeasuredMemory",
    "MeasurementError",
    "MemoryBudget",
    "MemoryRow",
    "ModelSizes",
    "Moment",
    "Workload",
    "available_bytes",
    "find_fitting",
    "find_largest_batch",
    "list_knobs",
    "measure_memory",
    "predict_memory",
]

if __name__ == "__main__":
    from minigpt._cli import run_command
    from minigpt._memory_command import main

    raise SystemExit(run_command(main))
