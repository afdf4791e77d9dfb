"""Causes of metrics that get logits, and of arrays that do not combine."""

from __future__ import annotations

import re

from diagnostics._text import say
from diagnostics.help.traceback._rules import Clues, Explanation, Rule, quoted, rule

_PREDICT = "give the metric class numbers: logits.argmax(-1)"


def _metric(clues: Clues) -> Explanation | None:
    """The names that sklearn has for scores where labels are wanted (P4)."""
    match = re.search(
        r"Classification metrics can't handle a mix of ([\w-]+) and ([\w-]+) targets", clues.message
    )
    if match is None:
        return None
    kinds = {match[1], match[2]}
    if (
        kinds <= {"binary", "multiclass", "multilabel-indicator"}
        and "multilabel-indicator" in kinds
    ):
        cause = say(
            "one of both is a table with a column for each class, the other one class number a row"
        )
    elif match[2].startswith("continuous") and not match[1].startswith("continuous"):
        cause = say(
            "the metric got scores ({kind}) where it wants class numbers: logits or "
            "probabilities, not predictions",
            kind=match[2],
        )
    elif match[2] == "unknown":
        cause = say(
            "the predictions have a shape that labels cannot have: logits [..., V] "
            "beside labels [...] give this"
        )
    else:
        return None
    return Explanation(
        name="metric.logits", cause=cause, evidence=quoted(match.group()), next_step=say(_PREDICT)
    )


def _broadcast_metric(clues: Clues) -> Explanation | None:
    """NumPy's form: predictions [.., V] compared with labels [..]."""
    match = re.search(
        r"operands could not be broadcast together with shapes (\(\d[\d,]*\)) ?(\(\d[\d,]*\))",
        clues.message,
    )
    if match is None:
        return None
    a, b = (tuple(int(n[:12]) for n in re.findall(r"\d+", text)) for text in match.groups())
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    code = clues.own.code if clues.own else ""
    if longer[:-1] == shorter and re.search(r"logits|pred|label|target", code):
        return Explanation(
            name="metric.logits",
            cause=say(
                "{a} is compared with {b}: the longer one has a last dimension of {v} "
                "classes, logits rather than predictions",
                a=str(a),
                b=str(b),
                v=longer[-1],
            ),
            evidence=quoted(match.group()),
            next_step=say(_PREDICT),
        )
    return Explanation(
        name="shape.numpy",
        cause=say(
            "arrays of shapes {a} and {b} cannot be combined entry by entry", a=str(a), b=str(b)
        ),
        evidence=quoted(match.group()),
        next_step=say("print the shapes of the operands on the line before the one above"),
    )


RULES: tuple[Rule, ...] = (
    _metric,
    _broadcast_metric,
    rule(
        "metric.lengths",
        "ValueError",
        r"Found input variables with inconsistent numbers of samples: \[(?P<a>\d+), (?P<b>\d+)",
        "the metric got {a} and {b} entries: predictions and labels are not of the "
        "same rows, or one of them is not flattened",
        "print the shapes of both on the line before the one above",
    ),
)
