"""How the logits lie, read at sizes where no two axes can be confused.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor, nn

from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._shape_sweep import Sweep, Trial, call
from diagnostics._text import Text, say
from diagnostics._trace import tensors_in


def judge_layout(sweep: Sweep) -> CheckResult | None:
    """Judge the order of the axes at sizes where no two of B, T and W can be confused."""
    for t in sweep.of():
        if t.logits is None or len({t.B, t.T, sweep.V}) < 3:
            continue
        shape = tuple(t.logits.shape)
        reason = _layout_of(shape, t.B, t.T, sweep.V)
        if reason == "shapes.last_only" and not t.with_targets:
            continue  # the last position alone is what generation needs
        if reason in ("ok", "narrow"):
            continue
        if reason == "shapes.flattened" and all(
            1 in (o.B, o.T) for o in _with_layout(sweep, reason)
        ):
            reason = "shapes.squeezed"  # sizes above 1 come as they should
        told, cause, action = _LAYOUTS[reason]
        return _layout_failure(sweep, t, reason, say(told, B=t.B, T=t.T, V=sweep.V), cause, action)
    widths = {t.logits.shape[-1] for t in sweep.of() if t.logits is not None and t.logits.ndim == 3}
    if widths and min(widths) < sweep.V:
        return _too_narrow(sweep, min(widths))
    return None


def _layout_of(shape: tuple[int, ...], B: int, T: int, V: int) -> str:
    if len(shape) == 3:
        if shape[:2] == (B, T):
            return "ok" if shape[2] >= V else "narrow"
        if shape[0] == B and shape[2] == T and shape[1] >= V:
            return "shapes.transposed"
        if shape[:2] == (T, B):
            return "shapes.time_first"
        if shape[:2] == (B, 1):
            return "shapes.last_only"
        if shape[0] == B and shape[1] < T:
            return "shapes.truncated"
    if len(shape) == 2 and shape[0] == B * T:
        return "shapes.flattened"
    if len(shape) == 2 and shape[0] == B and shape[1] >= V:
        return "shapes.last_only"
    return "shapes.unreadable"


# reason: (claim, cause, next step); None where the shape alone points to no cause
_LAYOUTS: dict[str, tuple[str, str | None, str]] = {
    "shapes.transposed": (
        "the logits come as (B, V, T): classes before positions",
        "they were transposed for cross_entropy, and are returned like that",
        "return logits before the transpose: loss = cross_entropy(logits.transpose(1, 2), targets)",
    ),
    "shapes.time_first": (
        "the logits come as (T, B, V): time before batch",
        "a module that expects (T, B, C) sits inside: nn.MultiheadAttention or an RNN without "
        "batch_first=True",
        "build that module with batch_first=True, or transpose back before the head",
    ),
    "shapes.flattened": (
        "the logits come as (B*T, V): rows and positions are one axis",
        "the name logits is overwritten by its flattened view, and that is returned",
        "flatten inside the call: cross_entropy(logits.flatten(0, 1), targets.flatten())",
    ),
    "shapes.squeezed": (
        "an axis of the logits is gone where the batch or the row has size 1",
        "squeeze() without a dimension takes every axis of size 1 away",
        "name the axis, as in squeeze(-1), or index it",
    ),
    "shapes.last_only": (
        "with targets the logits hold the last position only, so one token per row is learnt",
        "the shortcut for generation (x[:, [-1]]) is taken in training too",
        "take the last position only where targets is None",
    ),
    "shapes.truncated": (
        "the logits hold fewer positions than the ids: each belongs to another token than it seems",
        "the ids are cut or shifted inside forward",
        "return one row of logits for each of the T ids",
    ),
    "shapes.unreadable": (
        "the logits fit neither (B, T, V) = ({B}, {T}, {V}) nor any usual order",
        None,
        "print logits.shape at the end of forward, or pass forward=(model, inputs, targets) -> "
        "(logits, loss)",
    ),
}


def _layout_failure(
    sweep: Sweep, t: Trial, reason: str, told: Text, cause: str | None, action: str
) -> CheckResult:
    assert t.logits is not None
    raw = "shapes.flattened" if reason == "shapes.squeezed" else reason
    wrong = [o.name for o in _with_layout(sweep, raw)]
    return verdict(
        Status.FAIL,
        reason,
        told,
        measured=say("{name}: logits {shape}", name=t.name, shape=tuple(t.logits.shape)),
        expected=say("({B}, {T}, {V}) or wider", B=t.B, T=t.T, V=sweep.V),
        where=say("{count} of {all} calls", count=len(wrong), all=len(sweep.of())),
        causes=(Text(cause, {}),) if cause else (),
        next_step=Text(action, {}),
        numbers={"shape": list(t.logits.shape), "calls": wrong, "layout": reason},
    )


def _with_layout(sweep: Sweep, reason: str) -> list[Trial]:
    return [
        t
        for t in sweep.of()
        if t.logits is not None and _layout_of(tuple(t.logits.shape), t.B, t.T, sweep.V) == reason
    ]


def _too_narrow(sweep: Sweep, width: int) -> CheckResult:
    return verdict(
        Status.FAIL,
        "shapes.too_narrow",
        say(
            "the logits have {width} columns for a vocabulary of {V}: some tokens can never be "
            "predicted",
            width=width,
            V=sweep.V,
        ),
        measured=say("width {width}", width=width),
        expected=say("at least V = {V}; more is fine (a padded vocabulary)", V=sweep.V),
        next_step=say("build the head with vocab_size outputs, from the same number as the ids"),
        numbers={"width": width, "vocab_size": sweep.V},
    )


def predictions(name: str, logits: Tensor) -> CheckResult:
    """Say that whole numbers came where logits were wanted."""
    return verdict(
        Status.FAIL,
        "shapes.predictions",
        say("the model returns whole numbers, predicted ids, in place of logits"),
        measured=say(
            "{name}: {dtype} of shape {shape}",
            name=name,
            dtype=str(logits.dtype).removeprefix("torch."),
            shape=tuple(logits.shape),
        ),
        expected=say("floating-point scores (B, T, V), one for each token of the vocabulary"),
        causes=(say("argmax is applied inside forward"),),
        next_step=say("return the logits; take argmax where the ids are wanted"),
        numbers={"shape": list(logits.shape)},
    )


def unreadable(probe: Probe, model: nn.Module, error: Exception) -> CheckResult:
    """Say what came when no logits could be recognised."""
    tokens = probe.tokens(3, min(7, probe.probe_length), "shapes")
    trial = call(probe, model, tokens, False) if probe.pipeline.forward is None else None
    found = [] if trial is None or trial.error is not None else tensors_in(trial.raw)
    if trial is not None and not found:
        raise MissingPartError("forward", why=str(error)[:200])
    scores = [t for t in found if t.is_floating_point() and t.ndim > 1]
    if found and not scores and found[0].ndim == 2:
        return predictions(f"B={trial.B}, T={trial.T}" if trial else "", found[0])
    if scores and trial is not None:
        trial.logits = scores[0]
        reason = _layout_of(tuple(scores[0].shape), trial.B, trial.T, probe.vocab_size)
        if reason == "shapes.truncated":
            told, cause, action = _LAYOUTS[reason]
            sweep = Sweep(probe.vocab_size, probe.block_size, [trial])
            return _layout_failure(sweep, trial, reason, Text(told, {}), cause, action)
    shapes = [tuple(t.shape) for t in scores]
    B, T = tokens.shape
    return verdict(
        Status.FAIL,
        "shapes.unreadable",
        say(_LAYOUTS["shapes.unreadable"][0], B=B, T=T, V=probe.vocab_size),
        measured=say("shapes {shapes} for ids ({B}, {T})", shapes=shapes, B=B, T=T),
        expected=say("({B}, {T}, {V})", B=B, T=T, V=probe.vocab_size),
        next_step=Text(_LAYOUTS["shapes.unreadable"][2], {}),
        numbers={"shapes": [list(shape) for shape in shapes]},
    )
