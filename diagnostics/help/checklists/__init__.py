"""Three checklists that tick themselves as far as something was measured.

    tick("before", report.to_dict())
    tick("training", report.to_dict(), run_log=rows)
    tick("generation", report.to_dict(), run_log=rows, generation_settings=settings)

`[x]` measured and right, `[!]` measured and wrong, `[ ]` not measured: a person has to tick it.
Nothing is ticked that was not measured. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._text import say
from diagnostics.help._evidence import Standing, read_results, weigh
from diagnostics.help._lines import lines_of
from diagnostics.help.checklists._item import Item
from diagnostics.help.checklists._items import CHECKLISTS, TITLES
from diagnostics.help.checklists._mark import OPEN, RIGHT, WRONG, Facts, Mark
from diagnostics.help.checklists._marks import MEASURES, habits
from diagnostics.help.checklists._run_log import read_log

LEGEND = "[x] measured and right   [!] measured and wrong   [ ] not measured: for you"


def tick(
    checklist: str,
    content: Mapping[str, Any] | None = None,
    *,
    run_log: Sequence[Mapping[str, Any]] | None = None,
    generation_settings: Mapping[str, Any] | None = None,
) -> str:
    """Return a checklist with each item ticked, refused or left for a person, and why.

    checklist: "before", "training" or "generation".
    content: `report.to_dict()` or a stored report; None where nothing was checked.
    run_log: the rows of `checkpoints/*_log.jsonl`, see `_run_log`; a post-mortem of the monitor
        may stand among them, as the object that its file holds.
    generation_settings: any of temperature, top_k (None: off), vocab_size, checkpoint_step,
        prompt_nats (KL of a rich prompt to a short one), prompt_changed (predictions whose most
        probable token the rich prompt changes) and repetition_rate (0 to 1).
    Raises ValueError for another checklist, and for content that is no report.
    """
    marked = tick_items(
        checklist, content, run_log=run_log, generation_settings=generation_settings
    )
    facts = _facts(content, run_log, generation_settings)
    count = {box: sum(mark.box == box for _, mark in marked) for box in (RIGHT, WRONG, OPEN)}
    head = say(
        "checklist {title}: {right} of {n} measured and right, {wrong} wrong, {left} for you",
        title=TITLES[checklist],
        right=count[RIGHT],
        n=len(marked),
        wrong=count[WRONG],
        left=count[OPEN],
    )
    lines = [*lines_of("", head), LEGEND, ""]
    for item, mark in marked:
        lines += lines_of(f"{mark.box} ", item.text)
        if mark.sentence:
            lines += lines_of("      ", mark.sentence)
        if mark.box != RIGHT:
            lines += _look(item)
    shown = habits(facts)
    if shown:
        lines += ["", "habits that make debugging harder, as far as the numbers show them"]
        for habit in shown:
            lines += lines_of("  - ", habit)
    return "\n".join(lines)


def tick_items(
    checklist: str,
    content: Mapping[str, Any] | None = None,
    *,
    run_log: Sequence[Mapping[str, Any]] | None = None,
    generation_settings: Mapping[str, Any] | None = None,
) -> tuple[tuple[Item, Mark], ...]:
    """Return each item of a checklist with its mark, as `tick` shows them."""
    if checklist not in CHECKLISTS:
        raise ValueError(f"checklist must be one of {', '.join(CHECKLISTS)}, got {checklist!r}")
    facts = _facts(content, run_log, generation_settings)
    return tuple((item, _mark(item, facts)) for item in CHECKLISTS[checklist])


def _facts(
    content: Mapping[str, Any] | None,
    run_log: Sequence[Mapping[str, Any]] | None,
    settings: Mapping[str, Any] | None,
) -> Facts:
    results = {} if content is None else read_results(content)
    return Facts(results=results, log=read_log(run_log), settings=settings or {})


def _mark(item: Item, facts: Facts) -> Mark:
    if item.measure:
        return MEASURES[item.measure](facts)
    if not item.checks:
        return Mark(OPEN)
    finding = weigh(facts.results, item.checks, item.reasons, judged=item.judged, also=item.also)
    if finding.standing is Standing.UNMEASURED and finding.by is None and not item.judged:
        return Mark(OPEN)
    boxes = {Standing.REFUTED: RIGHT, Standing.STANDS: WRONG}
    return Mark(boxes.get(finding.standing, OPEN), finding.sentence)


def _look(item: Item) -> list[str]:
    """A command stays on one line, to be copied; a sentence is wrapped."""
    if item.look.startswith("python "):
        return [f"      how: {item.look}"]
    return lines_of("      how: ", item.look)
