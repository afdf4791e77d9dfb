"""The stages of the pipeline as a path, from the environment to a memorised batch.

A fault contaminates what lies downstream of it, so the path shows where it breaks first.
"""

from __future__ import annotations

from diagnostics._text import say
from diagnostics.page._markup import Markup, element, isolate, join
from diagnostics.page._parts import STATES
from diagnostics.page._verdicts import Stage, Stored


def path(report: Stored) -> Markup:
    """Return the stages in their order as connected nodes, the first broken one marked."""
    stages = report.stages
    broken = _broken(report, stages)
    nodes = [
        _node(stage, _mark(stage, position, broken), downstream=position > broken)
        for position, stage in enumerate(stages)
    ]
    return element("ol", nodes, class_="path", aria_label="stages of the pipeline, in order")


def path_note(report: Stored) -> Markup | None:
    """Return how to read the path below its first broken stage, None where nothing is broken."""
    if report.first is None:
        return None
    if report.first.status == "error":
        why = " comes after a check that could not finish. Mend that, and run the checks again."
    else:
        why = (
            " was measured on a pipeline that is broken there, and its passes too. Mend that, and "
            "run the checks again."
        )
    return element("p", "What follows ", isolate(report.first.stage), why, class_="quiet")


def _broken(report: Stored, stages: tuple[Stage, ...]) -> int:
    """Return the position of the first broken stage, or the number of stages."""
    names = [stage.name for stage in stages]
    return len(stages) if report.first is None else names.index(report.first.stage)


def _mark(stage: Stage, position: int, broken: int) -> str:
    """Say what a stage is in view of the first broken one; "may be": nothing explains it so far."""
    if position == broken:
        return "mend first"
    found = [v for v in stage.verdicts if v.failed or v.status == "warn"]
    if position < broken or not found:
        return _unmeasured(stage)
    explained = all(verdict.consequence_of for verdict in found)
    return "likely a consequence" if explained else "may be a consequence"


def _unmeasured(stage: Stage) -> str:
    """Say how much of a stage that counts as passed was not measured."""
    skipped = sum(verdict.status == "skip" for verdict in stage.verdicts)
    partly = skipped and skipped < len(stage.verdicts)
    return say("{n} of {total} skipped", n=skipped, total=len(stage.verdicts)) if partly else ""


def _node(stage: Stage, mark: str, *, downstream: bool) -> Markup:
    shown = STATES[stage.status]
    dot = element("span", shown.symbol, class_="dot", aria_hidden="true")
    name = element("span", isolate(stage.name), class_="stage-name")
    linked = stage.anchor and stage.verdicts
    label = element("a", dot, name, href=f"#{stage.anchor}") if linked else join([dot, name])
    classes = f"{stage.status} downstream" if downstream else stage.status
    return element(
        "li",
        label,
        element("span", shown.word, class_="word"),
        element("span", mark, class_="mark") if mark else None,
        class_=f"{classes} first" if mark == "mend first" else classes,
    )
