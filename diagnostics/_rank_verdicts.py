"""What the ranks measured, judged: their weights, their gradients, their steps.

A mixture's weights are those of the parts in the gradient that was used, times the number of
parts: all 1 in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from diagnostics import _distributed_words as words
from diagnostics._rank_trial import Start, Step
from diagnostics._result import CheckResult
from diagnostics._step_reading import EXACT, ROUGH, SOME
from diagnostics._step_trial import Gradient, fit, norm
from diagnostics._text import say

Tell = Callable[..., CheckResult]
NONE = 0.02  # of the largest weight: a part that is not there
NEAR = 0.02  # relative: factors that are one number
UNSURE = 0.2  # relative: too much for a word about weights
DRIFT_MAX = 1e-3  # of what the steps changed; another order of adding gives less than 1e-5


@dataclass(frozen=True)
class Mix:
    """What the gradient that one rank used is made of: weights[rank][part]."""

    weights: list[list[float]]
    misfit: float

    @property
    def flat(self) -> list[float]:
        """All weights, rank by rank."""
        return [weight for of_rank in self.weights for weight in of_rank]

    @property
    def factor(self) -> float:
        """The gradient over the mean of all parts."""
        return sum(self.flat) / len(self.flat)

    def present(self) -> list[list[bool]]:
        """Which parts are there at all."""
        nothing = max(NONE, 3 * self.misfit) * max(map(abs, self.flat))
        return [[abs(w) > nothing for w in of_rank] for of_rank in self.weights]


@dataclass(frozen=True)
class Call:
    """One call on all ranks: a step and a mix of each; no mixes where no gradient was seen."""

    steps: list[Step]
    mixes: list[Mix]


def compare_ranks(ranks: list[list[Step]]) -> list[Call]:
    """Find out, call by call, what the gradient of each rank is made of."""
    calls = []
    for each in zip(*ranks, strict=True):
        steps = list(each)
        seen = all(step.steps and not step.closure for step in steps)
        calls.append(Call(steps, [_mix_of(r, steps) for r in range(len(steps)) if seen]))
    return calls


def _mix_of(rank: int, steps: list[Step]) -> Mix:
    """Write what `rank` used as a sum of the micro-batches of all ranks; steps: one per rank."""
    parts = [
        {n: g / count for n, g in part.open().items()}
        for step in steps
        for part, count in zip(step.parts, step.counts, strict=True)
    ]
    best = fit(steps[rank].used.open(), parts)
    factors = iter(factor * len(parts) for factor in best.factors)
    return Mix([[next(factors) for _ in step.parts] for step in steps], best.misfit)


# ---- weights -------------------------------------------------------------------------------------


def judge_start(tell: Tell, starts: list[Start], *, separate: bool) -> CheckResult | None:
    """Judge whether the ranks hold equal weights once their models are wrapped.

    separate: the ranks have made their models themselves, so that equal ones prove equal seeds.
    """
    first = starts[0]
    for rank, start in enumerate(starts):
        names = differing(first.moved, start.moved)
        if not names:
            continue
        fresh = [each.fresh for each in starts]
        alike = fresh[0] is not None and all(each == fresh[0] for each in fresh)
        if alike or (separate and all(each.given == first.given for each in starts)):
            return None  # every rank makes the same model: nothing has to be sent around
        total = len(first.moved)
        measured = say("{count} of {total:tensor|tensors} differ", count=len(names), total=total)
        if set(first.trained) - set(names):
            return tell(words.WEIGHTS_PARTLY, measured, names=names, rank=rank, total=total)
        told = separate or fresh[0] is not None
        return tell(words.WEIGHTS if told else words.NO_BROADCAST, measured, rank=rank)
    return None


def differing(a: Mapping[str, int], b: Mapping[str, int]) -> list[str]:
    """Return the names whose checksums are not equal."""
    return [name for name in a if a[name] != b.get(name)]


# ---- gradients -----------------------------------------------------------------------------------


def judge_gradients(
    tell: Tell, calls: list[Call], scored: list[list[int]]
) -> Iterator[CheckResult]:
    """Judge what the gradients of all calls are made of.

    scored: targets in the user's own batches, by rank, to tell whether unequal numbers occur.
    """
    for call in calls:
        plan = call.steps[0].plan
        if any(step.closure for step in call.steps):
            continue  # the gradient comes into being inside the step
        counts = [step.steps for step in call.steps]
        if min(counts) < max(counts):
            low, high = min(counts), max(counts)
            ends = {"low_rank": counts.index(low), "high_rank": counts.index(high)}
            yield tell(words.STEPS, part=plan.part, low=low, high=high, **ends)
            return
        if not call.mixes:
            yield tell(words.NO_STEP, part=plan.part)
            continue
        if plan.unequal:
            finding = _judge_unequal(tell, call, scored)
        else:
            finding = _judge_members(tell, call)
            if finding is None and plan.shrunk:
                finding = _judge_factor(tell, call)
        if finding is not None:
            again = _equal_again(calls) if finding.reason == words.LOCAL_GRADIENT.reason else 0
            yield tell(words.AVERAGED_WEIGHTS, finding.measured, call=again) if again else finding
            if finding.failed:
                return


def _equal_again(calls: list[Call]) -> int:
    """Return after how many calls all ranks held equal weights; 0: after none."""
    for number, call in enumerate(calls, 1):
        first = call.steps[0].checksums
        if all(step.checksums == first for step in call.steps):
            return number
    return 0


def _judge_members(tell: Tell, call: Call) -> CheckResult | None:
    """Judge which ranks and micro-batches are in the gradient of each rank."""
    steps, mixes = call.steps, call.mixes
    shown = _shown(call)
    for rank, mix in enumerate(mixes):
        if not math.isfinite(mix.misfit):
            return tell(words.NOT_FINITE, rank=rank)
    worst = max(mix.misfit for mix in mixes)
    if not worst <= EXACT:
        finding = _judge_parameters(tell, steps)
        if finding is not None:
            return finding
    if not worst <= ROUGH:
        return tell(words.OTHER_GRADIENT, shown, misfit=worst)
    members = [[any(row) for row in mix.present()] for mix in mixes]  # [seen from][rank]
    if all(all(row) for row in members):
        return _judge_micro_batches(tell, mixes, shown)
    if all(row == members[0] for row in members):
        kept = ", ".join(f"rank {r}" for r, there in enumerate(members[0]) if there)
        return tell(words.ONE_RANK, shown, kept=kept)
    own = [str(r) for r, row in enumerate(members) if row[r] and sum(row) == 1]
    who = f"rank {', '.join(own)}" if 0 < len(own) < len(mixes) else "each rank"
    return tell(words.LOCAL_GRADIENT, shown, who=who)


def _judge_micro_batches(tell: Tell, mixes: list[Mix], shown: str) -> CheckResult | None:
    for rank, mix in enumerate(mixes):
        others = [row for r, row in enumerate(mix.present()) if r != rank]
        missing = [k for k in range(len(others[0])) if not any(row[k] for row in others)]
        if missing:
            numbers = ", ".join(map(str, missing))
            facts = {"parts": len(others[0]), "count": len(missing), "missing": numbers}
            return tell(words.PARTLY_SYNCHRONISED, shown, rank=rank, **facts)
    return None


def _judge_parameters(tell: Tell, steps: list[Step]) -> CheckResult | None:
    """Find parameters that hold the gradient of their own rank where all others hold the mean."""
    mean = _sum_of([part.open() for step in steps for part in step.parts])
    for step in steps:
        own = _sum_of([part.open() for part in step.parts])
        least = SOME * norm(own)
        kinds: dict[str, str] = {}
        for name, value in step.used.open().items():
            if name not in own or not norm({name: own[name]}) > least:
                continue
            alone, whole = (fit({name: value}, [{name: g[name]}]).misfit for g in (own, mean))
            kinds[name] = "own" if alone <= EXACT < 5 * EXACT < whole else "other"
            if whole <= EXACT:
                kinds[name] = "mean"
        names = [name for name, kind in kinds.items() if kind == "own"]
        if names and set(kinds.values()) == {"own", "mean"}:
            return tell(words.PARTIAL, names=names, total=len(kinds))
    return None


def _judge_factor(tell: Tell, call: Call) -> CheckResult | None:
    """Judge the divisor, on gradients that no clipping touches."""
    size = len(call.mixes)
    factor = call.mixes[0].factor
    for rank, mix in enumerate(call.mixes):
        if not abs(mix.factor / factor - 1) <= NEAR:
            share = mix.factor / factor
            return tell(words.RANK_SCALE, _shown(call), rank=rank, factor=share)
    if abs(factor / size - 1) <= NEAR:
        return tell(words.GRADIENT_SCALE, _shown(call), factor=factor, size=size)
    if abs(factor * size - 1) <= NEAR:
        return tell(words.DIVIDED_TWICE, _shown(call), factor=factor, size=size)
    return None


def _judge_unequal(tell: Tell, call: Call, scored: list[list[int]]) -> CheckResult | None:
    """Judge the weight of each rank where the ranks score different numbers of tokens."""
    steps, mixes = call.steps, call.mixes
    mix, size = mixes[0], len(mixes)
    if not mix.misfit <= ROUGH:
        return None  # told for the other calls
    weights = [weight / mix.factor for weight in mix.flat]
    counts = [sum(step.counts) for step in steps]
    norms = [step.sizes[0] for step in steps]
    # what does not fit, as autocast leaves it, may lie along the smallest gradient
    slack = max(NEAR, 2 * mix.misfit * steps[0].size * size / (min(norms) * abs(mix.factor)))
    if not slack <= UNSURE:
        return None
    by_token = [size * count / sum(counts) for count in counts]
    if _close(weights, by_token, slack):
        return None
    if _close(weights, [1.0] * size, slack):
        for at_once in zip(*scored, strict=False):
            if max(at_once) > (1 + NEAR) * min(at_once):
                low, high = min(at_once), max(at_once)
                return tell(words.UNEQUAL_COUNTS, _shown(call), low=low, high=high)
        return None
    cut = [weight * norm for weight, norm in zip(mix.flat, norms, strict=True)]
    limit = max(cut)  # the others are smaller than it, and stay
    expected = [min(1.0, limit / norm) for norm in norms]
    if _close(mix.flat, expected, slack) or _close(weights, _to_mean(expected), slack):
        return tell(words.CLIPPED_APART, _shown(call), limit=limit)
    per_token = [w / b for w, b in zip(weights, by_token, strict=True)]
    low, high = min(per_token), max(per_token)
    ends = {"low_rank": per_token.index(low), "high_rank": per_token.index(high)}
    return tell(words.RANK_WEIGHTS, _shown(call), low=low, high=high, **ends)


def _close(a: list[float], b: list[float], slack: float) -> bool:
    return all(abs(x - y) <= slack * abs(y) for x, y in zip(a, b, strict=True))


def _to_mean(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    return [value / mean for value in values]


def _sum_of(parts: list[Gradient]) -> Gradient:
    names = dict.fromkeys(name for part in parts for name in part)
    return {n: torch.stack([part[n] for part in parts if n in part]).sum(0) for n in names}


def _shown(call: Call) -> str:
    """Say what each rank's gradient is made of."""
    told = (
        say(
            "{w} on rank {rank}", rank=rank, w=", ".join(f"{round(w, 3) + 0.0:g}" for w in mix.flat)
        )
        for rank, mix in enumerate(call.mixes)
    )
    part = call.steps[0].plan.part
    return say("weights of the ranks' gradients in {part}: {told}", part=part, told="; ".join(told))


# ---- after the steps -----------------------------------------------------------------------------


def drift(ranks: list[list[Step]]) -> tuple[float, int, int]:
    """Return how far a rank is from rank 0, over what the steps changed, with call and rank."""
    first = ranks[0]
    worst = (0.0, 0, 0)
    for call, step in enumerate(first):
        changed = max(norm(_minus(step.after.open(), first[0].before.open())), 1e-300)
        for rank, steps in enumerate(ranks):
            if steps[call].checksums == step.checksums:
                continue
            share = norm(_minus(steps[call].after.open(), step.after.open())) / changed
            if not math.isfinite(share) or share > worst[0]:
                worst = (share, call, rank)
        if not worst[0] <= DRIFT_MAX:
            break
    return worst


def judge_after(tell: Tell, ranks: list[list[Step]]) -> Iterator[CheckResult]:
    """Judge whether the ranks still hold equal weights, and equal buffers when they are called."""
    share, call, rank = drift(ranks)
    if not share <= DRIFT_MAX:
        yield tell(words.DRIFT, "", share=share, call=call + 1, rank=rank)
    last = [steps[-1].buffers for steps in ranks]
    names = [n for n in last[0] if any(each.get(n) != last[0][n] for each in last)]
    if names:
        yield tell(words.BUFFERS, "", names=names, total=len(last[0]))


def _minus(a: Gradient, b: Gradient) -> Gradient:
    return {name: a[name] - b[name] for name in a if name in b}


def numbers_of(calls: list[Call], ranks: list[list[Step]]) -> dict[str, Any]:
    """Return what was measured, for programs."""
    made = [call.mixes for call in calls if call.mixes]
    return {
        "weights": [[[round(w, 4) for w in mix.flat] for mix in mixes] for mixes in made],
        "misfits": [round(max(mix.misfit for mix in mixes), 6) for mixes in made],
        "drift": drift(ranks)[0],
    }
