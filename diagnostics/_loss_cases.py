"""The cases that `loss` looks at: logits and losses on batches that tell formulas apart.

Shapes: B batch, T time, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._id_runs import runs_as_in_text
from diagnostics._loss_readings import Case
from diagnostics._probe import JITTER_STD, Batch, MissingPartError, Probe

EVERY_ID_MAX = 512  # vocabularies up to this size have each id among the targets
SHARP = 10.0  # factor on the weights: logits far from uniform, losses far above ln V
LARGE, IGNORED, OWN = "large weights", "ignored targets", "your batch"  # names of the cases


class NotScalarError(Exception):
    """The model reports a loss of more than one number."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape


def measure_cases(probe: Probe) -> list[Case]:
    """Call the model on every kind of batch; return its logits and reported losses."""
    plain, other = _plain_batches(probe)
    cases = measure_ordinary(probe, train=False)
    with probe.model(exact=True, jitter=JITTER_STD, scale=SHARP) as model:
        cases += [measure_case(probe, model, LARGE, batch) for batch in (plain, other)]
    # in the model's own number type, where exp overflows at 88 and not at 709
    with probe.model(jitter=JITTER_STD, scale=SHARP**2) as model:
        cases.append(measure_case(probe, model, LARGE, other))
    # minus infinity is how the extra columns of a padded vocabulary are shut
    return [case for case in cases if bool((case.logits < math.inf).all())]


def _plain_batches(probe: Probe) -> tuple[Batch, Batch]:
    """Two batches whose B, T and V all differ, so that no axis passes for another."""
    T, V = probe.probe_length, probe.vocab_size
    B = max(3, -(-V // T)) if V <= EVERY_ID_MAX else 3
    return _batch(probe, B, T, "loss"), _batch(probe, B + 2, max(2, T - 3), "loss, other")


def measure_ordinary(probe: Probe, *, train: bool) -> list[Case]:
    """Random tokens, some of them ignored, and the own batch, at ordinary weights."""
    plain, other = _plain_batches(probe)
    with probe.model(train=train, exact=True, jitter=JITTER_STD) as model:
        cases = [measure_case(probe, model, "random tokens", batch) for batch in (plain, other)]
        # a loss that takes no ignore_index raises; it matters only if the own batch holds one
        with contextlib.suppress(RuntimeError, IndexError, ValueError):
            cases.append(measure_case(probe, model, IGNORED, _with_ignored(plain, probe)))
    if probe.batch.source != "synthetic":
        exact = probe.batch_runs_in_float64
        with probe.model(train=train, exact=exact, jitter=JITTER_STD) as model:
            cases.append(measure_case(probe, model, OWN, probe.batch))
    return cases


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


def measure_case(probe: Probe, model: nn.Module, name: str, batch: Batch) -> Case:
    with probe.seeded("loss"), torch.no_grad():
        output = probe.adapter.call(model, batch.inputs, batch.targets, batch.attention_mask)
    if output.loss is None or output.logits.shape[1] != batch.inputs.shape[1]:
        raise MissingPartError("forward", why="the model gives logits of the last position only")
    if output.loss.numel() != 1:
        raise NotScalarError(tuple(output.loss.shape))
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
    elif pad_id is None or runs_as_in_text(batch.inputs, probe.pipeline.train_ids, pad_id):
        return None  # no padding, or an id of the text that only looks like it
    else:
        is_pad = batch.inputs == pad_id
    if probe.pipeline.labels == "same":  # target t is predicted from position t - 1
        before = torch.zeros_like(is_pad)
        before[:, 1:] = is_pad[:, :-1]
        return before & is_pad
    if pad_id is not None:
        return is_pad & (batch.targets == pad_id)
    return is_pad


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


def returns_plain_number(probe: Probe) -> bool:
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
