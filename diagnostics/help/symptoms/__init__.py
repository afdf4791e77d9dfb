"""From a symptom to the check that tells its suspects apart.

    find_symptoms("my loss isn't going down")     # the symptoms that these words describe
    guide(symptom)                                # the suspects in order, each with its check
    walk(symptom, report.to_dict())               # what a report has measured of each of them

Imports no torch: a person who asks does not want to wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._text import say
from diagnostics.help.symptoms._guide import render_choice, render_guide, render_list
from diagnostics.help.symptoms._numbers import Numbers, read_numbers
from diagnostics.help.symptoms._phrases import CHARACTERS_MAX, read_meanings
from diagnostics.help.symptoms._symptom import Symptom
from diagnostics.help.symptoms._symptom_table import SYMPTOMS
from diagnostics.help.symptoms._walk import render_walk

SHOWN_MAX = 60  # characters of what somebody wrote that are shown again
LIST = "list"
NEAR_MAX = 3
COMMON = frozenset({"loss", "train", "text", "value", "always", "run", "after"})  # in many phrases


def find_symptoms(text: str) -> tuple[Symptom, ...]:
    """Return the symptoms that the words describe, the most specific first; () where none fits.

    text: free words, of which case, order, endings and small typos do not matter; or the name of
    a symptom. A symptom fits when all meanings of one of its phrases are there. One that fits a
    part of what another one fits is left out: "validation loss rises" is not "loss rises".
    """
    name = text.strip().casefold().replace("-", "_").replace(" ", "_")
    if name in SYMPTOMS:
        return (SYMPTOMS[name],)
    asked = read_meanings(text)
    fitting = {symptom.name: _fitting_meanings(symptom, asked) for symptom in SYMPTOMS.values()}
    found = [
        symptom
        for symptom in SYMPTOMS.values()
        if fitting[symptom.name]
        and not any(fitting[symptom.name] < other for other in fitting.values())
    ]
    return tuple(sorted(found, key=lambda s: -len(fitting[s.name])))  # stable: then by the table


def near_symptoms(text: str) -> tuple[Symptom, ...]:
    """Return up to three symptoms of which one meaning of a phrase is missing in the words.

    A phrase counts where at least two of its meanings are there, one of them a telling one.
    """
    asked = read_meanings(text)
    shared: dict[str, int] = {}
    for symptom in SYMPTOMS.values():
        for phrase in map(read_meanings, symptom.phrases):
            both = phrase & asked
            if len(phrase - asked) == 1 and len(both) > 1 and both - COMMON:
                shared[symptom.name] = max(shared.get(symptom.name, 0), len(both))
    nearest = sorted(shared, key=lambda name: -shared[name])[:NEAR_MAX]  # stable
    return tuple(SYMPTOMS[name] for name in nearest)


def guide(symptom: Symptom | str, *, text: str = "") -> str:
    """Return the path for a symptom or its name: suspects in order, evidence, check, action.

    text: what the person wrote; a number in it is explained where its meaning is certain.
    Raises ValueError for a name that is none.
    """
    return render_guide(_require(symptom), _numbers_of(text))


def walk(symptom: Symptom | str, report_content: Mapping[str, Any], *, text: str = "") -> str:
    """Return, for each suspect, what a report has measured, and the first that stands.

    report_content: `report.to_dict()`, or a stored JSON report as `json.load` gives it.
    text: as for `guide`.
    Raises ValueError for a name that is no symptom's, and for content that is no report.
    """
    return render_walk(_require(symptom), report_content, _numbers_of(text))


def answer_symptom(text: str, report_content: Mapping[str, Any] | None = None) -> str:
    """Return what `--symptom TEXT` prints: a guide, a choice of several, or the whole list.

    With a report, one symptom is walked by what the report measured. Raises ValueError for content
    that is no report.
    """
    if text.strip().casefold() in ("", LIST):
        return render_list()
    found = find_symptoms(text)
    if not found:
        shown = text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
        asked = say('No symptom of the list fits "{text}".', text=shown)
        return render_list(asked, near=near_symptoms(text))
    if len(found) > 1:
        return render_choice(found)
    if report_content is None:
        return guide(found[0], text=text)
    return walk(found[0], report_content, text=text)


def _fitting_meanings(symptom: Symptom, asked: frozenset[str]) -> frozenset[str]:
    """Return the meanings of all phrases that fit as a whole."""
    phrases: Sequence[frozenset[str]] = [read_meanings(phrase) for phrase in symptom.phrases]
    return frozenset().union(*(phrase for phrase in phrases if phrase and phrase <= asked))


def _numbers_of(text: str) -> Numbers:
    return read_numbers(text[:CHARACTERS_MAX].casefold())


def _require(symptom: Symptom | str) -> Symptom:
    if isinstance(symptom, Symptom):
        return symptom
    if symptom not in SYMPTOMS:
        raise ValueError(f"there is no symptom named {symptom!r}; known: {', '.join(SYMPTOMS)}")
    return SYMPTOMS[symptom]
