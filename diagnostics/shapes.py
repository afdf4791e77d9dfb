"""Shapes: logits are (B, T, V) and the loss is one number, for every batch size and length.

Why it matters
    Most code is tried with one shape. A squeeze that removes a batch of 1, logits that become
    (B*T, V) when targets come, a (T, B, V) read as (B, T, V): the wrong shape often broadcasts
    or flattens into something that trains, on targets of other tokens.

How it is measured
    The model is called with B in {1, 2, 3} and T in {1, 2, 7, block} (a block longer than 128
    with B = 2 only), without targets and with them, at sizes where B, T and V differ, and the raw
    output is read: order of the axes, width, number type, finiteness, shape of the loss. Each row
    alone must give what it gives in the batch, in the same place. One token more than the block
    must raise. A copy on the `meta` device, whose tensors have a place but no memory, shows
    tensors that are made elsewhere.

What it cannot see
    Scrambling inside one row (a view of (V, T) as (T, V)): that is for `causal_independence` and
    `prefix`. Whether the loss pairs logits with their own targets: that is for `loss`. Devices of
    a model that cannot run on meta because it reads numbers out of tensors.

Break it
    python -m exercises.break_shapes
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._adapter import UnreadableOutputError, next_tokens
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._trace import DeviceWatch, MixedDevicesError, tensors_in, user_frame

BATCH_SIZES = (1, 2, 3)
LENGTHS = (1, 2, 7)  # and the block
CELLS_MAX = 4_000_000  # logits of one call; a larger block is tried with one row only
LONG = 128
ROW_LIMIT = 1e-4  # healthy rows measured: 3e-7 relative to the largest logit, in float32


def check_shapes(
    model: nn.Module,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check the shapes of logits and loss for several batch sizes and lengths.

    vocab_size, block_size: None: read from the model.    parts: other fields of Pipeline.
    """
    pipeline = Pipeline(model, vocab_size=vocab_size, block_size=block_size, **parts)  # type: ignore[arg-type]
    return _check(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Judge the sweep; NaN for another cause than the size is left to `forward_hooks`."""
    result = _check(probe)
    if result.reason != "shapes.not_finite":
        return result
    weights = probe.pipeline.model.parameters()
    if result.numbers["everywhere"] or not all(bool(w.isfinite().all()) for w in weights):
        return verdict(
            Status.SKIP,
            "shapes.not_finite",
            say("not measured: the logits are not finite, whatever the size"),
            next_step=say("mend what forward_hooks reports: it names the first such module"),
        )
    return result


@dataclass
class Trial:
    """One call of the sweep and what came back."""

    B: int
    T: int
    with_targets: bool
    raw: Any = None
    error: Exception | None = None
    logits: Tensor | None = None  # as it came
    loss: Any = None

    @property
    def name(self) -> str:
        """The call in words."""
        return f"B={self.B}, T={self.T}, {'with' if self.with_targets else 'without'} targets"


@dataclass
class Sweep:
    """All calls of one model."""

    V: int
    block: int | None
    trials: list[Trial] = field(default_factory=list)

    def of(self, *, with_targets: bool | None = None) -> list[Trial]:
        """Return the calls that came back, all or one kind."""
        return [
            t
            for t in self.trials
            if t.error is None and (with_targets is None or t.with_targets == with_targets)
        ]


def measure_sweep(probe: Probe, model: nn.Module) -> Sweep:
    """Call the model at every size, without targets and with them; nothing is judged yet."""
    V, block = probe.vocab_size, probe.block_size
    sweep = Sweep(V, block)
    longest = block or 32
    lengths = sorted({T if T != V else T + 1 for T in LENGTHS if longest > T} | {longest})
    for T in lengths:
        for B in BATCH_SIZES:
            if B > 2 and B * T * V > CELLS_MAX:
                continue
            if T > LONG and B != 2:
                continue  # one batch size is enough for a long block
            tokens = probe.tokens(B, T, "shapes")
            for with_targets in (False, True):
                sweep.trials.append(_call(probe, model, tokens, with_targets))
    return sweep


def _call(probe: Probe, model: nn.Module, tokens: Tensor, with_targets: bool) -> Trial:
    trial = Trial(tokens.shape[0], tokens.shape[1], with_targets)
    targets = next_tokens(tokens, probe.pipeline.labels).contiguous()
    forward = probe.pipeline.forward
    try:
        with torch.no_grad(), probe.seeded("shapes"):
            if forward is not None:
                trial.raw = forward(model, tokens.clone(), targets)
            elif with_targets:
                trial.raw = _call_with_targets(probe, model, tokens, targets)
            else:
                trial.raw = model(tokens.clone())
    except Exception as error:  # any: whatever the model raises is the finding
        trial.error = error
    trial.logits, trial.loss = _split(trial.raw)
    return trial


def _call_with_targets(probe: Probe, model: nn.Module, tokens: Tensor, targets: Tensor) -> Any:
    adapter = probe.adapter
    if adapter.target_name is not None:
        return model(tokens.clone(), **{adapter.target_name: targets})
    return model(tokens.clone(), targets) if adapter.target_position else model(tokens.clone())


def _split(raw: Any) -> tuple[Tensor | None, Any]:
    """Return (logits, loss) of a raw output as they came, whatever their shape."""
    if isinstance(raw, Tensor):
        return (raw, None) if raw.ndim else (None, raw)
    if isinstance(raw, dict) or hasattr(raw, "logits"):
        get = raw.get if isinstance(raw, dict) else lambda name: getattr(raw, name, None)
        return get("logits"), get("loss")
    if isinstance(raw, (tuple, list)):
        tensors = [part for part in raw if isinstance(part, Tensor)]
        logits = next((part for part in tensors if part.ndim >= 2), None)
        others = [part for part in raw if part is not logits and part is not None]
        loss = next((p for p in others if isinstance(p, (Tensor, float))), None)
        return logits, loss
    return None, None


def _check(probe: Probe) -> CheckResult:
    with probe.model() as model:
        try:
            adapter = probe.adapter
        except UnreadableOutputError as error:
            return _unreadable(probe, model, error)
        except Exception as error:  # any: the sweep below says at which sizes it raises
            trial = Trial(3, min(7, probe.probe_length), False, error=error)
            return _raises([trial], [], probe.block_size)
        sweep = measure_sweep(probe, model)
    if adapter.target_name is not None and adapter.always_targets:
        sweep.trials = [t for t in sweep.trials if t.with_targets or t.error is None]
    for judge in (_judge_errors, _judge_kind, _judge_layout, _judge_loss, _judge_finite):
        result = judge(sweep)
        if result is not None:
            return result
    warning: CheckResult | None = None
    for ask in (_ask_rows, _ask_device, _ask_overrun):
        result = ask(probe)
        if result is not None and result.failed:
            return result
        warning = result if warning is None else warning
    return warning if warning is not None else _pass(sweep)


def _pass(sweep: Sweep) -> CheckResult:
    shown = next(t for t in reversed(sweep.trials) if t.error is None)
    assert shown.logits is not None
    widths = {t.logits.shape[-1] for t in sweep.of() if t.logits is not None}
    return verdict(
        Status.PASS,
        "shapes.ok",
        say(
            "logits are (B, T, {width}) in {count} calls with B up to {B} and T up to {T}",
            width=max(widths),
            count=len(sweep.of()),
            B=max(t.B for t in sweep.trials),
            T=max(t.T for t in sweep.trials),
        ),
        measured=say("{name}: logits {shape}", name=shown.name, shape=tuple(shown.logits.shape)),
        numbers={"calls": len(sweep.of()), "width": max(widths), "vocab_size": sweep.V},
    )


# ---- judging the sweep ---------------------------------------------------------------------


def _judge_errors(sweep: Sweep) -> CheckResult | None:
    failed = [t for t in sweep.trials if t.error is not None]
    return _raises(failed, sweep.of(), sweep.block) if failed else None


def _raises(failed: list[Trial], fine: list[Trial], block: int | None) -> CheckResult:
    first = failed[0]
    assert first.error is not None
    lengths_fine = {t.T for t in fine}
    lengths_failed = {t.T for t in failed}
    one_length = len(lengths_fine) == 1 and not lengths_fine & lengths_failed
    refused = all(isinstance(t.error, (ValueError, AssertionError)) for t in failed)
    causes: tuple[Text, ...] = ()
    if fine and {t.B for t in failed} == {1} and {t.B for t in fine} > {1}:
        causes = (say("an axis of size 1 is squeezed away: squeeze() without a dimension"),)
    elif fine and {t.B for t in failed} == {1}:
        causes = (say("the batch axis is squeezed away when it has size 1"),)
    elif fine and lengths_failed == {1}:
        causes = (say("the time axis is squeezed away when it has size 1"),)
    elif fine and all(t.with_targets for t in failed):
        causes = (say("only the branch that computes the loss fails"),)
    fixed = one_length and refused
    return verdict(
        Status.WARN if fixed else Status.FAIL,
        "shapes.fixed_length" if fixed else "shapes.raises",
        say(
            "the model raises {kind} with {name}: {message}",
            kind=type(first.error).__name__,
            name=first.name,
            message=(str(first.error).strip() or "no message").split("\n")[0][:200],
        ),
        measured=say("{bad} of {all} calls raise", bad=len(failed), all=len(failed) + len(fine)),
        expected=say(
            "an answer for every B, and for every T up to the block ({block})", block=block
        ),
        where=say("{frame}", frame=user_frame(first.error) or first.name),
        causes=causes,
        next_step=say(
            "call the model by hand with ids of shape ({B}, {T}); read the traceback from the "
            "bottom",
            B=first.B,
            T=first.T,
        ),
        numbers={"raising": [t.name for t in failed], "exception": type(first.error).__name__},
    )


def _judge_layout(sweep: Sweep) -> CheckResult | None:
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


def _judge_kind(sweep: Sweep) -> CheckResult | None:
    """Judge the number type, and whether these are logits at all."""
    for t in reversed(sweep.of()):
        if t.logits is not None and not t.logits.is_floating_point():
            return _predictions(t.name, t.logits)
    largest = max((t for t in sweep.of() if t.logits is not None), key=lambda t: t.B * t.T)
    assert largest.logits is not None
    logits = largest.logits.float()
    # a row of logits that is positive and sums to 1 by chance does not exist
    if bool((logits >= 0).all()) and bool(((logits.sum(-1) - 1).abs() < 1e-3).all()):
        return verdict(
            Status.WARN,
            "shapes.probabilities",
            say("the model returns probabilities: every row is positive and sums to 1"),
            measured=say("the first row sums to {total}", total=float(logits.sum(-1).flatten()[0])),
            expected=say("logits, on which temperature, cross_entropy and top-k rely"),
            causes=(say("softmax is the last step of forward"),),
            next_step=say("return what goes into the softmax"),
        )
    return None


def _predictions(name: str, logits: Tensor) -> CheckResult:
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


def _judge_loss(sweep: Sweep) -> CheckResult | None:
    without = {(t.B, t.T): t.loss for t in sweep.of(with_targets=False)}
    for t in sweep.of(with_targets=True):
        state = without.get((t.B, t.T))
        if isinstance(state, Tensor) and isinstance(t.loss, Tensor) and state.shape == t.loss.shape:
            continue  # comes without targets as well: a hidden state, not a loss
        if isinstance(t.loss, Tensor) and t.loss.numel() != 1:
            return verdict(
                Status.FAIL,
                "shapes.loss_not_scalar",
                say("the loss has shape {shape}: it is not one number", shape=tuple(t.loss.shape)),
                measured=say("{name}: {n} numbers", name=t.name, n=t.loss.numel()),
                expected=say("a scalar, shape ()"),
                causes=(say('reduction="none", and no mean afterwards'),)
                if t.loss.numel() == t.B * t.T
                else (),
                next_step=say("return loss.mean() over the scored targets"),
                numbers={"shape": list(t.loss.shape)},
            )
        if isinstance(t.loss, float):
            return verdict(
                Status.FAIL,
                "shapes.loss_not_tensor",
                say("the loss is a plain Python number: no gradient can flow back from it"),
                measured=say("{name}: {kind}", name=t.name, kind=type(t.loss).__name__),
                expected=say("a tensor of shape () that is part of the graph"),
                causes=(say(".item() or float() is called inside forward"),),
                next_step=say("return the tensor; call .item() where it is printed"),
            )
    return None


def _judge_finite(sweep: Sweep) -> CheckResult | None:
    bad = [
        t
        for t in sweep.of()
        # columns beyond V may be -inf: closed entries of a padded vocabulary
        if t.logits is not None and not bool(t.logits[..., : sweep.V].isfinite().all())
    ]
    if not bad:
        return None
    lengths = sorted({t.T for t in bad})
    return verdict(
        Status.FAIL,
        "shapes.not_finite",
        say("the logits are not finite with {name}", name=bad[0].name),
        measured=say("{bad} of {all} calls give NaN or inf", bad=len(bad), all=len(sweep.of())),
        expected=say("finite logits at every size"),
        where=say("T in {lengths}, B in {B}", lengths=lengths, B=sorted({t.B for t in bad})),
        causes=(say("a deviation over one position: std() of a single number is NaN"),)
        if lengths == [1]
        else (),
        next_step=say("mend what forward_hooks reports: it names the first such module"),
        numbers={"calls": [t.name for t in bad], "everywhere": len(bad) == len(sweep.of())},
    )


def _unreadable(probe: Probe, model: nn.Module, error: Exception) -> CheckResult:
    """Say what came when no logits could be recognised."""
    tokens = probe.tokens(3, min(7, probe.probe_length), "shapes")
    trial = _call(probe, model, tokens, False) if probe.pipeline.forward is None else None
    found = [] if trial is None or trial.error is not None else tensors_in(trial.raw)
    if trial is not None and not found:
        raise MissingPartError("forward", why=str(error)[:200])
    scores = [t for t in found if t.is_floating_point() and t.ndim > 1]
    if found and not scores and found[0].ndim == 2:
        return _predictions(f"B={trial.B}, T={trial.T}" if trial else "", found[0])
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


# ---- rows, devices, and one token too many --------------------------------------------------


def _ask_rows(probe: Probe) -> CheckResult | None:
    """Does each row of logits belong to its row of ids? Numbers that moved elsewhere are found."""
    T = min(7, probe.probe_length)
    tokens = probe.tokens(3, T, "rows")
    with probe.model(exact=True, jitter=JITTER_STD) as model, probe.seeded("rows"):
        try:
            together = probe.logits(model, tokens)  # (B, T, W)
            alone = torch.cat([probe.logits(model, tokens[b : b + 1]) for b in range(3)])
            V = probe.vocab_size  # closed columns beyond V may hold -inf
            together, alone = together[..., :V], alone[..., :V]
        except MissingPartError:  # the last position only
            return None
    limit = ROW_LIMIT * float(alone.abs().max())
    misplaced = ((together - alone).abs() > limit).any(dim=2)  # (B, T)
    if not bool(misplaced.any()):
        return None
    moved = (together.flatten().sort().values - alone.flatten().sort().values).abs().max()
    if not bool(moved <= limit):
        return None  # other numbers, not other places: rows influence one another
    b, t = (int(i) for i in torch.nonzero(misplaced)[0])
    return verdict(
        Status.FAIL,
        "shapes.rows_mixed",
        say("the logits of a batch stand in other places than the ids they were computed from"),
        measured=say(
            "{count} of {all} places hold the logits of another place",
            count=int(misplaced.sum()),
            all=misplaced.numel(),
        ),
        expected=say("0: row b, position t holds what row b gives alone"),
        where=say("first is row {b}, position {t}, with B=3, T={T}", b=b, t=t, T=T),
        causes=(say("reshape or view between (T, B, .) and (B, T, .) where transpose is meant"),),
        next_step=say("use transpose(0, 1) to swap two axes; reshape only splits or merges them"),
        numbers={"misplaced": int(misplaced.sum()), "places": misplaced.numel()},
    )


def _ask_device(probe: Probe) -> CheckResult | None:
    """Run a copy on the meta device: does any tensor come from elsewhere?"""
    if not probe.copies_are_independent or probe.pipeline.forward is not None:
        return None
    tokens = probe.tokens(2, min(7, probe.probe_length), "device")
    try:
        model = copy.deepcopy(probe.pipeline.model).eval().to("meta")
        with torch.no_grad(), probe.seeded("device"), DeviceWatch():
            model(tokens.to("meta"))
    except MixedDevicesError as error:
        return verdict(
            Status.FAIL,
            "shapes.wrong_device",
            say("forward makes a tensor on the CPU whatever device the model is on"),
            measured=say("{message}", message=str(error)),
            expected=say("every tensor on the device of the token ids"),
            where=say("{place}", place=error.place),
            causes=(
                say("a tensor is created without device=, such as torch.arange(T)"),
                say("a tensor is a plain attribute, not a registered buffer, so to() misses it"),
            ),
            next_step=say("torch.arange(T, device=token_ids.device), or self.register_buffer(...)"),
            numbers={"place": error.place},
        )
    except Exception:  # any: a model that cannot run on meta for other reasons is not judged
        return None
    return None


def _ask_overrun(probe: Probe) -> CheckResult | None:
    """Does a row longer than the block raise?"""
    block = probe.block_size
    if block is None or (block + 1) * probe.vocab_size > CELLS_MAX:
        return None
    with probe.model() as model:
        trial = _call(probe, model, probe.tokens(1, block + 1, "overrun"), True)
    if trial.error is not None:
        return None
    shape = () if trial.logits is None else tuple(trial.logits.shape)
    cut = len(shape) == 3 and shape[1] == block
    return verdict(
        Status.WARN,
        "shapes.truncated_silently" if cut else "shapes.overrun",
        say("{T} ids, one more than the block, are accepted and cut to it", T=block + 1)
        if cut
        else say("{T} ids, one more than the block, are accepted without a word", T=block + 1),
        measured=say("logits {shape} for {T} ids", shape=shape, T=block + 1),
        expected=say("an error, unless the positions are relative and meant to go further"),
        next_step=say("crop the context to the last {block} ids before each call", block=block),
        numbers={"block_size": block, "shape": list(shape)},
    )
