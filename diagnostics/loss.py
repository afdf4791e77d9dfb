"""Loss: the number the model reports is the cross-entropy of its own logits with its targets.

Why it matters
    Every curve, every comparison and every gradient comes from this one number. A loss with a
    second softmax, a second shift or a wrong denominator still falls, and still looks like one.

How it is measured
    Cross-entropy is recomputed in float64 from the logits of the same call and compared with the
    reported loss: on random tokens, on weights times 10 (where a loss is large enough for clamps
    and overflows to show), with some targets set to ignore_index, and on the pipeline's own
    batch. On a mismatch about thirty usual formulas are tried; one is named only if it gives the
    reported number in every case. Last, the gradient of the loss with respect to the logits is
    compared with that of the recomputed one.

What it cannot see
    Whether the batch itself is right: that is for `shift` and `batches`. Which tokens ought to be
    masked (prompts, document ends). Objectives with heads of their own, such as multi-token
    prediction, do not follow from the logits: declare them with allow=("loss.mismatch",). The
    gradient, where the model returns other logits than those its loss was computed from. Terms
    that are active in train mode only.

Break it
    python -m exercises.break_loss
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._loss_readings import (
    TOLERANCE,
    Case,
    Reading,
    find_readings,
    is_healthy,
    without,
)
from diagnostics._loss_verdicts import MISMATCH, VERDICTS
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Batch, MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

EVERY_ID_MAX = 512  # vocabularies up to this size have each id among the targets
SHARP = 10.0  # factor on the weights: logits far from uniform, losses far above ln V
LARGE, IGNORED, OWN = "large weights", "ignored targets", "your batch"  # names of the cases
GRADIENT_GAP_MAX = 1e-3  # relative; healthy models in float64: 0 (60 tiny ones measured)


def check_loss(
    model: nn.Module,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that the reported loss is the mean cross-entropy, in nats per scored target.

    inputs, targets: (B, T) int64, a batch to look at beside random ones; None: random ones only.
    parts: other fields of Pipeline, such as forward, labels or ignore_index.
    Raises MissingPartError when the model reports no loss and no forward is given.
    """
    if inputs is not None and targets is not None:
        parts["batch"] = (inputs, targets)
    return run(Probe(Pipeline(model, vocab_size=vocab_size, **parts)))  # type: ignore[arg-type]


def run(probe: Probe) -> CheckResult:
    """Recompute the loss of four kinds of batches, and name the formula that fits."""
    if not probe.adapter.has_loss:
        if _returns_plain_number(probe):
            return _wrong_gradient(math.inf, {})
        raise MissingPartError("forward", why="the model returns logits but no loss of its own")
    stray = _stray_target(probe)
    if stray is not None:
        return stray
    try:
        cases = measure_cases(probe)
    except _NotScalarError as error:
        return _not_scalar(error.shape)
    numbers = _numbers(cases)
    if not cases:
        return _no_finite_logits()
    readings, cases = _read(probe, cases)
    if readings is None:
        return _judge_gradient(probe, cases, numbers)
    not_finite = next((c for c in cases if not math.isfinite(c.reported)), None)
    if not readings and not_finite is not None:
        return _not_finite(not_finite, numbers)
    return _judge(readings, cases, numbers, probe)


def measure_cases(probe: Probe) -> list[Case]:
    """Call the model on every kind of batch; return its logits and reported losses."""
    T, V = probe.probe_length, probe.vocab_size
    B = max(3, -(-V // T)) if V <= EVERY_ID_MAX else 3
    plain = _batch(probe, B, T, "loss")
    # a batch whose B, T and V differ from the first one's, so that no axis passes for another
    other = _batch(probe, B + 2, max(2, T - 3), "loss, other")
    with probe.model(exact=True, jitter=JITTER_STD) as model:
        cases = [_measure(probe, model, "random tokens", batch) for batch in (plain, other)]
        # a loss that takes no ignore_index raises; it matters only if the own batch holds one
        with contextlib.suppress(RuntimeError, IndexError, ValueError):
            cases.append(_measure(probe, model, IGNORED, _with_ignored(plain, probe)))
        if probe.batch.source != "synthetic":
            cases.append(_measure(probe, model, OWN, probe.batch))
    with probe.model(exact=True, jitter=JITTER_STD, scale=SHARP) as model:
        cases += [_measure(probe, model, LARGE, batch) for batch in (plain, other)]
    # in the model's own number type, where exp overflows at 88 and not at 709
    with probe.model(jitter=JITTER_STD, scale=SHARP**2) as model:
        cases.append(_measure(probe, model, LARGE, other))
    # minus infinity is how the extra columns of a padded vocabulary are shut
    return [case for case in cases if bool((case.logits < math.inf).all())]


def _batch(probe: Probe, B: int, T: int, name: str) -> Batch:
    """Random rows in which, for a small vocabulary, every id is a target somewhere."""
    V = probe.vocab_size
    stream = probe.tokens(B, T + 1, name)
    generator = probe.generator(name + ", permutation")
    every = torch.randperm(V, generator=generator)[: B * (T - 1)].to(stream.device)
    if V <= EVERY_ID_MAX:
        inner = stream[:, 1:T].flatten()  # targets under either contract
        inner[: len(every)] = every
        stream[:, 1:T] = inner.view(B, T - 1)
    inputs = stream[:, :-1].contiguous()
    same = probe.pipeline.labels == "same"
    return Batch(inputs, inputs.clone() if same else stream[:, 1:].contiguous(), source=name)


def _with_ignored(batch: Batch, probe: Probe) -> Batch:
    """Ignore the tail of each row, a different length in each, and at least two stay."""
    B, T = batch.targets.shape
    lengths = 2 + torch.arange(B, device=batch.targets.device) * 5 % max(1, T - 2)  # (B,)
    tail = torch.arange(T, device=batch.targets.device) >= lengths[:, None]  # (B, T)
    targets = batch.targets.masked_fill(tail, probe.pipeline.ignore_index)
    return replace(batch, targets=targets)


def _measure(probe: Probe, model: nn.Module, name: str, batch: Batch) -> Case:
    with probe.seeded("loss"), torch.no_grad():
        output = probe.adapter.call(model, batch.inputs, batch.targets, batch.attention_mask)
    if output.loss is None or output.logits.shape[1] != batch.inputs.shape[1]:
        raise MissingPartError("forward", why="the model gives logits of the last position only")
    if output.loss.numel() != 1:
        raise _NotScalarError(tuple(output.loss.shape))
    rounding = [
        torch.finfo(t.dtype).eps
        for t in (output.loss, output.logits)
        if t.is_floating_point() and t.dtype.itemsize < 4
    ]
    return Case(
        name=name,
        logits=_exact(output.logits),
        inputs=batch.inputs,
        targets=batch.targets,
        reported=float(output.loss),
        noise=max(rounding, default=0.0),
        labels=probe.pipeline.labels,
        ignore_index=probe.pipeline.ignore_index,
        pads=_padding(probe, batch),
    )


def _exact(logits: Tensor) -> Tensor:
    """Return detached float64 logits; on the CPU where the device has no float64."""
    logits = logits.detach()
    return (logits.cpu() if logits.device.type == "mps" else logits).double()


def _padding(probe: Probe, batch: Batch) -> Tensor | None:
    """Targets (B, T) that are padding after padding; the first one may be a trained end mark."""
    if batch.source not in ("batch", "get_batch"):
        return None
    pad_id = probe.pipeline.pad_id
    if batch.attention_mask is not None:
        is_pad = batch.attention_mask == 0
    elif pad_id is not None:
        is_pad = batch.inputs == pad_id
    else:
        return None
    if probe.pipeline.labels == "same":  # target t is predicted from position t - 1
        before = torch.zeros_like(is_pad)
        before[:, 1:] = is_pad[:, :-1]
        return before & is_pad
    if pad_id is not None:
        return is_pad & (batch.targets == pad_id)
    return is_pad


def _read(probe: Probe, cases: list[Case]) -> tuple[list[Reading] | None, list[Case]]:
    """Return None when healthy, else what fits (an empty list: nothing does)."""
    V, pad_id = probe.vocab_size, probe.pipeline.pad_id
    if cases[0].logits.shape[-1] > V:
        narrow = [replace(case, logits=case.logits[..., :V]) for case in cases]
        if is_healthy(narrow) and not is_healthy(cases):
            cases = narrow  # a padded vocabulary whose extra columns are left out of the loss
    padded = [c for c in cases if c.pads is not None and _scored_pads(c)]
    if is_healthy(cases):
        if padded and not all(c.fits(without(c, c.pads)) for c in padded if c.pads is not None):
            return [Reading("loss.padding_counted", _scored_pads(padded[0]))], cases
        return (_probabilities(cases) or None), cases
    if pad_id is not None and all(c.fits(without(c, c.targets == pad_id)) for c in cases):
        return None, cases  # the loss leaves the declared padding out by itself
    if padded:
        rest = [c for c in cases if c.pads is None or not _scored_pads(c)]
        if is_healthy(rest) and all(
            c.fits(without(c, c.pads)) for c in padded if c.pads is not None
        ):
            return None, cases  # ... or the attention mask does it
    return _explain(probe, cases), cases


def _explain(probe: Probe, cases: list[Case]) -> list[Reading]:
    # a wrong formula may treat ignored targets in a way of its own, or overflow
    whole = [case for case in cases if case.name != IGNORED]
    finite = [case for case in whole if math.isfinite(case.reported)]
    for some in (cases, whole, finite):
        found = [] if is_healthy(some) else find_readings(some)
        if found:
            return found
    return _read_by_other_targets(probe, cases)


def _scored_pads(case: Case) -> int:
    if case.pads is None:
        return 0
    return int((case.pads & (case.targets != case.ignore_index)).sum())


def _probabilities(cases: Sequence[Case]) -> list[Reading]:
    """Rows that sum to 1 are probabilities; cross-entropy then softmaxes a second time."""
    for case in cases:
        sums = case.logits.sum(-1)
        if not bool((case.logits >= 0).all()) or not bool(((sums - 1).abs() < 1e-4).all()):
            return []
    return [Reading("loss.double_softmax")]


def _read_by_other_targets(probe: Probe, cases: list[Case]) -> list[Reading]:
    """Same inputs, other targets: what is added stays, what ignores its targets stays whole."""
    first = cases[0]
    exchanged = [first.targets.roll(rows, 0).roll(rows, 1) for rows in (1, 2)]
    with probe.model(exact=True, jitter=JITTER_STD) as model:
        others = [
            _measure(probe, model, "other targets", Batch(first.inputs, targets))
            for targets in exchanged
        ]
    if all(other.fits(first.reported) for other in others):
        return [Reading("loss.ignores_targets")]
    extra = first.reported - first.reference
    added = [other.reported - other.reference for other in others]
    if is_healthy([case for case in cases if case.name != IGNORED]):
        return [Reading("loss.ignored_counted")]
    if is_healthy([case for case in cases if case.name not in (LARGE, IGNORED)]):
        large_and_finite = all(math.isfinite(case.reported) for case in cases)
        return [Reading("loss.differs_when_large")] if large_and_finite else []
    if all(abs(extra - again) <= 2 * first.tolerance for again in added):
        return [Reading("loss.extra_term", extra)]
    weights = measure_position_weights(probe)
    if weights is not None and 0 < int((weights == 0).sum()) < weights.numel():
        return [Reading("loss.targets_dropped", float((weights == 0).double().mean()))]
    return []


# ---- verdicts ------------------------------------------------------------------------------


def _judge(
    readings: list[Reading], cases: list[Case], numbers: dict[str, object], probe: Probe
) -> CheckResult:
    reading = readings[0] if readings else Reading("loss.mismatch")
    verdict = VERDICTS.get(reading.reason, MISMATCH)
    status = verdict.status
    if reading.reason == "loss.ignored_counted" and not _own_batch_ignores(cases):
        status = Status.WARN  # nothing in the own data is ignored
    facts = {"parameter": reading.parameter, "ignore": probe.pipeline.ignore_index}
    off = [case for case in cases if not case.fits(case.reference)] or cases[-1:]
    causes = [Text(verdict.cause, facts)] if verdict.cause else []
    causes += [
        say("the same number also fits: {other}", other=Text(VERDICTS[r.reason].cause, facts))
        for r in readings[1:]
        if r.reason in VERDICTS
    ]
    return CheckResult(
        check="loss",
        status=status,
        reason=reading.reason,
        claim=Text(verdict.claim, facts),
        measured=say(
            "the model reports {reported} nats on {name}",
            reported=off[0].reported,
            name=off[0].name,
        ),
        expected=say(
            "{reference} nats, the mean cross-entropy of the same logits, within {tolerance}",
            reference=off[0].reference
            if reading.reason != "loss.padding_counted"
            else without(off[0], off[0].pads if off[0].pads is not None else off[0].targets < 0),
            tolerance=off[0].tolerance,
        ),
        where=say(
            "{count} of {total} batches differ; this one by {gap} nats",
            count=len(off),
            total=len(cases),
            gap=off[0].reported - off[0].reference,
        ),
        causes=tuple(causes),
        next_step=Text(verdict.next_step, facts),
        numbers={**numbers, "parameter": reading.parameter, "fits": [r.reason for r in readings]},
    )


def _own_batch_ignores(cases: Sequence[Case]) -> bool:
    return any(
        case.name == OWN and bool((case.targets == case.ignore_index).any()) for case in cases
    )


def _judge_gradient(probe: Probe, cases: list[Case], numbers: dict[str, object]) -> CheckResult:
    """The number is right; is its gradient, at the logits, that of the cross-entropy?"""
    gap = measure_gradient_gap(probe)
    numbers = {**numbers, "gradient_gap": gap}
    limit = max(GRADIENT_GAP_MAX, 4 * max(case.noise for case in cases))
    if gap is not None and not gap <= limit:
        return _wrong_gradient(gap, numbers)
    worst = max(cases, key=lambda case: abs(case.reported - case.reference))
    return CheckResult(
        check="loss",
        status=Status.PASS,
        reason="loss.ok",
        claim=say(
            "the reported loss is the mean cross-entropy in {count} batches "
            "({first} nats in the first, with noise on the weights)",
            count=len(cases),
            first=cases[0].reported,
        ),
        measured=say("worst difference {gap}", gap=abs(worst.reported - worst.reference)),
        expected=say("at most {tolerance}", tolerance=worst.tolerance),
        numbers=numbers,
    )


def _wrong_gradient(gap: float, numbers: dict[str, object]) -> CheckResult:
    detached = gap == math.inf
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.detached" if detached else "loss.wrong_gradient",
        claim=say("the loss is a number without a graph: no gradient can flow from it")
        if detached
        else say("the loss is the right number, but its gradient is not"),
        measured=say("a loss that needs no gradient, of logits that do")
        if detached
        else say("gradient at the logits off by {gap} of its size", gap=gap),
        expected=say("the gradient of the cross-entropy, within {limit}", limit=GRADIENT_GAP_MAX),
        causes=(say("the loss went through .item(), .detach(), float() or no_grad"),)
        if detached
        else (say("a part of the loss is detached, or a hook changes its gradient"),),
        next_step=say("return the tensor that cross_entropy gave; take .item() for printing"),
        numbers=numbers,
    )


def measure_gradient_gap(probe: Probe) -> float | None:
    """Return |dL/dlogits - what it should be| / |what it should be|; None when not on the path.

    Infinite when the logits carry a graph and the loss does not.
    """
    batch = _batch(probe, 3, min(7, probe.probe_length), "loss gradient")
    got, logits, lost = _gradient_at_logits(probe, batch)
    if lost:
        return math.inf
    if got is None:
        return None
    leaf = logits.clone().requires_grad_()
    gaps = []
    for loss in _accepted_losses(probe, leaf, batch.targets):
        wanted = torch.autograd.grad(loss, leaf, retain_graph=True)[0]
        gaps.append(float((got - wanted).norm() / wanted.norm()))
    return min(gaps)


def measure_position_weights(probe: Probe) -> Tensor | None:
    """Return (B, T): the largest gradient at each position's logits; 0 where nothing is scored."""
    batch = _batch(probe, 4, probe.probe_length, "loss weights")
    got, _, _ = _gradient_at_logits(probe, batch)
    if got is None:
        return None
    return got.abs().amax(2)[:, : got.shape[1] - (probe.pipeline.labels == "same")]


def _gradient_at_logits(probe: Probe, batch: Batch) -> tuple[Tensor | None, Tensor, bool]:
    """Return the gradient (B, T, W) or None, the logits, and whether the graph was lost."""
    with probe.model(exact=True, jitter=JITTER_STD) as model, probe.seeded("loss gradient"):
        output = probe.adapter.call(model, batch.inputs, batch.targets)
        logits = output.logits.detach()
        if output.loss is None or not output.logits.requires_grad:
            return None, logits, False
        if not output.loss.requires_grad:
            return None, logits, True
        (got,) = torch.autograd.grad(output.loss, output.logits, allow_unused=True)
    return (got if output.layout == "BTV" else None), logits, False


def _accepted_losses(probe: Probe, logits: Tensor, targets: Tensor) -> Iterator[Tensor]:
    """Every healthy reading: with or without the padded columns, with or without padding."""
    if probe.pipeline.labels == "same":
        logits, targets = logits[:, :-1], targets[:, 1:]
    pad_id = probe.pipeline.pad_id
    unpadded = targets if pad_id is None else targets.masked_fill(targets == pad_id, -100)
    for width in {logits.shape[-1], min(logits.shape[-1], probe.vocab_size)}:
        for scored in (targets, unpadded):
            narrow = logits[..., :width].flatten(0, 1)
            yield functional.cross_entropy(narrow, scored.flatten())


def _returns_plain_number(probe: Probe) -> bool:
    """Whether a float stands where a loss tensor belongs."""
    adapter, inputs = probe.adapter, probe.tokens(2, min(4, probe.probe_length))
    with probe.model() as model, probe.seeded("loss"), torch.no_grad():
        if adapter.forward is not None:
            raw: object = adapter.forward(model, inputs, inputs.clone())
        elif adapter.target_name is not None:
            raw = model(inputs, **{adapter.target_name: inputs.clone()})
        else:
            return False
    parts = raw.values() if isinstance(raw, Mapping) else raw
    return isinstance(parts, Iterable) and any(isinstance(part, float) for part in parts)


def _stray_target(probe: Probe) -> CheckResult | None:
    """A target that is neither a token nor ignore_index: data and loss mark ignored ones apart."""
    if probe.batch.source == "synthetic":
        return None
    targets, ignore = probe.batch.targets, probe.pipeline.ignore_index
    stray = (targets != ignore) & (targets < 0)
    if not bool(stray.any()):
        return None
    row, position = (int(i) for i in torch.nonzero(stray)[0])
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.unknown_mark",
        claim=say(
            "{count} targets of the batch are {value}, which is no token and not the ignore_index "
            "{ignore}",
            count=int(stray.sum()),
            value=int(targets[row, position]),
            ignore=ignore,
        ),
        measured=say("target {value}", value=int(targets[row, position])),
        expected=say("a token id, or {ignore}", ignore=ignore),
        where=say("first is row {row}, position {position}", row=row, position=position),
        causes=(say("the loader and the loss mark ignored targets with different numbers"),),
        next_step=say(
            "use one mark in both; Pipeline(ignore_index={value}) if the loss knows this one",
            value=int(targets[row, position]),
        ),
        numbers={"stray": int(stray.sum())},
    )


class _NotScalarError(Exception):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def _no_finite_logits() -> CheckResult:
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.logits_not_finite",
        claim=say("the logits hold NaN or infinity, so that no loss can be right"),
        measured=say("no finite logits on random tokens"),
        expected=say("finite logits"),
        next_step=say("mend what forward_hooks reports first"),
    )


def _not_scalar(shape: tuple[int, ...]) -> CheckResult:
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.not_scalar",
        claim=say("the loss is a tensor of shape {shape}, not one number", shape=shape),
        measured=say("shape {shape}", shape=shape),
        expected=say("shape ()"),
        causes=(say('reduction="none" without a mean after it'),),
        next_step=say("take the mean over the scored targets"),
        numbers={"shape": list(shape)},
    )


def _not_finite(case: Case, numbers: dict[str, object]) -> CheckResult:
    """Logits are finite, the exact loss too, and the reported one is not."""
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.not_finite",
        claim=say(
            "the loss is {reported} on {name}, where cross-entropy is {reference}",
            reported=case.reported,
            name=case.name,
            reference=case.reference,
        ),
        measured=say("{reported}", reported=case.reported),
        expected=say("{reference}", reference=case.reference),
        where=say("largest logit {size}", size=float(case.logits.abs().max())),
        causes=(say("exp or log without subtracting the largest logit: log(softmax(x)) overflows"),)
        if case.name == LARGE
        else (),
        next_step=say("use cross_entropy on logits, or log_softmax"),
        numbers=numbers,
    )


def _numbers(cases: Sequence[Case]) -> dict[str, object]:
    return {
        "cases": [
            {
                "batch": case.name,
                "reported": case.reported,
                "cross_entropy": case.reference,
                "scored": int(case.nll.numel()),
            }
            for case in cases
        ],
        "tolerance": TOLERANCE,
    }
