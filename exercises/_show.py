"""Look at bugs: a question, two lines, a prediction, and then what happens.

The healthy and the broken pipeline stand side by side: the figures that the exercise is about,
and the training loss beside the honest loss, because the broken run is often the better-looking.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnostics._catalog import CATALOG
from exercises._console import columns, in_ascii
from exercises._exercise import Bug, Exercise, Receipt, find_marked_line, prove
from exercises._guide import guide_reference
from exercises._lab import Lab
from exercises._progress import Entry, read_progress, update_progress
from exercises._receipt import show_receipt
from exercises._status import next_step
from exercises._symptom import HONEST_LOSS, TRAINING_PARTS, compare_losses, training_symptom
from exercises._terminal import ask_for_one, put, put_code
from exercises._vector import check_vector, show_vector

Figures = Mapping[str, str]


def show(exercise: Exercise, bugs: Sequence[Bug]) -> list[Receipt]:
    """Show the bugs one after the other, keep what was done, and say what comes next."""
    row = CATALOG[exercise.check]
    put(f"{exercise.name} (stage {row.stage}, family {row.family})")
    put(exercise.question)
    with Lab() as lab:
        healthy = _Healthy(lab, exercise)
        receipts = [_show_bug(healthy, exercise, bug) for bug in bugs]
    print()
    put("Lesson: " + exercise.lesson)
    missed = [receipt.bug.name for receipt in receipts if receipt.problems]
    if missed:
        put(f"Not caught: {', '.join(missed)}. {exercise.hint}")
    else:
        put(f"Next: {next_step(read_progress()[0], exercise.check)}", hanging=6)
    return receipts


class _Healthy:
    """The laboratory with the figures of its healthy pipeline, each made when first asked for."""

    def __init__(self, lab: Lab, exercise: Exercise) -> None:
        self.lab = lab
        self._exercise = exercise
        self._own: Figures | None = None
        self._trained: Figures | None = None

    @property
    def own(self) -> Figures:
        """The exercise's own figures."""
        if self._own is None:
            self._own = self._exercise.symptom(self.lab, self.lab.pipeline())
        return self._own

    @property
    def trained(self) -> Figures:
        """The losses and the sample of a short training."""
        if HONEST_LOSS in self.own:
            return self.own
        if self._trained is None:
            self._trained = training_symptom(self.lab, self.lab.pipeline())
        return self._trained


def _show_bug(healthy: _Healthy, exercise: Exercise, bug: Bug) -> Receipt:
    lab = healthy.lab
    print()
    title = f"--- bug: {bug.name} (level {bug.level}) "
    print(title + "-" * max(3, min(68, columns()) - len(title)))
    if bug.question:
        put(bug.question)
    line = find_marked_line(bug.break_it)
    if line is not None:
        put_code("  - ", line.healthy)
        put_code("  + ", line.broken)
    predicted = ask_for_one("Which check will notice? (a name, or Enter to see)", CATALOG)
    receipt = prove(lab, bug)
    if line is not None:
        _show_side_by_side(healthy, exercise, bug)
    if receipt.result is not None:
        print()
        print("all checks, in the order of stages")
        show_vector(check_vector(lab, receipt))
        print()
        print(in_ascii(str(receipt.result)))
    print()
    show_receipt(receipt)
    _keep(exercise.check, receipt, predicted)
    _show_lesson(bug, predicted)
    return receipt


def _show_side_by_side(healthy: _Healthy, exercise: Exercise, bug: Bug) -> None:
    lab = healthy.lab
    before, trained_before = healthy.own, healthy.trained
    try:
        broken = bug.break_it(lab)
        replaced = lab.replaced_parts(broken)
        own = exercise.symptom(lab, broken)
        trains = replaced is None or bool(replaced & TRAINING_PARTS)
        trained = own if HONEST_LOSS in own else _train(lab, bug) if trains else trained_before
    finally:
        lab.restore()
    print()
    _show_figures(before, own)
    if trained_before is not before and trained is not trained_before:
        _show_figures(trained_before, trained)
    if trained is trained_before:
        put(
            "The losses of a training are the same: it uses no part that the bug replaces.",
            indent=2,
        )
    else:
        words = compare_losses(trained_before, trained)
        if words:
            put(words, indent=2)


def _train(lab: Lab, bug: Bug) -> Figures:
    """Train on the broken pipeline, which may well stop; what it stopped with is a symptom too."""
    try:
        return training_symptom(lab, bug.break_it(lab))
    except Exception as error:
        return {"training": f"stops with {type(error).__name__}: {error}"}


def _show_figures(healthy: Figures, broken: Figures) -> None:
    for name in [*healthy, *(other for other in broken if other not in healthy)]:
        put(name, indent=2)
        put_code("    healthy  ", _fit(healthy.get(name, "goes on")))
        put_code("    broken   ", _fit(broken.get(name, "not reached")))


def _fit(text: str) -> str:
    limit = columns() - 13
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _keep(check: str, receipt: Receipt, predicted: str) -> None:
    bug = receipt.bug

    def change(entry: Entry) -> None:
        entry.caught[bug.name] = receipt.caught
        if predicted:
            entry.predicted.setdefault(bug.name, predicted == bug.trips)

    update_progress(check, change)


def _show_lesson(bug: Bug, predicted: str) -> None:
    print()
    if predicted:
        noticed = "as you said" if predicted == bug.trips else f"you said {predicted}"
        put(f"noticed by {bug.trips} ({noticed})")
    for text in (bug.note, bug.lesson):
        if text:
            put(text)
    for heading in (f"The check {bug.trips}", bug.guide):
        if heading:
            put("guide: " + guide_reference(heading), hanging=7)
