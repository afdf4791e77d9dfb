"""Optimizer: one step moves every trainable parameter, downhill, by a sane amount.

Why it matters
    A parameter that no group holds keeps its random value for the whole run, and the others
    learn to live with it: the loss falls, only less far. A rate that is 30 times too high is
    visible in five steps, and looks like a bug of the model when it is met later.

How it is measured
    The optimizer is built for a copy of the model, and what it holds is compared by identity with
    what the model lists and with what the loss trains. One step with the decay switched off shows
    the motion of each parameter, one step with gradients of zero shows the decay alone; both in
    float64 with jittered weights. Motion against the gradient is downhill. An optimizer that is
    called Adam or SGD, or has Adam's settings, is given made-up gradients from 1e-11 to 1; its
    first updates are recomputed, and where they differ, by usual mistakes. Then five steps on one
    batch in the model's own dtype: the loss must not end above where knowing nothing would put
    it, and the size of an update over the size of the weights is reported. Adam's first updates
    move each number by about the rate, so that 1e-3 on weights of standard deviation 0.02 is 0.05;
    healthy debug models measure 0.003 to 0.06 at that rate.

What it cannot see
    Your training loop: a step before backward, a forgotten zero_grad or a scheduler are for
    `training_step` and `schedule`. State that a checkpoint restored. A rate that is 3 times too
    high, or too low. Whether an optimizer of another kind (Lion, Muon, Adafactor) is the one that
    its paper describes: the report says that its rule was not compared. Faults that begin after
    the first updates. Which parameters ought to decay, where all of them do: the numbers are told.
    Rates that differ from group to group on purpose or by a slip, as in a decay by layers that is
    upside down.

Break it
    python -m exercises.break_optimizer
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from diagnostics import _optimizer_faults as faults
from diagnostics._fault import found
from diagnostics._optimizer_rule import RuleReading, read_rules
from diagnostics._optimizer_rule_verdicts import judge_rules, rules_text
from diagnostics._optimizer_step import (
    Coverage,
    MakeOptimizer,
    Move,
    Trial,
    measure_coverage,
    measure_moves,
    measure_trial,
)
from diagnostics._optimizer_verdicts import (
    judge_coverage,
    judge_decay,
    judge_groups,
    judge_motion,
    judge_said_decay,
    judge_trial,
    rates_text,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say


def check_optimizer(
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    **parts: Any,
) -> CheckResult:
    """Check what one step of `make_optimizer(copy of model)` does.

    make_optimizer: (model) -> an optimizer, or a list of them, over the model it is given.
    inputs, targets: (B, T) to take the step on; None: random tokens.
    parts: other fields of Pipeline, such as forward, vocab_size or learning_rate.
    Raises ValueError when only one of inputs and targets is given.
    """
    if (inputs is None) != (targets is None):
        raise ValueError("inputs and targets belong together, got only one of them")
    batch = None if inputs is None or targets is None else (inputs, targets)
    return run(Probe(Pipeline(model, make_optimizer=make_optimizer, batch=batch, **parts)))


def run(probe: Probe) -> CheckResult:
    """Judge coverage, then one step, then the rule, then five steps."""
    make_optimizer = probe.pipeline.make_optimizer
    if make_optimizer is None:
        raise MissingPartError("make_optimizer", why="there is no optimizer to look at")
    probe.require_choice()
    try:
        coverage = measure_coverage(probe, make_optimizer)
    except ValueError as error:  # torch's own words for a parameter in two groups
        if "more than one parameter group" not in str(error):
            raise
        return found(faults.REPEATED, say("torch refused it: {error}", error=str(error)), {})
    numbers: dict[str, Any] = {
        "trainable": coverage.trainable,
        "missing": coverage.missing,
        "foreign": coverage.foreign,
        "repeated": coverage.repeated,
        "frozen": coverage.frozen,
        "learning_rates": coverage.rates,
    }
    warning: CheckResult | None = None
    for finding in _findings(probe, make_optimizer, coverage, numbers):
        if finding.status is not Status.WARN:  # a failure, or the final word
            return finding if finding.failed or warning is None else warning
        warning = warning if warning is not None else finding
    assert warning is not None, "the last finding is a pass or a warning"
    return warning


def _findings(
    probe: Probe, make_optimizer: MakeOptimizer, coverage: Coverage, numbers: dict[str, Any]
) -> Iterator[CheckResult]:
    """Judge coverage, one step, the rule, five steps, each only when the one before is in order."""
    yield from judge_coverage(coverage, numbers)
    if coverage.needs_closure:
        kinds = say("{kinds}", kinds=" and ".join(coverage.classes))
        yield found(faults.NEEDS_CLOSURE, say("step(closure)"), numbers, kind=kinds)
        return
    moves = measure_moves(probe, make_optimizer)
    numbers |= _describe(moves)
    yield from judge_motion(moves, numbers)
    yield from judge_decay(moves, numbers)
    readings = read_rules(probe, make_optimizer, moves)
    yield from judge_rules(readings, moves, numbers)
    yield from judge_groups(moves, coverage, numbers)
    trial = measure_trial(probe, make_optimizer)
    numbers |= {
        "losses": trial.losses,
        "update_to_weight": trial.ratios,
        "moved_share": trial.moved_share,
    }
    yield from judge_trial(trial, probe, numbers)
    yield from judge_said_decay(moves, numbers)
    yield _passed(coverage, moves, readings, trial, numbers)


def _passed(
    coverage: Coverage,
    moves: list[Move],
    readings: list[RuleReading],
    trial: Trial,
    numbers: dict[str, Any],
) -> CheckResult:
    return verdict(
        Status.PASS,
        "optimizer.ok",
        say(
            "one step moves the one parameter that has a gradient, downhill, by {ratio} of "
            "its size; loss {first} -> {last} nats in {steps} steps"
            if len(moves) == 1
            else "one step moves all {count} parameters that have a gradient, downhill, by {ratio} "
            "of the weights' size; loss {first} -> {last} nats in {steps} steps",
            count=len(moves),
            ratio=trial.ratios[0],
            first=trial.losses[0],
            last=trial.losses[-1],
            steps=len(trial.ratios),
        ),
        measured=say(
            "{rates}; {rule}; decay on {matrices:matrix|matrices} and {vectors:vector|vectors}",
            rates=rates_text(numbers),
            rule=rules_text(coverage.classes, readings),
            matrices=numbers["decayed_matrices"],
            vectors=numbers["decayed_vectors"],
        ),
        numbers=numbers,
    )


def _describe(moves: list[Move]) -> dict[str, Any]:
    """Return the numbers that every verdict carries."""
    decayed = [m for m in moves if float(m.decay.abs().max()) > 0]
    return {
        "update_to_weight_by_name": {
            m.name: float(m.motion.norm() / m.weight.norm().clamp_min(1e-30)) for m in moves
        },
        "decayed_matrices": sum(m.weight.ndim >= 2 for m in decayed),
        "decayed_vectors": sum(m.weight.ndim < 2 for m in decayed),  # biases and gains of norms
    }
