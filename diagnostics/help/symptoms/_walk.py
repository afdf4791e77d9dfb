"""The path of a symptom, walked by what a report has measured.

A suspect is struck when all of its checks passed. One whose check failed for one of its reasons
stands. A warning, an error and a failure for another reason decide nothing; nor does a skip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._text import say
from diagnostics.help._evidence import Finding, Measured, Standing, read_results, shorten, weigh
from diagnostics.help._lines import lines_of
from diagnostics.help.symptoms._numbers import Numbers, explain_values
from diagnostics.help.symptoms._symptom import Lead, Suspect, Symptom
from diagnostics.help.symptoms._symptom_table import SUSPECTS

MARKS = {
    Standing.REFUTED: "[-]",
    Standing.STANDS: "[!]",
    Standing.OPEN: "[?]",
    Standing.UNMEASURED: "[ ]",
}
LEGEND = "[-] struck by a check that passed  [!] stands  [?] open  [ ] not measured"


@dataclass(frozen=True)
class _Step:
    number: int
    lead: Lead
    suspect: Suspect
    finding: Finding


def render_walk(symptom: Symptom, content: Mapping[str, Any], numbers: Numbers) -> str:
    """Render what the report says of each suspect, then the first that stands."""
    results = read_results(content)
    steps = [_weigh(number, lead, results) for number, lead in enumerate(symptom.leads, 1)]
    lines = lines_of("symptom  ", f"{symptom.title} ({symptom.name})")
    for said in explain_values(numbers, symptom.about, _vocab_size(results)):
        lines += lines_of("number   ", said)
    lines += [LEGEND, ""]
    for step in steps:
        lines += _render_step(step)
    lines += ["", *_conclude(steps, _other_failure(steps, results)), *_elsewhere(steps, results)]
    return "\n".join(lines)


def _weigh(number: int, lead: Lead, results: Mapping[str, Measured]) -> _Step:
    suspect = SUSPECTS[lead.suspect]
    settled = suspect.settled or lead.settled
    finding = weigh(
        results,
        suspect.checks,
        suspect.reasons,
        judged=suspect.judged,
        settled=settled,
        also=suspect.also,
    )
    return _Step(number, lead, suspect, finding)


def _render_step(step: _Step) -> list[str]:
    lines = lines_of(f"{MARKS[step.finding.standing]} {step.number:>2}. ", step.suspect.what)
    if step.finding.standing is Standing.UNMEASURED and not step.suspect.checks:
        return lines + lines_of("        not measured: ", step.lead.evidence, 8)
    return lines + lines_of("        ", step.finding.sentence)


def _conclude(steps: Sequence[_Step], other: Measured | None) -> list[str]:
    """Name the first that stands; where none does, say what is left to measure.

    other: a failure beside the suspects, whose own next step then comes before any of theirs.
    """
    standing = [step for step in steps if step.finding.standing is Standing.STANDS]
    standing.sort(key=_is_consequence)  # stable
    if standing:
        return _conclude_standing(standing)
    left = [step for step in steps if step.finding.standing is not Standing.REFUTED]
    if not left:
        return lines_of(
            "",
            "The report strikes every suspect of this list. It does not say what else it is: "
            "compare with the other symptoms, `python -m diagnostics --symptom list`.",
        )
    text = say(
        "No suspect stands: {struck} of {total} are struck, and the report does not settle what is "
        "left. A check sees the parts that the pipeline describes, and not what a script does "
        "besides. Look next at",
        struck=len(steps) - len(left),
        total=len(steps),
    )
    lines = lines_of("", text) + lines_of(f"{left[0].number:>2}. ", left[0].suspect.what)
    lines += lines_of("    if so   ", left[0].lead.evidence)
    return lines if other is not None and other.next_step else lines + _next(_what_next(left[0]))


def _conclude_standing(standing: Sequence[_Step]) -> list[str]:
    first = standing[0]
    by = first.finding.by
    lines = lines_of("first that stands: ", f"{first.number}. {first.suspect.what}", 4)
    lines += lines_of("    if so   ", first.lead.evidence)
    if by is not None and by.consequence_of is not None:
        text = say("likely a consequence of {check}: mend that first", check=by.consequence_of)
        lines += lines_of("    but     ", text)
    else:
        lines += _next(by.next_step if by is not None and by.next_step else first.suspect.action)
    if first.suspect.exercise:
        lines.append(f"    see it  python -m exercises.{first.suspect.exercise}")
    if len(standing) > 1:
        text = say(
            "{n:further suspect stands|further suspects stand}. One fault may show in several "
            "checks: mend the first and measure again.",
            n=len(standing) - 1,
        )
        lines += lines_of("", text)
    return lines


def _what_next(step: _Step) -> str:
    """What could settle a suspect that neither stands nor is struck."""
    suspect, by = step.suspect, step.finding.by
    if by is not None and by.passed:  # running it again would say the same
        return suspect.look[0] if suspect.look else suspect.action
    if by is not None and by.next_step:
        return by.next_step
    return suspect.command or next(iter(suspect.look), suspect.action)


def _next(todo: str) -> list[str]:
    """A command stays on one line, to be copied; a sentence is wrapped."""
    known = any(todo == s.command or todo in s.look for s in SUSPECTS.values())
    if known and todo.startswith("python "):
        return [f"    next    {todo}"]
    return lines_of("    next    ", todo)


def _elsewhere(steps: Sequence[_Step], results: Mapping[str, Measured]) -> list[str]:
    """Name the report's first failure that is no suspect of this symptom."""
    other = _other_failure(steps, results)
    if other is None:
        return []
    told = [s.finding.by for s in steps if s.finding.standing is Standing.STANDS]
    order = list(results)
    first = min((order.index(r.check) for r in told if r is not None), default=len(order))
    text = say(
        "The report fails at {check}{too}, for a reason that is none of these: {claim}",
        check=other.check,
        too=" too" if told else "",
        claim=shorten(other.claim),
    )
    lines = ["", *lines_of("", text)]
    if order.index(other.check) < first:
        lines += lines_of(
            "", "It comes first in the report, and may contaminate what comes after it."
        )
        lines += _next(other.next_step) if other.next_step else []
    return lines


def _other_failure(steps: Sequence[_Step], results: Mapping[str, Measured]) -> Measured | None:
    told = [s.finding.by for s in steps if s.finding.standing is Standing.STANDS]
    failed = [r for r in results.values() if r.failed and r.consequence_of is None]
    return next((r for r in failed if r not in told), None)


def _vocab_size(results: Mapping[str, Measured]) -> int | None:
    size = results["shapes"].numbers.get("vocab_size") if "shapes" in results else None
    return size if isinstance(size, int) and size > 1 else None


def _is_consequence(step: _Step) -> bool:
    return step.finding.by is not None and step.finding.by.consequence_of is not None
