"""The path of a symptom as text, the list of all symptoms, and a choice of several."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics._text import say
from diagnostics.help._lines import lines_of
from diagnostics.help.symptoms._numbers import Numbers, explain_values
from diagnostics.help.symptoms._symptom import Lead, Symptom
from diagnostics.help.symptoms._symptom_table import SUSPECTS, TOPICS

_COMMAND = "python "
_CHECK = "python -m diagnostics "
_LABEL = 9  # "   check " and the like
REPORT = "report.json"


def render_guide(symptom: Symptom, numbers: Numbers) -> str:
    """Render the suspects in order; numbers of the person's are explained where they fit."""
    lines = _head(symptom, numbers)
    for number, lead in enumerate(symptom.leads, 1):
        lines += ["", *_render_lead(number, lead)]
    lines += ["", *_closing(symptom)]
    return "\n".join(lines)


def render_list(first: str = "", near: Sequence[Symptom] = ()) -> str:
    """Render all symptoms by topic, after a first sentence and the ones that come near."""
    lines = lines_of("", first) if first else []
    if near:
        lines.append("near it:")
        for symptom in near:
            lines += lines_of(f"  {symptom.name:<24}", symptom.title)
    for topic, symptoms in TOPICS.items():
        lines += ["", topic] if lines else [topic]
        for symptom in symptoms:
            lines += lines_of(f"  {symptom.name:<24}", symptom.title)
    lines += ["", "ask for one of them by its name or in your own words:"]
    lines.append('  python -m diagnostics --symptom "loss stuck"')
    return "\n".join(lines)


def render_choice(symptoms: Sequence[Symptom]) -> str:
    """Render several symptoms with what each one looks like, so that one can be chosen."""
    lines = lines_of(
        "", say("{n} symptoms fit these words. Which one do you see?", n=len(symptoms))
    )
    for symptom in symptoms:
        lines += ["", symptom.title, *lines_of("  ", symptom.looks)]
        lines.append(f"  python -m diagnostics --symptom {symptom.name}")
    return "\n".join(lines)


def _head(symptom: Symptom, numbers: Numbers) -> list[str]:
    lines = lines_of("symptom  ", f"{symptom.title} ({symptom.name})")
    lines += lines_of("looks    ", symptom.looks)
    for said in explain_values(numbers, symptom.about):
        lines += lines_of("number   ", said)
    if symptom.note:
        lines += lines_of("note     ", symptom.note)
    return lines


def _render_lead(number: int, lead: Lead) -> list[str]:
    """Render one suspect: what, the evidence that tells it from the others, check, action."""
    suspect = SUSPECTS[lead.suspect]
    lines = lines_of(f"{number:>2}. ", suspect.what)
    lines += lines_of(_label("if so"), lead.evidence)
    steps = [suspect.command, *suspect.look] if suspect.command else [*suspect.look]
    for step in steps:
        lines += _step(step)
    lines += lines_of(_label("then"), suspect.action)
    if suspect.exercise:
        lines.append(f"{_label('see it')}python -m exercises.{suspect.exercise}")
    return lines


def _step(step: str) -> list[str]:
    """A command stays on one line, to be copied; a sentence is wrapped."""
    if step.startswith(_COMMAND):
        return [f"{_label('check' if step.startswith(_CHECK) else 'try')}{step}"]
    return lines_of(_label("look"), step)


def _label(word: str) -> str:
    return f"    {word:<{_LABEL}}"


def _closing(symptom: Symptom) -> list[str]:
    checks = dict.fromkeys(c for lead in symptom.leads for c in SUSPECTS[lead.suspect].checks)
    lines = lines_of(
        "",
        "Mend the first that shows, change nothing else, and measure again. For a pipeline of your "
        "own add --target FILE:FUNCTION after `python -m diagnostics`. All checks in one go:",
    )
    if checks:
        lines.append(f"    python -m diagnostics --json {REPORT}")
        lines.append(f"    python -m diagnostics --symptom {symptom.name} --report {REPORT}")
    return lines
