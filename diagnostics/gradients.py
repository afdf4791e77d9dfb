"""Gradients: every trainable parameter gets a finite gradient, not zero, and the right one.

Why it matters
    A parameter without a gradient stays at its random start and the loss falls all the same,
    only less far. Nothing complains about a detached branch, a layer kept in a plain list, or a
    hand-written backward that is right for most tokens.

How it is measured
    One backward pass on a copy, in train mode. Leaves of the loss's graph that are not parameters
    of the model are found by walking the graph. A parameter without gradient (None), or with one
    that is zero everywhere, is looked at again with jittered weights and other random batches, so
    that zero-initialised heads and unchosen experts do not count; and once more with only those
    weights moved that have a gradient, because two zero factors never wake one another. The small
    gradients of matrices are computed again in float64: one that shrinks there by five orders of
    magnitude or more, under several weights and batches, is rounding and no gradient. Last, the
    directional derivative of each parameter is compared, in float64, with a central finite
    difference.

What it cannot see
    Gradients that the training loop changes afterwards (clipping, zero_grad): that is for
    `training_step`. Values of gradients where the model cannot run in float64. Parameters of a
    layer that is not registered and runs under no_grad or inside a reentrant checkpoint. A wrong
    backward in a model that also rounds what needs a gradient: that is taken for quantised
    training, a warning. Rounding in place of the gradient of a vector or a bias, as that of the
    keys has by mathematics, and in models that compute in float32 whatever they are given. Frozen
    parameters are counted, not judged.

Break it
    python -m exercises.break_gradients
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from diagnostics._gradient_trial import (
    TRUTH_GAP_MAX,
    Gradients,
    find_noise,
    find_stuck,
    find_unregistered,
    measure_gradients,
    measure_truth,
    rounds,
    second_look,
)
from diagnostics._gradient_verdicts import (
    absent_gradients,
    all_frozen,
    by_design,
    has_trained_sibling,
    no_graph,
    not_finite,
    only_noise,
    rounded,
    straight_through,
    stuck_at_zero,
    unregistered,
    unused_expert,
    wrong_value,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._result import CheckResult


def check_gradients(
    model: nn.Module,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check the gradient of every trainable parameter of a loss.

    inputs, targets: (B, T) int64; None: random tokens.    parts: other fields of Pipeline, such
    as forward. A model without a loss of its own is given the cross-entropy of its logits.
    """
    if inputs is not None and targets is not None:
        parts["batch"] = (inputs, targets)
    return run(Probe(Pipeline(model, vocab_size=vocab_size, **parts)))  # type: ignore[arg-type]


def run(probe: Probe) -> CheckResult:
    """Look at the graph, then at missing, bad and zero gradients, then at their values."""
    probe.require_choice()
    with probe.model(train=True) as model:
        if not any(p.requires_grad for p in model.parameters()):
            return all_frozen(len(list(model.parameters())))
        with probe.seeded("gradients"):
            _, loss = probe.loss(model)
        if not loss.requires_grad:
            return no_graph()
        strangers = find_unregistered(model, loss)
        outside = unregistered(probe, model, strangers) if strangers else None
        if outside is not None:
            return outside
        gradients = measure_gradients(model, loss)
    numbers = _numbers(gradients)
    if not math.isfinite(float(gradients.loss)) or gradients.not_finite:
        return not_finite(gradients, numbers)
    absent = second_look(probe, {*gradients.missing, *gradients.zero})
    numbers["zero_at_first"] = len(gradients.zero) + len(gradients.missing) - len(absent)
    unchosen = {name for name in absent if "expert" in name}
    if absent and absent == unchosen and has_trained_sibling(gradients, unchosen):
        return unused_expert(sorted(unchosen), numbers)
    if absent:
        return absent_gradients(probe, gradients, absent, numbers)
    stuck = find_stuck(probe, {name for name in gradients.zero if "expert" not in name})
    if stuck:
        return stuck_at_zero(stuck, numbers)
    noise = find_noise(probe, gradients.norms)
    if noise:
        return only_noise(noise, gradients, numbers)
    gaps = measure_truth(probe)
    numbers["truth_gap"] = None if gaps is None else max(gaps.values(), default=0.0)
    wrong = {name: gap for name, gap in (gaps or {}).items() if not gap <= TRUTH_GAP_MAX}
    flat = sorted(name for name, gap in wrong.items() if gap == math.inf)
    if len(wrong) > len(flat):
        if rounds(probe):
            return rounded(wrong, numbers)
        return wrong_value(wrong, len(gaps or {}), numbers)
    if flat:
        return straight_through(flat, numbers)
    return by_design(probe, gradients, numbers)


def _numbers(gradients: Gradients) -> dict[str, Any]:
    return {
        "gradient_norm": gradients.norm,
        "missing": list(gradients.missing),
        "zero": list(gradients.zero),
        "frozen": len(gradients.frozen),
        "norms": dict(gradients.norms),
    }
