"""What a run looked like, in a few lines: problems with counts, notes, and what was not watched."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from diagnostics._text import Text, say
from diagnostics.monitor.events import COLUMNS, Event


def summarise(
    step: int,
    events: Sequence[Event],
    notes: Sequence[Event],
    not_watched: Sequence[Text],
    *,
    clipped: float | None,
    ratios: Mapping[str, float],
) -> str:
    """Return the lines; the first one is the verdict."""
    lines = [say("{step:update|updates}, {n:problem|problems}", step=step, n=len(events))]
    lines += [
        say(
            "  {reason}: {n:time|times}, updates {first} to {last}: {claim}",
            reason=e.reason,
            n=e.count,
            first=e.step,
            last=e.last_step,
            claim=e.claim,
        )
        for e in events
    ]
    if clipped is not None:
        lines.append(say("  clipped: {share:%} of updates", share=clipped))
    lines += [
        say("  update to weights, {group}: {ratio}", group=group, ratio=ratio)
        for group, ratio in ratios.items()
    ]
    lines += [say("  note: {claim}; expected {e}", claim=e.claim, e=e.expected) for e in notes]
    lines += [say("  not watched: {what}", what=what) for what in not_watched]
    wrapped = [
        textwrap.fill(line, COLUMNS, subsequent_indent="    ", break_on_hyphens=False)
        for line in lines
    ]
    return "\n".join(wrapped)


def closing(step: int, events: Sequence[Event]) -> Event:
    """Return the last word: how often each problem came back."""
    counts = ", ".join(f"{e.reason} {e.count} times" for e in events if e.count > 1)
    return Event(
        reason="monitor.summary",
        step=step,
        claim=say("{n:problem|problems} in all, {counts}", n=len(events), counts=counts),
        expected=say("none"),
        last_step=step,
    )
