"""What matters most about two reports, in one sentence."""

from __future__ import annotations

from diagnostics._result import Status
from diagnostics._text import Text, say
from diagnostics.compare._comparison import Comparison
from diagnostics.compare._rows import headline_pair
from diagnostics.compare._verdicts import ABSENT, Change, Kind

_NAMES_MAX = 3
_BEFORE = {
    Status.PASS: "passed",
    Status.WARN: "warned",
    Status.FAIL: "failed",
    Status.ERROR: "raised",
    Status.SKIP: "was not measured",
    ABSENT: "was not asked for",
}


def headline(comparison: Comparison) -> Text:
    """Return the one sentence that stands on top; bad news first."""
    c = comparison
    if c.identical:
        told = say("the two reports are identical: {n:check|checks}, every number alike", n=c.same)
        first = c.b.first_failure
        return told if first is None else say("{told}; {x} fails in both", told=told, x=first)
    if c.worse:
        return _worse(c.worse)
    if c.verdicts:
        return _changed(c)
    return _same_verdicts(c)


def _worse(worse: tuple[Change, ...]) -> Text:
    first = worse[0]  # the worst kind, and no consequence where there is a cause
    alike = [change for change in worse if change.kind is first.kind]
    if first.kind is Kind.UNMEASURED:
        return say(
            "B measures less: {names} measured something in A and nothing in B", names=_named(alike)
        )
    told = say(
        "B is worse: {check} {now}, and {before} in A: {claim}",
        check=first.check,
        now=_NOW[Status(first.b.status)],
        before=_BEFORE[first.a.status],
        claim=first.b.claim,
    )
    if first.b.consequence_of is not None:
        told = say(
            "{told} (likely a consequence of {upstream})",
            told=told,
            upstream=first.b.consequence_of,
        )
    if len(worse) == 1:
        return told
    return say("{told}; {n:more verdict is|more verdicts are} worse", told=told, n=len(worse) - 1)


def _changed(c: Comparison) -> Text:
    """Return the sentence where verdicts changed and none is worse."""
    first = c.verdicts[0]
    failing = c.b.counts.get(Status.FAIL, 0) + c.b.counts.get(Status.ERROR, 0)
    if first.kind is Kind.OTHERWISE:
        return say(
            "no verdict is worse; {check} fails otherwise than before: {a} -> {b}",
            check=first.check,
            a=first.a.reason,
            b=first.b.reason,
        )
    better = [change for change in c.verdicts if change.kind is Kind.BETTER]
    if better:
        return say(
            "B is better: {names} no longer {word}; {failing} in B",
            names=_named(better),
            word="fails" if len(better) == 1 else "fail or warn",
            failing="nothing fails"
            if not failing
            else say("{n:check fails|checks fail}", n=failing),
        )
    return say(
        "no verdict is worse; {n:verdict|verdicts} changed otherwise: {names}",
        n=len(c.verdicts),
        names=_named(list(c.verdicts)),
    )


def _same_verdicts(c: Comparison) -> Text:
    real = [check for check in c.moved if check.real]
    if real and not c.facts.same_seed:
        return say(
            "no verdict changed; the seeds differ, and with them numbers of {n:check|checks}",
            n=len(real),
        )
    if real:
        return say(
            "no verdict changed; numbers of {n:check|checks} moved, most in {check}: {worst}",
            n=len(real),
            check=real[0].check,
            worst=headline_pair(real[0].real[0]),
        )
    if any(check.groups for check in c.moved):
        return say("no verdict changed, and numbers differ by no more than rounding")
    rest = [
        *(["the seed"] if not c.facts.same_seed else []),
        *c.facts.subjects.named,
        *(name.replace("_", " ") for name in c.facts.subjects.options),
        *(name.replace("_", " ") for name in (*c.facts.environment, *c.facts.inputs)),
        *(["what is recorded"] if c.moved else []),
        *(["the version of the format"] if c.a.schema_version != c.b.schema_version else []),
    ]
    return say(
        "no verdict changed, and no number that both record; what differs: {rest}",
        rest=", ".join(rest) or "words",
    )


def _named(changes: list[Change]) -> str:
    names = [change.check for change in changes]
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return ", ".join(names[:_NAMES_MAX]) + more


_NOW = {Status.FAIL: "fails", Status.ERROR: "raises", Status.WARN: "warns"}
