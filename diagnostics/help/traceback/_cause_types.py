"""Causes of number types that do not meet: Long and Int, Float and Half."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule


def _cast(clues: Clues) -> Explanation | None:
    match = re.search(
        r"result type (\w+) can't be cast to the desired output type (\w+)", clues.message
    )
    if match is None:
        return None
    if clues.has_call("binary_cross_entropy", "binary_cross_entropy_with_logits"):
        cause = say(
            "the labels are {kind}, and this loss wants floating point numbers", kind=match[2]
        )
        step = say("targets = targets.float()")
    else:
        cause = say(
            "the result is {a} and was to be stored in a tensor of {b}", a=match[1], b=match[2]
        )
        step = say("write a = a + b in the place of a += b, or convert the tensor first")
    return Explanation(
        name="type.cast", cause=cause, evidence=quoted(match.group()), next_step=step
    )


def _targets(clues: Clues) -> Explanation | None:
    match = re.search(
        r"expected target dtype to be Long or Byte, but got (\w+)"
        r"|expected scalar type Long but found (\w+)|\"nll_loss\w*\" not implemented for '(\w+)'",
        clues.message,
    )
    if match is None or "RuntimeError" not in clues.kinds:
        return None
    in_loss = clues.has_call("cross_entropy", "nll_loss") or not clues.trace.frames
    if match[2] and not in_loss:
        return None  # products say the same
    return Explanation(
        name="type.targets",
        cause=say(
            "class numbers must be int64, and these are {got}", got=match[match.lastindex or 1]
        ),
        evidence=quoted(match.group()),
        next_step=say("targets = targets.long()"),
    )


def _ids(clues: Clues) -> Explanation | None:
    match = re.search(
        r"Expected tensor for argument #1 'indices' to have one of the following "
        r"scalar types: Long, Int; but got ([\w.]+)",
        clues.message,
    )
    if match is None or "RuntimeError" not in clues.kinds:
        return None
    if re.search(r"Float|Double|Half", match[1]):
        why = say("a division, a mean or a loaded array made them float")
    else:
        why = say(
            "an embedding takes int64 and int32, and a saved array often holds a smaller type"
        )
    return Explanation(
        name="type.ids",
        cause=say("the ids of an embedding came as {got}: {why}", got=match[1], why=why),
        evidence=quoted(match.group()),
        next_step=say("ids = ids.long()"),
    )


RULES: tuple[Rule, ...] = (
    _targets,
    _ids,
    rule(
        "type.attention",
        "RuntimeError",
        r"Expected query, key, and value to have the same dtype, but got query\.dtype: "
        r"(?P<q>[\w:]+) key\.dtype: (?P<k>[\w:]+) and value\.dtype: (?P<v>[\w:]+)",
        "attention takes one number type, and query, key and value are {q}, {k} and {v}",
        "convert two of them: k, v = k.to(q.dtype), v.to(q.dtype)",
    ),
    rule(
        "type.kernel",
        "RuntimeError NotImplementedError",
        r"\"(?P<kernel>\w+)\" not implemented for '(?P<got>Long|Int|Short|Byte|Bool)'",
        "{got} numbers came into an operation that works on floating point numbers only "
        "({kernel}): token ids or targets in the place of logits look like this",
        "print the .dtype of the operands on the line before the one above",
    ),
    rule(
        "type.mixed",
        "RuntimeError",
        r"mat1 and mat2 must have the same dtype, but got (?P<a>\w+) and (?P<b>\w+)"
        r"|expected (?:m1 and m2|mat1 and mat2) to have the same dtype, but got: "
        r"(?P<c>[\w ]+) != (?P<d>[\w ]+)",
        "a product of {a}{c} by {b}{d} numbers; in a linear layer the first is the input, the "
        "second the weight",
        "convert the input: x = x.to(next(model.parameters()).dtype)",
    ),
    rule(
        "type.scalar",
        "RuntimeError",
        r"expected scalar type (?P<want>\w+) but found (?P<got>\w+)",
        "one operation got {want} and {got} numbers, and takes one type: a part of the model or of "
        "the data was not converted as the rest was, or ids were not embedded",
        "print the .dtype of the operands on the line before the one above",
    ),
    rule(
        "type.input_weight",
        "RuntimeError",
        r"Input type \((?P<a>[\w.]+)\) and (?:weight|bias) type \((?P<b>[\w.]+)\) "
        r"should be the same",
        "the input is {a} and the layer {b}",
        "convert the input: x = x.to(next(model.parameters()).dtype)",
    ),
    rule(
        "type.same",
        "RuntimeError",
        r"self \((?P<a>\w+)\) and source \((?P<b>\w+)\) must have the same scalar "
        r"type|Index put requires the source and destination dtypes match, got "
        r"(?P<c>\w+) for the destination and (?P<d>\w+) for the source",
        "{a}{c} numbers were to take in {b}{d} numbers",
        "convert what is written: source.to(target.dtype)",
    ),
    _cast,
    rule(
        "type.mask",
        "RuntimeError",
        r"masked_fill_? only supports boolean masks, but got mask with dtype (?P<got>\w+)",
        "the mask is {got}, and masked_fill takes True and False only",
        "compare it first: mask == 0, or mask.bool()",
    ),
    rule(
        "type.float_gradient",
        "RuntimeError",
        r"Only Tensors of floating point and complex dtype can require gradients",
        "a gradient was asked for whole numbers, such as token ids",
        "ask for gradients of parameters or embedded vectors, not of ids",
    ),
)
