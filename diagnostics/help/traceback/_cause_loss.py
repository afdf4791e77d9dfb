"""Causes of logits and targets that do not meet in cross-entropy."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, numbers, quoted, rule

_FLATTEN = "cross_entropy(logits.flatten(0, 1), targets.flatten())"
_PRINT = "print(logits.shape, targets.shape) on the line before the one above"
_FLATTENED = re.compile(r"\.(?:view|reshape)\(-1|\.flatten\(")
_MOVED = re.compile(
    r"\.(?:transpose|permute|mT|movedim|swapaxes|swapdims|transpose_)\b|\brearrange\("
)


def _batch_size(clues: Clues) -> Explanation | None:
    match = re.search(
        r"Expected input batch_size \((\d{1,12})\) to match target batch_size \((\d{1,12})\)",
        clues.message,
    )
    if match is None:
        return None
    logits, targets = int(match[1]), int(match[2])
    cause = say(
        "the loss got {logits:row|rows} of logits and {targets:target|targets}",
        logits=logits,
        targets=targets,
    )
    code = clues.own.code if clues.own else ""
    why, step = _why_rows_differ(logits, targets, code)
    return Explanation(
        name="shape.loss_rows", cause=cause + why, evidence=quoted(match.group()), next_step=step
    )


def _why_rows_differ(logits: int, targets: int, code: str) -> tuple[str, str]:
    """Return what the two numbers and the line point to, and the step; nothing elsewhere."""
    if len(_FLATTENED.findall(code)) > 1:  # both are: the ratio is no count of positions
        return say(
            ", and both are flattened on that line: their sizes before differ, or a .view names "
            "another number of classes than the logits have"
        ), say(_PRINT)
    if logits and targets > logits and targets % logits == 0:
        return say(
            ", {times} times as many: this is so where the targets are flattened over batch and "
            "time and the logits are not, or are of the last position only",
            times=targets // logits,
        ), say(_FLATTEN)
    if targets and logits > targets and logits % targets == 0:
        return say(
            ", one for each {times} rows: this is so where the logits are flattened over batch "
            "and time and the targets are not",
            times=logits // targets,
        ), say(_FLATTEN)
    if _one_position_apart(logits, targets):
        rows = abs(logits - targets)
        return say(
            ": {rows} rows of {a} against {rows} rows of {b}, as where only one was shifted",
            rows=rows,
            a=logits // rows,
            b=targets // rows,
        ), say("shift both: cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())")
    return "", say(_PRINT)


def _one_position_apart(a: int, b: int) -> bool:
    rows = abs(a - b)
    return rows > 1 and a % rows == 0 and b % rows == 0


def _target_size(clues: Clues) -> Explanation | None:
    """The message holds the logits' last dimension, and not their second: V or T, as they came."""
    match = re.search(r"Expected target size (\[[\d, ]+\]), got (\[[\d, ]+\])", clues.message)
    if match is None:
        return None
    wanted, got = numbers(match[1]), numbers(match[2])
    if len(wanted) != 2 or len(got) != 2 or wanted[0] != got[0]:
        return None
    unmoved = say(
        "the logits came as (B, T, V) = ({b}, {t}, {v}), and cross_entropy takes "
        "the second dimension for the classes",
        b=wanted[0],
        t=got[1],
        v=wanted[1],
    )
    lengths = say(
        "logits of {a:position|positions} meet {b:target|targets} a row: one of them was cut or "
        "shifted, the other was not",
        a=wanted[1],
        b=got[1],
    )
    is_moved = bool(_MOVED.search(clues.own.code)) if clues.own else False
    is_near = abs(wanted[1] - got[1]) == 1  # a shift; or a vocabulary of 65 and a block of 64
    near = say(
        "the last dimension of the logits and the targets of a row differ by one ({a} and {b})",
        a=wanted[1],
        b=got[1],
    )
    if is_moved or is_near:
        return Explanation(
            name="shape.loss_length",
            cause=lengths if is_moved else near,
            others=() if is_moved else (unmoved, lengths),
            others_are="" if is_moved else say("the text does not say which of these it is"),
            evidence=quoted(match.group()),
            next_step=say(_PRINT),
        )
    return Explanation(
        name="shape.loss_classes",
        cause=unmoved,
        others=(lengths,),
        evidence=quoted(match.group()),
        next_step=say(_FLATTEN),
    )


RULES: tuple[Rule, ...] = (
    _batch_size,
    _target_size,
    rule(
        "shape.loss_targets",
        "RuntimeError",
        r"0D or 1D target tensor expected, multi-target not supported",
        "the logits are (N, V), and the targets have more than one dimension: they are not "
        "flattened, are another part of the batch, or are probabilities of another V",
        _FLATTEN,
    ),
)
