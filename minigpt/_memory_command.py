"""The command `python -m minigpt.memory`: flags, the prediction, the measurement, the verdict."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minigpt._cli import EXIT_CHECK_FAILED, EXIT_OK, CommandError, Parser
from minigpt._memory_budget import MemoryBudget, budget_for
from minigpt._memory_card import read_card
from minigpt._memory_machine import available_bytes, parse_bytes
from minigpt._memory_measure import MeasurementError, measure_memory
from minigpt._memory_report import (
    print_advice,
    print_comparison,
    print_header,
    print_kept,
    print_moments,
    print_verdict,
)
from minigpt._memory_sizes import (
    DEVICES,
    DTYPES,
    MODES,
    OPTIMIZER_STATES,
    ModelSizes,
    Workload,
)
from minigpt._training_state import MATMUL_PRECISIONS, TrainSettings
from minigpt.train import MODEL_FLAGS, PRESETS

DEFAULT_VOCABULARY = 100  # about the characters of an English text
TOLERANCE = 0.2  # of the measured bytes: how far a prediction may be off
WORKLOAD_FLAGS: dict[str, tuple[Any, str]] = {
    "batch_size": (int, "rows in a batch"),
    "accumulation_steps": (int, "batches of each process that make one update"),
    "evaluation_windows": (int, "as for the trainer: 0 is all, -1 leaves evaluations out"),
    "processes": (int, "processes that train together"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Predict, and measure if asked to; returns 1 when it does not fit or the prediction is off."""
    options = _parse(arguments)
    sizes, workload = _read_setting(options)
    limit = _read_limit(options)
    budget = budget_for(sizes, workload)
    print_header(budget)
    print_kept(budget)
    print_moments(budget)
    accurate = True
    if options.measure:
        accurate = _measure(budget, limit, options.threads)
    print_verdict(budget, limit, "given" if options.budget else "available")
    print_advice(budget, limit, measured=options.measure)
    fits = limit is None or budget.needed <= limit
    return EXIT_OK if fits and accurate else EXIT_CHECK_FAILED


def _measure(budget: MemoryBudget, limit: int | None, threads: int | None) -> bool:
    """Run it where there is room, print the comparison; returns whether the prediction held."""
    room = available_bytes(budget.workload.device)
    if room is not None and budget.needed > min(room, limit or room):
        print("measured    not run: it does not fit, and would slow down or end other programs\n")
        return True
    try:
        workload = dataclasses.asdict(budget.workload)
        measured = measure_memory(budget.sizes, threads=threads, **workload)
    except ValueError as error:
        raise CommandError(f"--measure: {error}") from error
    except MeasurementError as error:
        raise CommandError(str(error)) from error
    return print_comparison(budget, measured, TOLERANCE)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m minigpt.memory",
        description="Predict the memory of a run: what it is, when the peak comes, whether it "
        "fits, and what to turn when it does not. Exit code 1 when it does not fit.",
    )
    sizes = parser.add_argument_group("model").add_argument
    sizes("--preset", choices=PRESETS, help="sizes to start from; default debug")
    sizes("--checkpoint", type=Path, metavar="FILE", help="take sizes and run from its header")
    sizes("--vocab-size", type=int, metavar="N", help=f"default {DEFAULT_VOCABULARY}")
    for name, kind in MODEL_FLAGS.items():
        sizes("--" + name.replace("_", "-"), type=kind, metavar="N")
    run = parser.add_argument_group("run").add_argument
    run("--mode", choices=MODES, default="train", help="default train")
    for name, (kind, words) in WORKLOAD_FLAGS.items():
        run("--" + name.replace("_", "-"), type=kind, metavar="N", help=words)
    run("--dtype", choices=DTYPES, help="bfloat16: autocast in training, else the weights too")
    run("--matmul-precision", choices=MATMUL_PRECISIONS, help="as the trainer reports it")
    run("--optimizer", choices=OPTIMIZER_STATES, default="adamw", help="the trainer has adamw")
    run("--checkpointing", action="store_true", help="each block is computed a second time")
    machine = parser.add_argument_group("machine").add_argument
    machine("--device", choices=DEVICES, default="cpu", help="default cpu")
    machine("--budget", metavar="SIZE", help="such as 8GiB; default what is free on the device")
    machine("--measure", action="store_true", help="run a few steps and compare")
    machine("--threads", type=int, metavar="N", help="CPU threads of the measurement")
    return parser.parse_args(arguments)


def _read_setting(options: argparse.Namespace) -> tuple[ModelSizes, Workload]:
    """Put preset, checkpoint and flags together; what stands further right counts more."""
    names = [field.name for field in dataclasses.fields(ModelSizes)]
    values: dict[str, Any] = {"vocab_size": DEFAULT_VOCABULARY} | PRESETS[options.preset or "debug"]
    values["evaluation_windows"] = TrainSettings().evaluation_windows
    if options.checkpoint is not None:
        if options.preset is not None:
            raise CommandError("--checkpoint brings its sizes; leave --preset out")
        try:
            sizes, run = read_card(options.checkpoint)
        except ValueError as error:
            raise CommandError(str(error)) from error
        values |= sizes | run
    asked = (*names, *WORKLOAD_FLAGS, "mode", "dtype", "matmul_precision", "optimizer", "device")
    values |= {name: getattr(options, name) for name in asked if getattr(options, name) is not None}
    try:
        known = {field.name for field in dataclasses.fields(Workload)} & values.keys()
        run = {name: values[name] for name in known}
        return (
            ModelSizes(**{name: values[name] for name in names if name in values}),
            Workload(checkpointed=options.checkpointing, **run),
        )
    except (ValueError, TypeError) as error:
        raise CommandError(_in_flags(str(error))) from error


def _in_flags(message: str) -> str:
    """Return the message with the names of fields as the flags that were typed."""
    for name in (*MODEL_FLAGS, *WORKLOAD_FLAGS, "vocab_size"):
        message = message.replace(name, "--" + name.replace("_", "-"))
    return message


def _read_limit(options: argparse.Namespace) -> int | None:
    if options.threads is not None and options.threads < 1:
        raise CommandError(f"--threads must be >= 1, got {options.threads}")
    if options.budget is None:
        return available_bytes(options.device)
    try:
        return parse_bytes(options.budget)
    except ValueError as error:
        raise CommandError(f"--budget: {error}") from error
