"""What a page of a training run is made from: numbers by step, samples, messages, and facts.

Plain values of any loop. The memory stays bounded however long a run is: series are thinned to
their peaks and valleys, samples to the first, the last ten and some in between.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diagnostics.page._thinning import POINTS_MAX, Point, spread, thin

SAMPLES_LAST, SAMPLES_BETWEEN = 10, 10
SAMPLE_LENGTH = 2000  # characters of one sample
EVENTS_MAX = 100
LOSSES = ("train_loss", "training_loss", "validation_loss")
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
    message: what it ended of, in the words of the error.    postmortem: the file that says more.
    seconds: since this start of the run.    resumed_after: the step from which it went on.
    written: when the page was written, as text.
    """

    kind: str = "running"
    message: str = ""
    postmortem: str | None = None
    seconds: float | None = None
    resumed_after: int | None = None
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
    gaps: list[str] = field(default_factory=list)
    clipped_updates: int = 0
    judged_updates: int = 0  # of which it is known whether they were clipped
    step: int = 0

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

        Raises TypeError for a value that is no number.
        """
        step = int(step)
        self.step = max(self.step, step)
        for name, value in numbers.items():
            if value is None:
                continue
            if name == "clipped":
                self.judged_updates += 1
                self.clipped_updates += bool(value)
                continue
            points = self.series.setdefault(ALIASES.get(name, name), [])
            try:
                points.append((step, float(value)))
            except (TypeError, ValueError, OverflowError) as error:
                raise TypeError(f"{name} must be a number, got {type(value).__name__}") from error
            if len(points) >= 2 * POINTS_MAX:  # so that thinning costs little per point
                points[:] = thin(points)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Take over a row of a log; what is no number in it is passed over."""
        kept = {name: number for name in row if (number := _number(row[name])) is not None}
        self.add(int(kept.pop("step")), kept)

    def add_sample(self, step: int, text: str, prompt: str = "") -> None:
        """Keep a sample, the last one of its step; drop one in the middle where there are many."""
        sample = Sample(step=int(step), text=text[:SAMPLE_LENGTH], prompt=prompt[:SAMPLE_LENGTH])
        if self.samples and self.samples[-1].step == sample.step:
            self.samples.pop()
        self.samples.append(sample)
        if len(self.samples) > 1 + 2 * SAMPLES_BETWEEN + SAMPLES_LAST:
            self.samples[:] = few_samples(self.samples)

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


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = _number(row.get("step")) if isinstance(row, dict) else None
    return row if step is not None and math.isfinite(step) else None


def _number(value: Any) -> float | None:
    """Return a JSON value as a number; JSON spells what is not finite as a string."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None
