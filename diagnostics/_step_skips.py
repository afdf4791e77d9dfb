"""Steps that are left out now and then: how often, by what rule, and what they leave behind."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from diagnostics import _step_words as words
from diagnostics._result import CheckResult
from diagnostics._step_reading import STALE_MIN, Reading
from diagnostics._step_trial import Call, Gradient, fit, norm
from diagnostics._step_verdicts import Trial
from diagnostics._text import say


def are_from_some_call_on(stepped: Sequence[int], calls: int) -> bool:
    """Whether all calls step, apart from the first ones, which a scaler may skip."""
    return list(stepped) == list(range(stepped[0], calls))


def period_of(stepped: Sequence[int], calls: int) -> int | None:
    """Return how many calls make one step where they do so regularly, as accumulation does."""
    gaps = {b - a for a, b in itertools.pairwise(stepped)}
    if not gaps:  # one step: it is regular if the next one is still to come
        waiting = calls - stepped[0]
        period = stepped[0] + 1 if stepped[0] else waiting
        return period if period > 1 and waiting <= period else None
    period = gaps.pop()
    regular = not gaps and stepped[0] in (0, period - 1) and calls - stepped[-1] <= period
    return period if regular and period > 1 else None


def add_up(calls: Sequence[Call], owns: Sequence[Gradient]) -> bool:
    """Whether a call without a step leaves its own gradient plus what it found."""
    for (call, after), own in zip(itertools.pairwise(calls), owns, strict=False):
        if call.steps or not 0 < norm(call.left) < math.inf or not norm(after.left) > 0:
            continue
        share = fit(after.left, [own, call.left]).factors[1]
        if share * norm(call.left) > STALE_MIN * norm(after.left):
            return True
    return False


def judge_skips(tell: Callable[..., CheckResult], trial: Trial) -> Iterator[CheckResult]:
    """Judge calls without a step among others with one."""
    skipped = [n for n, call in enumerate(trial.calls) if not call.steps]
    by_call = {reading.call: reading for reading in trial.readings}
    after = [by_call[n + 1] for n in skipped if n + 1 in by_call]
    others = [by_call[n] for n in by_call if n > 0 and n - 1 not in skipped]
    kept = [reading for reading in after if _has_left(reading)]
    measured = say(
        "{skipped:call|calls} of {calls} without a step", skipped=len(skipped), calls=trial.count
    )
    if kept and not any(map(_has_left, others)):
        worst = max(kept, key=lambda reading: reading.stale)
        shown = say(
            "{measured}; left behind with norm {left}, own norm {own}, norm {used} at the step",
            measured=measured,
            left=norm(trial.calls[worst.call].left),
            own=worst.own_size,
            used=worst.size,
        )
        yield tell(words.SKIP_KEEPS_GRADIENT, shown, stale=worst.stale)
    if any(n not in trial.artificial for n in skipped) and not _only_first(trial.calls):
        yield tell(words.SKIPS, measured, skipped=len(skipped), calls=trial.count, why=_why(trial))


def _has_left(reading: Reading) -> bool:
    return reading.kind in ("not_cleared", "stale")


def _only_first(calls: list[Call]) -> bool:
    stepped = [n for n, call in enumerate(calls) if call.steps]
    return are_from_some_call_on(stepped, len(calls))


def _why(trial: Trial) -> str:
    """Say by which measure the calls without a step are the largest."""
    for values, name in ((trial.own_sizes, "norm of the gradient"), (trial.losses, "loss")):
        made = [v for v, call in zip(values, trial.calls, strict=True) if call.steps]
        left_out = [v for v, call in zip(values, trial.calls, strict=True) if not call.steps]
        if min(left_out) > max(made):
            return (
                f"a limit on the {name} between {max(made):.3g} and {min(left_out):.3g}, where "
                "ordinary batches lie"
            )
    return "a condition in the step that neither the gradient's norm nor the loss explains"
