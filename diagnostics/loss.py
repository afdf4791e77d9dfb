"""Loss: the number the model reports is the cross-entropy of its own logits with its targets.

Why it matters
    Every curve, every comparison and every gradient comes from this one number. A loss with a
    second softmax, a second shift or a wrong denominator still falls, and still looks like one.

How it is measured
    Cross-entropy is recomputed in float64 from the logits of the same call and compared with the
    reported loss: on random tokens, on weights times 10 (where a loss is large enough for clamps
    and overflows to show), with some targets set to ignore_index, and on the pipeline's own
    batch. On a mismatch about thirty usual formulas are tried; one is named only if it gives the
    reported number in every case. A branch for train mode is read in the same way. The gradient of
    the loss with respect to the logits is compared with that of the recomputed one. Where no
    formula fits, targets are exchanged: all of them, for what is added stays, and then one by one
    in a batch that differs, for those that the loss does not read. The marks of the own batch are
    looked at first: targets that are no token, tokens and ends of texts that are never scored (in
    256 rows, where get_batch gives more of them), rows without a scored target, answers that are
    scored from their second token on, and last tokens that are read and never scored.

What it cannot see
    Whether the batch itself is right: that is for `shift` and `batches`. Which tokens are a prompt:
    where it is not masked at all, nothing tells it from an answer; and an end of text is known only
    from the tokenizer, or by an attention mask over pads. Objectives with heads of their own, such
    as multi-token prediction, do not follow from the logits: declare them with
    allow=("loss.mismatch",). Single targets that a loss in 16 bits does not read. The gradient,
    where the model returns other logits than those its loss was computed from. Terms that are added
    in train mode only, which many recipes want, and formulas there that fit nothing. Padding with
    an id that the data hold as text, in runs as short as theirs.

Break it
    python -m exercises.break_loss
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor, nn

from diagnostics._adapter import UnreadableOutputError
from diagnostics._loss_cases import (
    IGNORED,
    LARGE,
    OWN,
    NotScalarError,
    measure_cases,
    measure_gradient_gap,
    measure_ordinary,
    returns_plain_number,
)
from diagnostics._loss_exchange import read_by_other_targets
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
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._target_marks import judge_marks
from diagnostics._text import Text, say

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
    """Judge the marks of the batch, then its loss; a warning counts if nothing worse is found."""
    probe.require_choice()
    odd = list(judge_marks(probe))
    wrong = next((finding for finding in odd if finding.failed), None)
    if wrong is not None:
        return wrong
    result = _judge_loss(probe)
    return odd[0] if odd and result.status is Status.PASS else result


def _judge_loss(probe: Probe) -> CheckResult:
    """Recompute the loss of four kinds of batches, and name the formula that fits."""
    if not probe.adapter.has_loss:
        if returns_plain_number(probe):
            return _wrong_gradient(math.inf, {})
        raise MissingPartError("forward", why="the model returns logits but no loss of its own")
    try:
        cases = measure_cases(probe)
    except NotScalarError as error:
        return _not_scalar(error.shape)
    numbers = _numbers(cases)
    if not cases:
        return _no_finite_logits()
    readings, cases = _read(probe, cases, explain=partial(_explain, probe))
    if readings is None:
        in_training = _judge_training(probe, numbers)
        return _judge_gradient(probe, cases, numbers) if in_training is None else in_training
    not_finite = next((c for c in cases if not math.isfinite(c.reported)), None)
    if not readings and not_finite is not None:
        return _not_finite(not_finite, numbers)
    return _judge(readings, cases, numbers, probe)


def _read(
    probe: Probe, cases: list[Case], *, explain: Callable[[list[Case]], list[Reading]]
) -> tuple[list[Reading] | None, list[Case]]:
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
    return explain(cases), cases


def _explain(probe: Probe, cases: list[Case]) -> list[Reading]:
    # a wrong formula may treat ignored targets in a way of its own, or overflow
    whole = [case for case in cases if case.name != IGNORED]
    finite = [case for case in whole if math.isfinite(case.reported)]
    for some in (cases, whole, finite):
        found = [] if is_healthy(some) else find_readings(some)
        if found:
            return found
    return read_by_other_targets(probe, cases)


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
            "{place}{count} of {total} batches differ; this one by {gap} nats",
            place=f"{reading.place}; " if reading.place else "",
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


def _judge_training(probe: Probe, numbers: dict[str, object]) -> CheckResult | None:
    """Right in eval mode: does a branch for training score something else?

    Only a formula that fits and that no design wants is reported: smoothing, auxiliary terms and
    further heads that act in training only are the best practice.
    """
    try:
        cases = measure_ordinary(probe, train=True)
    except (MissingPartError, UnreadableOutputError, NotScalarError):
        return None  # a loss that never makes its logits; other checks judge the rest
    cases = [case for case in cases if bool(case.logits.isfinite().all())]
    if not cases or all(math.isnan(case.reported) for case in cases):
        return None
    whole = [case for case in cases if case.name != IGNORED]
    readings, cases = _read(probe, cases, explain=find_readings)
    if readings == [] and is_healthy(whole):
        readings = [Reading("loss.ignored_counted")]
    if not readings or VERDICTS.get(readings[0].reason, MISMATCH).status is Status.WARN:
        return None
    result = _judge(readings, cases, numbers, probe)
    return replace(
        result,
        claim=say("in train mode, {claim}", claim=result.claim),
        where=say("{where}; in eval mode none does", where=result.where),
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
    detached, nothing = gap == math.inf, abs(gap - 1) < 1e-9
    return CheckResult(
        check="loss",
        status=Status.FAIL,
        reason="loss.detached" if detached else "loss.wrong_gradient",
        claim=say("the loss is a number without a graph: no gradient can flow from it")
        if detached
        else say("the loss is the right number, and its gradient at the logits is 0")
        if nothing
        else say("the loss is the right number, but its gradient is not"),
        measured=say("a loss that needs no gradient, of logits that do")
        if detached
        else say("gradient at the logits off by {gap} of its size", gap=gap),
        expected=say("the gradient of the cross-entropy, within {limit}", limit=GRADIENT_GAP_MAX),
        causes=(say("the loss went through .item(), .detach(), float() or no_grad"),)
        if detached or nothing
        else (say("a part of the loss is detached, or a hook changes its gradient"),),
        next_step=say("return the tensor that cross_entropy gave; take .item() for printing")
        if detached or nothing
        else say(
            "compare with the gradient of cross_entropy on the logits; scaled on purpose: "
            'allow=("loss.wrong_gradient",)'
        ),
        numbers=numbers,
    )


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
