"""What a training step shows, judged: its modes, the gradients that it used, and clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

from torch import nn

from diagnostics import _step_words as words
from diagnostics._clip_calls import Clip
from diagnostics._result import CheckResult
from diagnostics._step_reading import EXACT, Reading, cut_afterwards, limit_of
from diagnostics._step_trial import Call, norm
from diagnostics._text import say

LOW, TINY = 0.1, 0.01  # limits of clipping: recipes use 0.25 to 5
UNRELATED_MAX = 0.1  # cosine; a second loss of the same weight still leaves about 0.7
POWER_GAP = 1e-4  # of a factor from a power of two; float32 on one machine: below 1e-5
SAME = 1e-5  # relative: two losses that were cut to one value
SCALER_MIN = 2**5  # a power of two from here on is a loss scale; accumulation stays below
NICE = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Trial:
    """What was recorded, call by call; readings are empty when no step was seen."""

    calls: list[Call]
    readings: list[Reading]
    losses: list[float]  # of the model itself, before each call, and after the last
    losses_after: list[float]  # of each call's batch, after the call
    counts: list[int]  # scored targets of each batch
    noise: float  # how far two gradients of one batch differ, with dropout silenced
    acts_on_mode: bool  # whether some module behaves differently in eval mode
    own_sizes: list[float]  # norm of each batch's own gradient
    artificial: tuple[int, ...]  # calls with a batch that is made to have a large gradient
    steps_when_small: bool  # whether calls step with a tiny gradient, where no other call does
    adds_up: bool  # whether calls without a step add to what the call before left

    @property
    def count(self) -> int:
        """How many calls were made."""
        return len(self.calls)


def judge_modes(
    tell: Callable[..., CheckResult], words: ModuleType, calls: list[Call], acts_on_mode: bool
) -> Iterator[CheckResult]:
    """Judge the modes in which the forward calls with gradient ran; words: of the check."""
    paths = sorted({path for call in calls for path in call.eval_paths})
    if not paths:
        return
    shown = [path or "the model itself" for path in paths]
    measured = say("{n:module|modules} with training=False", n=len(paths))
    if "" not in paths:
        yield tell(words.EVAL_MODE_PARTLY, measured, names=shown)
    elif acts_on_mode:
        yield tell(words.EVAL_MODE, measured, names=shown)
    else:
        yield tell(words.EVAL_MODE_HARMLESS, measured, names=shown)


def acts_on_mode(model: nn.Module) -> bool:
    """Whether some module computes something else in eval mode: dropout, batch norm, GRU."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RNNBase)
    return any(
        isinstance(m, kinds)
        or any("drop" in n and isinstance(v, float) for n, v in vars(m).items())
        for m in model.modules()
    )


def judge_gradients(
    tell: Callable[..., CheckResult], readings: list[Reading], trial: Trial
) -> Iterator[CheckResult]:
    """Judge what the optimizer used; the first call has no predecessor and is left out."""
    # in the second call the first batch is also the batch before: the third one tells which
    for reading in sorted(readings, key=lambda reading: reading.kind == "same_batch"):
        finding = _judge_kind(tell, reading, trial)
        if finding is not None:
            yield finding
            return
    sign = -1.0 if any(call.maximize for call in trial.calls) else 1.0
    fitting = [r for r in trial.readings if r.kind == "fits"]
    scales = [sign * r.scale for r in fitting]
    if fitting and min(scales) < 0:
        yield tell(words.UPHILL, say("factor {scale}", scale=min(scales)))
    elif fitting and sign > 0:
        yield from _judge_scale(tell, fitting, trial.counts)
    yield from _judge_clips(tell, trial.calls)
    cut = cut_afterwards([call for call in trial.calls if call.steps])
    if cut is not None:
        limit, size = cut
        measured = say("norm {size} at the step, {limit} afterwards", size=size, limit=limit)
        yield tell(words.CLIP_AFTER, measured, limit=limit, norm=size)


def _judge_kind(
    tell: Callable[..., CheckResult], reading: Reading, trial: Trial
) -> CheckResult | None:
    """Return the verdict on one gradient that is not the batch's own up to a factor."""
    sizes = say("norm {used}, the batch's own {own}", used=reading.size, own=reading.own_size)
    if reading.kind in ("fits", "by_value", "no_own_gradient"):
        return None
    if reading.kind == "none":
        if not any(call.forwards for call in trial.calls):
            fault = words.OTHER_MODEL
        elif any(call.backward_first and not call.wrote for call in trial.calls):
            return _flat_loss(tell, reading, trial, sizes)
        elif any(call.backward_first for call in trial.calls):
            fault = words.CLEARED
        else:
            after = any(call.backward_after for call in trial.calls)
            fault = words.BEFORE_BACKWARD if after else words.NO_GRADIENT
        return tell(fault, sizes)
    named = {
        "not_finite": words.NOT_FINITE,
        "stale": words.STALE,
        "not_cleared": words.NOT_CLEARED,
        "partial": words.PARTIAL,
        "extra": words.EXTRA,
        "per_parameter": words.CLIP_PARAMETERS,
        "per_parameter_own": words.RESCALED_PARAMETERS,
        **words.HYPOTHESES,
    }
    fault = named.get(reading.kind, words.OTHER)
    if fault is words.CLIP_PARAMETERS and any(call.backward_after for call in trial.calls):
        fault = words.RESCALED_PARAMETERS  # steps inside backward() leave no other way to clip
    if reading.kind == "other" and trial.noise < EXACT and reading.cosine < UNRELATED_MAX:
        fault = words.UNRELATED
    measured = say("{sizes}; misfit {misfit}", sizes=sizes, misfit=reading.misfit)
    return tell(
        fault,
        measured,
        names=reading.names,
        stale=reading.stale,
        decay=reading.decay,
        cosine=reading.cosine,
    )


def _judge_scale(
    tell: Callable[..., CheckResult], readings: list[Reading], counts: list[int]
) -> Iterator[CheckResult]:
    """Judge factors on the gradient: clipping cuts to one norm, a constant has another cause."""
    scales = [reading.scale for reading in readings]
    slack = max(EXACT, *(2 * reading.misfit for reading in readings))
    if all(abs(scale - 1) <= slack for scale in scales):
        return
    powers = [round(math.log2(scale)) for scale in scales if scale > 0]
    if len(powers) == len(scales) and len(set(powers)) > 1 and _are_powers(scales, powers):
        odd = [scale for scale, power in zip(scales, powers, strict=True) if power]
        share = f"{len(odd)} of {len(scales)}"
        shown = say("factors {scales}", scales=", ".join(f"{scale:.4g}" for scale in scales))
        yield tell(words.SCALE_CHANGES, shown, share=share, factor=odd[0])
        return
    measured = say("factors {scales}", scales=", ".join(f"{scale:.4g}" for scale in scales))
    limit = limit_of(readings)
    if max(scales) <= (1 + slack) * min(scales) and len(scales) > 1:
        scale = sum(scales) / len(scales)
        power = math.log2(scale)
        if any(abs(scale / count - 1) <= slack for count in counts):
            yield tell(words.SUM, measured, scale=scale)
        elif scale >= SCALER_MIN and abs(power - round(power)) <= 2 * slack:
            yield tell(words.NOT_UNSCALED, measured, scale=scale)
        elif scale > 1:
            yield tell(words.SCALED_UP, measured, scale=scale)
        else:
            yield tell(words.SCALED, measured, scale=scale)
    elif limit is None:
        yield tell(words.CHANGES, measured, low=min(scales), high=max(scales))
    elif limit < LOW:
        factor, nice = _as_fraction(limit)
        if factor:
            fault = words.CLIP_BEFORE_UNSCALE
        else:
            fault = words.CLIP_TINY if limit < TINY else words.CLIP_LOW
        yield tell(fault, measured, limit=limit, factor=factor, nice=nice)


def _are_powers(scales: list[float], powers: list[int]) -> bool:
    """Whether factors are powers of two so exactly, 1 among them, as no clipping would be."""
    return 0 in powers and all(
        abs(scale / 2**power - 1) <= POWER_GAP for scale, power in zip(scales, powers, strict=True)
    )


def _flat_loss(
    tell: Callable[..., CheckResult], reading: Reading, trial: Trial, sizes: str
) -> CheckResult:
    """Return the verdict on a backward pass that writes zeros; a loss that is cut says so."""
    told = [call.loss for call in trial.calls]
    flat = [v for v, own in zip(told, trial.losses, strict=False) if own > v + SAME * abs(v)]
    if len(flat) > 1 and max(flat) - min(flat) <= SAME * abs(max(flat)):
        return tell(words.CLAMPED_LOSS, sizes, value=flat[0])
    return tell(words.ZERO_GRADIENT, sizes, own=reading.own_size)


def _judge_clips(tell: Callable[..., CheckResult], calls: list[Call]) -> Iterator[CheckResult]:
    """Judge the calls of clip_grad_norm_: before the step, with gradients in hand."""
    stepped = [call for call in calls if call.steps]
    clips = [clip for call in stepped for clip in call.clips]
    if not clips or not all(call.clips for call in stepped):
        return
    if not any(clip.with_gradient for clip in clips):
        why = "zero_grad() has freed them already"
        early = not any(clip.after_backward for clip in clips)
        if not clips[0].given:
            why = "it is given a generator that is used up, such as one model.parameters() for two"
        elif early:
            why = "it is called before backward()"
        elif any(call.backward_after for call in stepped):
            why = "hooks step and free each gradient during backward(), before it is called"
        elif not any(clip.after_step for clip in clips):
            why = "the parameters that it is given are not those that backward() writes to"
        measured = say("{n:call|calls} with 0 gradients", n=len(clips))
        yield tell(words.CLIP_NOTHING, measured, given=clips[0].given, why=why)
    elif not any(clip.after_backward for clip in clips) and all(c.backward_first for c in stepped):
        measured = say("norm {size} when it is called, {used} at the step", **_early(stepped))
        yield tell(words.CLIP_EARLY, measured)
    late = [clip for clip in clips if clip.after_step and clip.cuts]
    if late and all(clip.after_step for clip in clips):
        worst = max(late, key=lambda clip: clip.size)
        measured = say("norm {size} at the step, {limit} afterwards", **_sizes(worst))
        yield tell(words.CLIP_AFTER, measured, limit=worst.limit, norm=worst.size)


def _early(calls: list[Call]) -> dict[str, float]:
    return {"size": calls[-1].clips[-1].size, "used": norm(calls[-1].used)}


def _sizes(clip: Clip) -> dict[str, float]:
    return {"size": clip.size, "limit": clip.limit}


def _as_fraction(limit: float) -> tuple[int, float]:
    """Return (S, limit * S) where that is a usual limit and S a loss scale; (0, 0) otherwise."""
    for exponent in range(5, 25):
        for nice in NICE:
            if abs(limit * 2**exponent / nice - 1) < 1e-3:
                return 2**exponent, nice
    return 0, 0.0
