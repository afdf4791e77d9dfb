"""One batch by itself: shapes, types, devices, padding; and how `batches` words its verdicts.

Shapes: B batch, T time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say


def judge_one(
    inputs: Any,
    targets: Any,
    mask: Tensor | None,
    *,
    vocab_size: int | None,
    block_size: int | None,
    device: torch.device | None,
    ignore_index: int,
    pad_id: int | None,
) -> CheckResult | None:
    """Return the first fault of a batch, None for a healthy one."""
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        return _not_tensors(inputs, targets)
    shown = describe(inputs, targets, mask)
    if inputs.ndim != 2 or inputs.shape != targets.shape:
        return _wrong_shape(inputs, targets, shown)
    if inputs.numel() == 0:
        return fault(
            "batches.empty", say("the batch is empty"), shown, say("at least one row and token")
        )
    for name, tensor in (("inputs", inputs), ("targets", targets)):
        if tensor.dtype != torch.int64:
            return _wrong_dtype(name, tensor, shown)
    if mask is not None and mask.shape != inputs.shape:
        return fault(
            "batches.mask",
            say("the attention mask has another shape than the ids"),
            shown,
            say("{shape}", shape=tuple(inputs.shape)),
        )
    if inputs.device != targets.device:
        return wrong_device(Status.FAIL, "inputs", inputs.device, "targets", targets.device)
    if device is not None and inputs.device.type != device.type:
        return wrong_device(Status.FAIL, "batch", inputs.device, "model", device)
    T = inputs.shape[1]
    if block_size is not None and block_size < T:
        return fault(
            "batches.too_long",
            say("rows of {T} tokens do not fit a block of {block}", T=T, block=block_size),
            shown,
            say("T <= {block}", block=block_size),
            next_step=say("cut rows of block_size + 1 tokens: T inputs and one more target"),
        )
    return _judge_values(inputs, targets, mask, shown, vocab_size, ignore_index, pad_id)


def _judge_values(
    inputs: Tensor,
    targets: Tensor,
    mask: Tensor | None,
    shown: Text,
    vocab_size: int | None,
    ignore_index: int,
    pad_id: int | None,
) -> CheckResult | None:
    if vocab_size is not None:
        scored = targets[targets != ignore_index]
        for name, ids in (("inputs", inputs), ("targets", scored)):
            outside = (ids < 0) | (ids >= vocab_size)
            if bool(outside.any()):
                return fault(
                    "batches.ids",
                    say("{name} hold id {id}", name=name, id=int(ids[outside][0])),
                    say("{count} of {all} ids", count=int(outside.sum()), all=ids.numel()),
                    say(
                        "0 to {last}, or {ignore} in targets",
                        last=vocab_size - 1,
                        ignore=ignore_index,
                    ),
                )
    # Left padding moves the tokens themselves; right padding lies in their future.
    if pad_id is not None and mask is None:
        # a single one may be the end-of-text token that begins a document
        padded = (inputs[:, :2] == pad_id).all(1) & (inputs[:, -1] != pad_id)  # (B,)
        if bool(padded.any()):
            row = int(torch.nonzero(padded)[0])
            return fault(
                "batches.pads_unmasked",
                say(
                    "{count:row begins|rows begin} with padding, and no attention mask comes along",
                    count=int(padded.sum()),
                ),
                shown,
                say("a mask with 0 where inputs are the pad id {pad}", pad=pad_id),
                where=say("first is row {row}", row=row),
                causes=(say("the tokenizer's attention_mask is dropped by the collator"),),
                next_step=say("hand attention_mask on to the model, or pad on the right"),
            )
    return None


def _not_tensors(inputs: Any, targets: Any) -> CheckResult:
    kinds = [type(part).__name__ for part in (inputs, targets)]
    rows = [part for part in (inputs, targets) if isinstance(part, (list, tuple))]
    lengths = sorted({len(row) for part in rows for row in part if hasattr(row, "__len__")})
    ragged = len(lengths) > 1
    return fault(
        "batches.ragged" if ragged else "batches.not_tensors",
        say("rows have different lengths, so they cannot be one tensor")
        if ragged
        else say("the batch is not made of tensors"),
        say("lengths {lengths}", lengths=lengths)
        if ragged
        else say("inputs: {a}, targets: {b}", a=kinds[0], b=kinds[1]),
        say("two int64 tensors (B, T)"),
        next_step=say("pad each row to the longest, and set the padded targets to -100")
        if ragged
        else say("torch.tensor(rows), or torch.stack of equal rows"),
    )


def _wrong_shape(inputs: Tensor, targets: Tensor, shown: Text) -> CheckResult:
    causes: tuple[Text, ...] = ()
    if inputs.ndim == 1 and targets.ndim == 1:
        causes = (say("one example, not a batch: stack the rows to (B, T)"),)
    elif targets.ndim == 1 and targets.shape[0] == inputs.shape[0]:
        causes = (say("one label a row, as for classification: another column was taken"),)
    elif targets.numel() == inputs.numel():
        causes = (say("the targets were flattened before their time"),)
    elif inputs.ndim == targets.ndim == 2 and abs(inputs.shape[1] - targets.shape[1]) == 1:
        causes = (say("inputs and targets were cut with ends that differ by one"),)
    return fault(
        "batches.shape",
        say(
            "inputs {a} and targets {b} are not two equal shapes (B, T)",
            a=tuple(inputs.shape),
            b=tuple(targets.shape),
        ),
        shown,
        say("(B, T) for both"),
        causes=causes,
        next_step=say("print each key of the batch with its shape and dtype"),
    )


def _wrong_dtype(name: str, tensor: Tensor, shown: Text) -> CheckResult:
    kind = str(tensor.dtype).removeprefix("torch.")
    return fault(
        "batches.dtype",
        say("{name} are {kind}, not int64", name=name, kind=kind),
        shown,
        say("int64: an embedding looks ids up, and cross_entropy takes no other whole type"),
        causes=()
        if tensor.dtype.is_floating_point
        else (say("ids are stored in a small type and not converted after slicing"),),
        next_step=say("{name} = {name}.long()", name=name),
    )


def wrong_device(
    status: Status, name: str, device: torch.device, other: str, wanted: torch.device
) -> CheckResult:
    return verdict(
        status,
        "batches.device",
        say(
            "{name} and {other} are on two devices, {device} and {wanted}",
            name=name,
            device=device,
            other=other,
            wanted=wanted,
        ),
        measured=say("{device}", device=device),
        expected=say("{wanted}", wanted=wanted),
        next_step=say("inputs, targets = inputs.to(device), targets.to(device)"),
    )


def describe(inputs: Tensor, targets: Tensor, mask: Tensor | None) -> Text:
    def show(tensor: Tensor) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"

    if mask is None:
        return say("inputs {a}, targets {b}", a=show(inputs), b=show(targets))
    return say(
        "inputs {a}, targets {b}, attention_mask {c}",
        a=show(inputs),
        b=show(targets),
        c=show(mask),
    )


def fault(
    reason: str,
    claim: Text,
    measured: Text,
    expected: Text,
    *,
    where: str = "",
    causes: tuple[Text, ...] = (),
    next_step: str = "",
    numbers: dict[str, Any] | None = None,
) -> CheckResult:
    return verdict(
        Status.FAIL,
        reason,
        claim,
        measured=measured,
        expected=expected,
        where=where,
        causes=causes,
        next_step=next_step or say("print each key of the batch with its shape and dtype"),
        numbers=numbers,
    )
