"""`--fix`: one small file to repair, and hints that open by trying.

The first hint is what the reference check says, opened by the first verification; the second is
what is wrong in words, opened by an attempt that changed the code; the third is the line, opened
by another attempt.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch

from diagnostics._text import say
from exercises import _exit, _judging
from exercises._attempt import changed_lines, closest, code_digest, first_difference
from exercises._exercise import Exercise
from exercises._guide import guide_reference
from exercises._progress import FOLDER, Entry, Repair, read_progress, update_progress
from exercises._status import next_step
from exercises._terminal import no_such, put, put_code, show_output
from exercises._watch import watch as watch_file
from exercises.contracts._contract import Contract, Wrong, first_fault
from exercises.contracts._private import contract_of
from exercises.contracts._starter import starter_source
from exercises.isolation.judge import FixJudgement
from minigpt._cli import CommandError
from minigpt._files import write_text

OPENED_BY = (
    "the first verification",
    "a verified attempt that changes the code; a comment is no attempt",
    "a second, different attempt",
)
OWN_LINES_SHOWN = 12  # of a student's repair
SEED = 0


def repair(exercise: Exercise, name: str, *, again: bool, watch: bool) -> int:
    """Write the file to repair, or verify the one that is there; return the exit code."""
    contract = contract_of(exercise.check)
    path = _path(exercise)
    wrong, written = _prepare(exercise, contract, path, name, again)
    if written:
        _introduce(exercise, contract, path)
        if not watch:
            return _exit.NOT_CAUGHT
    with _judging.practice() as judge:
        verify = functools.partial(_verify, exercise, contract, wrong, path, judge.fix)
        return watch_file(path, verify) if watch else verify()


def show_hints(exercise: Exercise) -> int:
    """Show the hints that are open, and what opens the next one."""
    contract = contract_of(exercise.check)
    path = _path(exercise)
    command = f"python -m exercises.{exercise.name} --fix"
    if not path.is_file():
        raise CommandError(f"there is no {path} to give hints for; `{command}` writes it")
    wrong = _current(exercise, contract, path)
    record = read_progress()[0].of(exercise.check).repairs.get(wrong.name, Repair())
    opened = _opened(record)
    print(f"hints for {path}")
    for number, hint in enumerate(_hints(contract, wrong, opened), 1):
        put(f"{number}. {hint}", indent=2, hanging=3)
    if opened < len(OPENED_BY):
        put(f"Hint {opened + 1} is opened by {OPENED_BY[opened]}.")
    put(f"Next: {command}", hanging=6)
    return _exit.CAUGHT


def _path(exercise: Exercise) -> Path:
    return FOLDER / f"fix_{exercise.check}.py"


# ---- the file --------------------------------------------------------------------------------


def _prepare(
    exercise: Exercise, contract: Contract, path: Path, name: str, again: bool
) -> tuple[Wrong, bool]:
    """Return the wrong implementation to repair, and whether its file was written just now.

    Raises CommandError for a name that is none, and where a changed file would be overwritten.
    """
    public = _public(contract)
    names = [wrong.name for wrong in public]
    if name and name not in names:
        raise CommandError(no_such("file to repair named", name, names))
    wanted = public[names.index(name)] if name else public[0]
    if not path.exists():
        return _write(exercise, contract, path, wanted), True
    if not path.is_file():
        raise CommandError(f"{path} is no file; move it away")
    current = _current(exercise, contract, path)
    if not name and not again:
        return current, False
    if not name:
        wanted = current
    if _is_changed(contract, path):
        if not again:
            if wanted is current:
                return current, False
            raise CommandError(
                f"{path} was changed and is another one, {current.name}; "
                "add --again to start afresh, your file is then kept under another name"
            )
        put(f"Your file is kept as {_set_aside(path)}.")
    return _write(exercise, contract, path, wanted), True


def _write(exercise: Exercise, contract: Contract, path: Path, wrong: Wrong) -> Wrong:
    write_text(path, starter_source(contract, wrong))

    def change(entry: Entry) -> None:
        entry.repairing = wrong.name
        entry.repairs.setdefault(wrong.name, Repair())

    update_progress(exercise.check, change)
    return wrong


def _public(contract: Contract) -> list[Wrong]:
    return [wrong for wrong in contract.wrongs if not wrong.held_out]


def _current(exercise: Exercise, contract: Contract, path: Path) -> Wrong:
    """Return what a file began as: what was noted, else the one that is most like it."""
    public = _public(contract)
    noted = read_progress()[0].of(exercise.check).repairing
    for wrong in public:
        if wrong.name == noted:
            return wrong
    return public[closest(_read(path), [starter_source(contract, each) for each in public])]


def _is_changed(contract: Contract, path: Path) -> bool:
    return _read(path) not in [starter_source(contract, wrong) for wrong in _public(contract)]


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _set_aside(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    return aside


def _introduce(exercise: Exercise, contract: Contract, path: Path) -> None:
    put(f"Written: {path}. One line of it breaks the promise of {contract.check}:")
    put_code("  ", contract.signature)
    put(contract.promise, indent=2)
    put("Which line is it, and what does it do instead? Change it and verify the file; with "
        "--watch each save is verified.")  # fmt: skip
    put(f"Next: python -m exercises.{exercise.name} --fix", hanging=6)


# ---- the verification ------------------------------------------------------------------------


def _verify(
    exercise: Exercise,
    contract: Contract,
    wrong: Wrong,
    path: Path,
    judge: Callable[[Contract, Path], FixJudgement],
) -> int:
    source = _read(path)
    given = starter_source(contract, wrong)
    judgement = judge(contract, path)
    digest = code_digest(source)
    changed = digest is not None and digest != code_digest(given)

    def change(entry: Entry) -> None:
        record = entry.repairs.setdefault(wrong.name, Repair())
        record.verified += 1
        record.repaired = record.repaired or judgement.repaired
        if changed and not judgement.repaired and digest not in record.attempts:
            record.attempts.append(str(digest))

    before = read_progress()[0].of(exercise.check).repairs.get(wrong.name, Repair())
    record = update_progress(exercise.check, change).repairs[wrong.name]
    if judgement.repaired:
        _show_repaired(exercise, contract, wrong, source)
        return _exit.CAUGHT
    _show_fault(path, judgement)
    if not changed and digest is not None:
        put(f"The code of {path} is still as it was given to you.")
    newly = range(_opened(before), _opened(record))
    hints = _hints(contract, wrong, _opened(record))
    for number in newly:
        if number > 0:  # the first says what was just said
            put(f"Hint {number + 1}: {hints[number]}", hanging=4)
    if judgement.problem:
        put("Mend that, or start afresh with --fix --again, which keeps your file under another "
            "name; --hint shows the hints that are open.")  # fmt: skip
    else:
        put("Change the line and verify again; --hint shows the hints that are open.")
    put(f"Next: python -m exercises.{exercise.name} --fix", hanging=6)
    return _exit.NOT_CAUGHT


def _show_fault(path: Path, judgement: FixJudgement) -> None:
    if judgement.fault is not None:
        put(f"[FAIL] not yet: {judgement.fault.claim}", hanging=7)
    else:
        where = "" if judgement.problem_line is None else f", line {judgement.problem_line}"
        put(f"[FAIL] {path}{where} cannot be used: {judgement.problem}", hanging=7)
    show_output(judgement.output)


def _show_repaired(exercise: Exercise, contract: Contract, wrong: Wrong, source: str) -> None:
    given, solved = (starter_source(contract, wrong, healed=healed) for healed in (False, True))
    _, broken, healthy = first_difference(given, solved)
    put(f"[OK] repaired: it keeps the promise of {contract.check}.")
    print("  what was wrong, and one way to mend it")
    put_code("  - ", broken)
    put_code("  + ", healthy)
    own = changed_lines(given, source)
    print("  what you changed")
    for line in own[:OWN_LINES_SHOWN]:
        put_code("  ", line)
    if len(own) > OWN_LINES_SHOWN:
        print(f"    and {len(own) - OWN_LINES_SHOWN} lines more")
    lessons = [bug.lesson for bug in exercise.bugs if bug.name == wrong.name and bug.lesson]
    put(f"Lesson: {(lessons or [exercise.lesson])[0]}")
    put(f"guide: {guide_reference(f'The check {exercise.check}')}", hanging=7)
    progress = read_progress()[0]
    put(f"Next: {next_step(progress, exercise.check)}", hanging=6)


# ---- the hints -------------------------------------------------------------------------------


def _opened(record: Repair) -> int:
    """Return how many hints are open after what was done."""
    if not record.verified:
        return 0
    return 1 + min(2, len(record.attempts))


def _hints(contract: Contract, wrong: Wrong, count: int) -> list[str]:
    makers = (_first_hint, _second_hint, _third_hint)
    return [maker(contract, wrong) for maker in makers[:count]]


def _first_hint(contract: Contract, wrong: Wrong) -> str:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        fault = first_fault(contract, wrong.implementation)
    return "as it was given to you, " + ("it is right" if fault is None else fault.claim)


def _second_hint(contract: Contract, wrong: Wrong) -> str:
    return f"what is wrong: {wrong.note}"


def _third_hint(contract: Contract, wrong: Wrong) -> str:
    given, solved = (starter_source(contract, wrong, healed=healed) for healed in (False, True))
    number, line, _ = first_difference(given, solved)
    return say("it is line {number} of the file as it was given: {line}", number=number, line=line)
