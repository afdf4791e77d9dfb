"""The page as its own memory: a hidden element holds the history as JSON.

A log has the rows of a run, but neither its samples nor its messages nor the updates between two
rows. A run that goes on after a break reads them from the page that it is about to replace, so
that one file is all there is to keep, to move and to send.

The element is `<data id="run-memory" value="...">`, the place that HTML has for values for
machines. Its JSON, version 1: `series` (name -> [[step, number], ...]), `samples`
([{step, text, prompt}, ...]), `events` (as `Event.to_dict`), `clipped_updates`, `judged_updates`,
`step`. Numbers that JSON cannot hold are the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from diagnostics.page._markup import Markup, element
from diagnostics.page._run_history import RunHistory, few_events, few_samples, plain_events

VERSION = 1
NAME = "run-memory"
BYTES_MAX = 20_000_000  # a page of ours is a hundredth of that


def memory_of(run: RunHistory) -> Markup:
    """Return the hidden element with the history; its JSON is ASCII, whatever the texts hold."""
    content = {
        "version": VERSION,
        "step": run.step,
        "clipped_updates": run.clipped_updates,
        "judged_updates": run.judged_updates,
        "series": {name: run.points(name) for name in run.series},
        "samples": [vars(sample) for sample in few_samples(run.samples)],
        "events": plain_events(few_events(run.events)),
    }
    text = json.dumps(_strict(content), separators=(",", ":"), allow_nan=False)
    return element("data", id=NAME, value=text, hidden=True)


def read_memory(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return what the page at `path` remembers; None where it is no such page."""
    try:
        if Path(path).stat().st_size > BYTES_MAX:
            return None
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    finder = _Finder()
    finder.feed(text)
    with suppress(ValueError, RecursionError):
        content = json.loads(finder.value)
        if isinstance(content, dict) and content.get("version") == VERSION:
            return content
    return None


def recall(run: RunHistory, memory: Mapping[str, Any], until: int) -> None:
    """Put what a page remembers of the steps up to `until` into an empty history.

    A part that is damaged is left out: it is a picture of the past, and no reason to stop.
    """
    for name, points in _items(memory.get("series")):
        for point in points if isinstance(points, list) else ():
            with suppress(TypeError, ValueError, OverflowError):
                step, value = point
                if int(step) <= until:
                    run.add(int(step), {str(name): float(value)})
    end, clipped, judged = (memory.get(n) for n in ("step", "clipped_updates", "judged_updates"))
    whole = isinstance(end, int) and end <= until  # in the middle nobody has counted
    if whole and isinstance(clipped, int) and isinstance(judged, int):
        run.clipped_updates, run.judged_updates = clipped, judged
    for sample in _mappings(memory.get("samples")):
        with suppress(TypeError, ValueError, KeyError, OverflowError):
            if int(sample["step"]) <= until:
                run.add_sample(sample["step"], str(sample["text"]), str(sample["prompt"]))
    for event in _mappings(memory.get("events")):
        step = event.get("step")
        if not isinstance(step, int) or step <= until:
            run.add_event(event)


def agrees(memory: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether page and log are of the same run: the numbers that both know are the same."""
    shared = 0
    for name, points in _items(memory.get("series")):
        known = {
            point[0]: point[1] for point in points if isinstance(point, list) and len(point) == 2
        }
        for row in rows:
            if (
                name != "tokens_per_second"
                and row.get("step") in known
                and row.get(name) is not None
            ):
                if known[row["step"]] != row[name]:
                    return False
                shared += 1
    return shared > 0


class _Finder(HTMLParser):
    """Finds the value of the element."""

    def __init__(self) -> None:
        super().__init__()
        self.value = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the value of the one element that is asked for."""
        given = dict(attrs)
        if tag == "data" and given.get("id") == NAME:
            self.value = given.get("value") or ""


def _items(value: Any) -> list[tuple[Any, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _strict(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): _strict(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(part) for part in value]
    return str(value)
