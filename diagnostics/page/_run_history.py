"""What a page of a training run is made from: numbers by step, samples, messages, and facts.

Plain values of any loop. The memory stays bounded however long a run is: series are thinned to
their peaks and valleys, samples to the first, the last ten and some in between.
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics._text import say
from diagnostics.page._run_numbers import STEP_MAX, json_number, plain_number, whole_step
from diagnostics.page._thinning import POINTS_MAX, Point, spread, thin

SAMPLES_LAST, SAMPLES_BETWEEN = 10, 10
SAMPLE_LENGTH = 2000  # characters of one sample
EVENTS_MAX = 100
SERIES_MAX = 64  # names; a loop that makes up a name in every update must not fill the memory
NAME_LENGTH = 80
LOSSES = ("train_loss", "training_loss", "validation_loss")
KNOWN = (*LOSSES, "learning_rate", "grad_norm", "tokens_per_second")  # each has a place of its own
ALIASES = {"loss": "train_loss", "lr": "learning_rate", "val_loss": "validation_loss"}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text that the model wrote after `step`, and the text it was given to go on from."""

    step: int
    text: str
    prompt: str = ""


@dataclass(kw_only=True)
class RunState:
    """How far the run is, and how it ended.

    kind: "running", "finished", "early" (no gain any more), "paused", "interrupted", "failed", or
        "unknown", of a log alone.
        Any other word is shown as it is.
    message: what it ended of, in the words of the error.    postmortem: the file that says more.
    seconds: since this start of the run.    resumed_after: the step from which it went on.
    counted_from: (step, seconds) of the first numbers, from which the time to go is reckoned.
    written: when the page was written, as text.
    """

    kind: str = "running"
    message: str = ""
    postmortem: str | None = None
    seconds: float | None = None
    resumed_after: int | None = None
    counted_from: tuple[int, float] | None = None
    written: str | None = None


@dataclass(kw_only=True)
class RunHistory:
    """A training run so far, of any loop.

    total_steps: updates in the whole run.    vocab_size, unigram_entropy: of the levels ln V and
    the entropy of single tokens, in nats.    clip_norm: the limit of the gradient norm.
    facts: name -> text, what the run was started with.    best_path: where the best weights are.
    gaps: sentences about what this history does not hold.
    """

    title: str = "Training run"
    total_steps: int | None = None
    vocab_size: int | None = None
    unigram_entropy: float | None = None
    clip_norm: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    best_path: str | None = None
    state: RunState = field(default_factory=RunState)
    series: dict[str, list[Point]] = field(default_factory=dict)
    samples: list[Sample] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    events_left_out: int = 0
    gaps: list[str] = field(default_factory=list)
    clipped_updates: int = 0
    judged_updates: int = 0  # of which it is known whether they were clipped
    step: int = 0
    went_back: bool = False  # a step was told that is smaller than one before

    @classmethod
    def from_log(cls, path: str | os.PathLike[str], **facts: Any) -> RunHistory:
        """Return what a log tells, one JSON object with the key `step` in each line.

        facts: fields of the history, which a log does not know, such as `vocab_size`.
        Raises OSError where it cannot be read, ValueError where no line of it is a row.
        """
        rows = read_log(path)
        if not rows:
            raise ValueError(f"no line of {Path(path)} is a JSON object with the key step")
        run = cls(state=RunState(kind="unknown"), **facts)
        for row in rows:
            run.add_row(row)
        run.gaps.append("Only the logged updates are shown: messages and samples are not in a log.")
        return run

    def add(self, step: int, numbers: Mapping[str, Any]) -> None:
        """Take over numbers of one step; None is left out, `clipped` is counted.

        A step that is told twice has its later number, unless the earlier one is not finite.
        Raises TypeError for a step or a value that is no number; the other numbers are kept.
        """
        step = whole_step(step)
        self.step = max(self.step, step)
        refused: list[TypeError] = []
        for name, value in numbers.items():
            if value is None:
                continue
            try:
                number = plain_number(name, value)
            except TypeError as error:
                refused.append(error)
                continue
            if name == "clipped":
                self.judged_updates += 1
                self.clipped_updates += bool(number)
            else:
                self._put(ALIASES.get(name, name)[:NAME_LENGTH], (step, number))
        if refused:
            raise refused[0]

    def _put(self, name: str, point: Point) -> None:
        if name not in self.series and len(self.series) >= SERIES_MAX and name not in KNOWN:
            self._note(say("Only the first {n} names of numbers are kept.", n=SERIES_MAX))
            return
        points = self.series.setdefault(name, [])
        step, place = point[0], len(points)
        if points and step <= points[-1][0]:
            place = bisect_left(points, step, key=lambda known: known[0])
            if step < points[-1][0]:
                self._note_step_back(points[-1][0], step)
        if place < len(points) and points[place][0] == step:
            if math.isfinite(points[place][1]):
                points[place] = point
            return
        points.insert(place, point)
        if len(points) >= 2 * POINTS_MAX:  # so that thinning costs little per point
            points[:] = thin(points)

    def _note_step_back(self, before: int, step: int) -> None:
        if self.went_back:
            return
        self.went_back = True
        self._note(
            say(
                "The count of steps went back, from {before} to {step}: where a step is told "
                "twice, its later number is shown.",
                before=f"{before:,}",
                step=f"{step:,}",
            )
        )

    def _note(self, sentence: str) -> None:
        if sentence not in self.gaps:
            self.gaps.append(str(sentence))

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take over a row of a log; what is no number in it is passed over."""
        kept = {name: number for name in row if (number := json_number(row[name])) is not None}
        self.add(int(kept.pop("step")), kept)

    def add_sample(self, step: int, text: str, prompt: str = "") -> None:
        """Keep a sample, the last one of its step; drop one in the middle where there are many."""
        text, prompt = str(text)[:SAMPLE_LENGTH], str(prompt)[:SAMPLE_LENGTH]
        sample = Sample(step=whole_step(step), text=text, prompt=prompt)
        if self.samples and self.samples[-1].step == sample.step:
            self.samples.pop()
        self.samples.append(sample)
        if len(self.samples) > 1 + 2 * SAMPLES_BETWEEN + SAMPLES_LAST:
            self.samples[:] = few_samples(self.samples)

    def add_event(self, event: Any) -> None:
        """Keep a message; of very many the first and the last ones, and the count of the rest."""
        self.events.append(event if hasattr(event, "to_dict") else _short(event))
        if len(self.events) > 2 * EVENTS_MAX:
            self.events_left_out += len(self.events) - EVENTS_MAX
            self.events[:] = few_events(self.events)

    def points(self, name: str) -> list[Point]:
        """Return a series, thinned; empty where it is not known."""
        return thin(self.series.get(name, []))

    @property
    def clipped_share(self) -> float | None:
        """The share of updates whose gradient was scaled down; None where nobody said."""
        return self.clipped_updates / self.judged_updates if self.judged_updates else None

    @property
    def best(self) -> Point | None:
        """(step, loss) of the lowest validation loss; before the first update is no candidate."""
        found = [p for p in self.series.get("validation_loss", []) if p[0] and math.isfinite(p[1])]
        return min(found, key=lambda point: point[1], default=None)

    def gap(self) -> list[Point]:
        """Return (step, validation loss - training loss), where both were measured alike."""
        training = dict(self.points("training_loss"))
        validation = self.points("validation_loss")
        return [(step, loss - training[step]) for step, loss in validation if step in training]


def few_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Return the first, the last ten, and up to ten that lie evenly between them."""
    if len(samples) <= 1 + SAMPLES_BETWEEN + SAMPLES_LAST:
        return list(samples)
    between = samples[1:-SAMPLES_LAST]
    chosen = spread([sample.step for sample in between], SAMPLES_BETWEEN)
    return [samples[0], *(between[index] for index in chosen), *samples[-SAMPLES_LAST:]]


def few_events(events: Sequence[Any]) -> list[Any]:
    """Return the first and the last messages of very many: where it began, and where it is."""
    if len(events) <= EVENTS_MAX:
        return list(events)
    return [*events[: EVENTS_MAX // 2], *events[-EVENTS_MAX // 2 :]]


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of a `.jsonl` log; a line that is none, cut short for example, is left out.

    Raises OSError.
    """
    lines = Path(path).read_text(encoding="utf-8", errors="replace").split("\n")
    return [row for line in lines if (row := _row(line)) is not None]


def plain_events(events: Iterable[Any]) -> list[dict[str, Any]]:
    """Return messages as plain values: an `Event` as it is by now, a mapping, or a sentence."""
    plain = []
    for event in events:
        if isinstance(event, Mapping):
            plain.append(dict(event))
        elif hasattr(event, "to_dict"):
            plain.append(event.to_dict())
        else:
            plain.append({"claim": str(event)})
    return plain


def _short(event: Any) -> Any:
    if not isinstance(event, Mapping):
        return str(event)[:SAMPLE_LENGTH]
    return {k: v[:SAMPLE_LENGTH] if isinstance(v, str) else v for k, v in event.items()}


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = json_number(row.get("step")) if isinstance(row, dict) else None
    return row if step is not None and abs(step) <= STEP_MAX else None
