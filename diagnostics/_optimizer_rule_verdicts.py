"""What is said of an optimizer whose updates do not follow the rule that its name promises."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from diagnostics import _optimizer_faults as faults
from diagnostics._fault import Fault, found
from diagnostics._optimizer_rule import RuleReading
from diagnostics._optimizer_step import Move, rate_of
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

OFF_MIN = 0.02  # of an update: averages in bfloat16 are 0.004 off

_FAMILIES = {"adam": "Adam", "sgd": "SGD"}
_FAULTS: dict[str, Fault] = {
    "correction": faults.NO_CORRECTION,
    "counter": faults.STEP_COUNTER,
    "averages": faults.AVERAGES,
    "eps": faults.EPS,
}
_DECAYS: dict[str, Fault] = {
    "coupled": faults.COUPLED_ADAMW,
    "after": faults.DECAY_AFTER,
    "unscaled": faults.DECAY_UNSCALED,
    "twice": faults.DECAY_TWICE,
    "both": faults.DECAY_TWICE,
    "outwards": faults.DECAY_SIGN,
}
_HOW = {
    "none": "the averages are used without bias correction",
    "first only": "the second average is used without bias correction",
    "second only": "the first average is used without bias correction",
    "per parameter": "the step counter is raised inside the loop over parameters",
    "per parameter held": "the step counter is raised inside the loop over parameters",
    "per group": "the step counter is raised inside the loop over groups",
    "stuck": "the step counter stays at 1",
    "one behind": "the step counter is read before it is raised: it goes 1, 1, 2, 3",
    "no root": "the update is divided by the second average, not by its root",
    "betas swapped": "beta1 is used for the squares and beta2 for the gradients",
    "first summed": "the first average lacks its factor 1 - beta1",
    "second summed": "the second average lacks its factor 1 - beta2",
    "one beta": "beta1 is used for both averages",
    "before correction": "eps is added to the root before the bias correction divides it",
    "inside root": "eps is added under the root",
    "times correction": "eps is multiplied by the bias correction",
    "missing": "no eps is added",
}


def judge_rules(
    readings: Sequence[RuleReading], moves: list[Move], numbers: dict[str, Any]
) -> Iterator[CheckResult]:
    """Name the hypothesis that fits the updates; what fits none is accused only by its name."""
    ratios = {m.name: ratio for m in moves if (ratio := _first_step_in_rates(m)) is not None}
    if any(reading.trajectory.family == "adam" for reading in readings):
        numbers["adam_first_step"] = ratios
    numbers["rule_gaps"] = {r.trajectory.kind: r.gap for r in readings}
    findings = [f for each in readings for f in _judge(each, ratios, numbers)]
    yield from sorted(findings, key=lambda finding: finding.status is Status.WARN)


def rules_text(kinds: Sequence[str], readings: Sequence[RuleReading]) -> Text:
    """Say in half a sentence which optimizers were compared with their rule, and which were not."""
    spoken = {each.trajectory.kind: _agreement(each) for each in readings}
    unknown = "the rule of {} is not known here"
    return say("{all}", all=", ".join(spoken.get(kind) or unknown.format(kind) for kind in kinds))


def _agreement(reading: RuleReading) -> str:
    """Return what the comparison found; nothing where another rule was computed."""
    kind, family = reading.trajectory.kind, _FAMILIES[reading.trajectory.family]
    if not reading.names:
        return f"{kind} follows the formula of {family}"
    near = reading.trajectory.is_plain and reading.gap <= OFF_MIN
    return f"{kind} is within {100 * reading.gap:.2g} % of {family}" if near else ""


def _judge(
    reading: RuleReading, ratios: dict[str, float], numbers: dict[str, Any]
) -> Iterator[CheckResult]:
    t = reading.trajectory
    if not reading.names or (reading.rule is None and not (t.is_plain and reading.gap > OFF_MIN)):
        return
    clear = [ratios[name] for name in reading.names if name in ratios]
    facts: dict[str, Any] = {
        "kind": t.kind,
        "known": _FAMILIES[t.family],
        "total": len(t.names),
        "ratio": clear[-1] if clear else float("nan"),
        "momentum": float(t.settings["momentum"][0]),
    }
    measured = say(
        "updates are up to {gap:%} off the usual rule; {fit:%} off with this cause",
        gap=reading.gap,
        fit=reading.fit,
    )
    if reading.rule is None:
        measured = say("updates are up to {gap:%} off the usual rule", gap=reading.gap)
        yield found(faults.OTHER_RULE, measured, numbers, names=reading.names, **facts)
        return
    for part, how in reading.rule.departures:
        if how == "momentum ignored":
            fault = faults.MOMENTUM_IGNORED
        elif part == "decay":
            if how not in _DECAYS:
                continue  # coupled, where that is usual
            fault = _DECAYS[how]
        else:
            fault = _FAULTS[part]
        first = how.partition(" ")[2]
        spoken = _HOW.get(how, f"the step counter begins with {first}")
        yield found(fault, measured, numbers, names=reading.names, how=spoken, **facts)


def _first_step_in_rates(move: Move) -> float | None:
    """Return the median size of the first step, in learning rates, where eps does not count."""
    rate, eps = rate_of(move.group), move.group.get("eps")
    if not rate or eps is None or "betas" not in move.group:
        return None
    clear = move.gradient.abs() > 1e4 * float(eps)
    return float(move.motion[clear].abs().median()) / abs(rate) if clear.any() else None
