"""A self-test as plain text: check by check what was caught, and in full what was not."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from diagnostics._render import LABELS, field, wrap
from diagnostics._self_test import Outcome, SelfTest, Trial
from diagnostics._text import say

_COLUMN = 2


def render_self_test(found: SelfTest) -> str:
    """Render every check's bugs, then the score and what would raise it."""
    lines: list[str] = []
    for check, trials in itertools.groupby(found.trials, lambda trial: trial.injection.check):
        lines += _check(check, list(trials))
    return "\n".join([*lines, "", *_summary(found)])


def _check(check: str, trials: list[Trial]) -> Iterator[str]:
    caught = [trial for trial in trials if trial.outcome is Outcome.CAUGHT]
    tried = [t for t in trials if t.outcome not in (Outcome.ELSEWHERE, Outcome.FAILING)]
    if tried:
        yield f"{check}: {len(caught)} of {len(tried)} caught"
    else:
        yield f"{check}: no bug tried"
    if caught:
        names = ", ".join(trial.injection.name for trial in caught)
        yield from wrap(" " * _COLUMN, names, _COLUMN)
    for trial in tried:
        if trial.outcome is not Outcome.CAUGHT:
            yield from _not_caught(trial)
    rest = [trial for trial in trials if trial not in tried]
    for (outcome, note, unlock), group in itertools.groupby(rest, _why):
        yield from _not_tried(outcome, note, unlock, list(group))


def _not_caught(trial: Trial) -> Iterator[str]:
    label = "[MISSED]" if trial.outcome is Outcome.MISSED else "[OTHER CAUSE]"
    injection, result = trial.injection, trial.result
    yield from wrap(f"  {label} {injection.name}: ", injection.title, 2 * _COLUMN)
    if result is not None:
        told = say("{label} {claim}", label=LABELS[result.status], claim=result.claim)
        yield from field("said", told)
        yield from field("wanted", " or ".join(injection.reasons or (injection.id,)))
        yield from field("came", result.reason)


def _why(trial: Trial) -> tuple[Outcome, str, str]:
    return trial.outcome, trial.note, trial.unlock


def _not_tried(outcome: Outcome, note: str, unlock: str, trials: list[Trial]) -> Iterator[str]:
    names = ", ".join(trial.injection.name for trial in trials)
    yield from wrap(f"  {outcome}: ", say("{names}: {note}", names=names, note=note), 2 * _COLUMN)
    if unlock:
        yield from field("next", unlock)


def _summary(found: SelfTest) -> Iterator[str]:
    caught = len(found.of(Outcome.CAUGHT))
    facts = {"caught": caught, "injected": found.injected, "s": round(found.seconds, 1)}
    if not found.injected:
        yield from wrap("", "no bug could be put in; each says what would give it a place", 4)
    else:
        score = say(
            "{caught} of {injected:bug|bugs} that were put in, one at a time, are named by their "
            "check: a mutation score of {share:%} ({s} s)",
            **facts,
            share=round(found.score, 3),
        )
        yield from wrap("", score, 4)
    for outcome, told in _COUNTED.items():
        count = len(found.of(outcome))
        if count:
            yield from wrap("", say(told, count=count), 4)


_COUNTED = {
    Outcome.MISSED: "{count:bug is|bugs are} missed: green says nothing about them here",
    Outcome.OTHERWISE: "{count:bug is|bugs are} noticed, and another cause is named",
    Outcome.ELSEWHERE: "{count:bug has|bugs have} no place in this pipeline",
    Outcome.FAILING: (
        "{count:bug was|bugs were} not tried, because the check fails or names them already"
    ),
}
