"""`--check FILE`: grade a student's own check, blindly, against right and wrong implementations.

It hears how many of each it told apart, and which correct one it rejected; never which wrong one
it missed, because finding that out is the exercise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

from diagnostics._text import say
from exercises import _exit, _judging
from exercises._attempt import assertions
from exercises._exercise import Exercise
from exercises._progress import Entry, Score, read_progress, update_progress
from exercises._status import next_step
from exercises._terminal import put, put_code, show_output
from exercises._watch import watch as watch_file
from exercises.contracts._contract import Contract
from exercises.contracts._private import contract_of
from exercises.contracts._starter import check_source
from exercises.isolation.judge import CheckJudgement
from minigpt._cli import CommandError
from minigpt._files import write_text

Judge = Callable[[Contract, Path, Callable[[], object]], CheckJudgement]
OUTCOMES = {
    "timeout": "it took too long",
    "not_called": "it never called the implementation",
}


def grade(exercise: Exercise, path: Path, *, watch: bool) -> int:
    """Grade the check in a file, or write a starting point there; return the exit code."""
    contract = contract_of(exercise.check)
    if path.is_dir():
        raise CommandError(f"--check wants a file of yours, got the folder {path}")
    if not path.exists():
        write_text(path, check_source(contract))
        _introduce(exercise, contract, path)
        if not watch:
            return _exit.NOT_CAUGHT
    with _judging.practice() as judge:
        grade_once = functools.partial(_grade, exercise, contract, path, judge.check)
        return watch_file(path, grade_once) if watch else grade_once()


def _introduce(exercise: Exercise, contract: Contract, path: Path) -> None:
    put(f"Written: {path}, a starting point. What it is about:")
    put_code("  ", contract.signature)
    put(contract.promise, indent=2)
    put("Write a check that raises when this promise is broken, and only then.")
    put(f"Next: python -m exercises.{exercise.name} --check {path}", hanging=6)


def _grade(exercise: Exercise, contract: Contract, path: Path, judge: Judge) -> int:
    source = path.read_text(encoding="utf-8", errors="replace")
    with tqdm(disable=None, leave=False, bar_format="judging: {n} runs") as bar:
        judgement = judge(contract, path, bar.update)
    if judgement.problem:
        where = "" if judgement.problem_line is None else f", line {judgement.problem_line}"
        put(f"[FAIL] {path}{where} cannot be used: {judgement.problem}", hanging=7)
        show_output(judgement.output)
        return _exit.NOT_CAUGHT
    (accepted, rights), (caught, wrongs) = judgement.wheats, judgement.chaffs
    score = Score(accepted=accepted, rights=rights, caught=caught, wrongs=wrongs)

    def change(entry: Entry) -> None:
        if entry.check is None or not entry.check.complete:  # what is done stays done
            entry.check = score

    update_progress(exercise.check, change)
    label = "[OK]" if score.complete else "[FAIL]"
    put(f"{label} accepts {accepted} of {rights} correct, catches {caught} of {wrongs} buggy",
        hanging=7)  # fmt: skip
    if not judgement.valid:
        _show_rejected(contract, judgement)
        show_output(judgement.output)
        put(f"Next: {_remedy(judgement)}", hanging=6)
        return _exit.NOT_CAUGHT
    _show_remarks(judgement, source)
    show_output(judgement.output)
    if not score.complete:
        step = "think of one more way to break the promise, and assert that it is kept"
        if judgement.returned:
            step = "raise an AssertionError in place of returning a value"
        put(f"Next: {step}", hanging=6)
        return _exit.NOT_CAUGHT
    put(f"Next: {next_step(read_progress()[0], exercise.check)}", hanging=6)
    return _exit.CAUGHT


def _show_rejected(contract: Contract, judgement: CheckJudgement) -> None:
    """Name the correct implementations that were not accepted, and what the check said of each."""
    notes = {right.name: right.note for right in contract.rights}
    for verdict in judgement.verdicts:
        if not verdict.right or verdict.outcome == "accepted":
            continue
        where = "" if verdict.line is None else f" in line {verdict.line}"
        said = verdict.message or OUTCOMES.get(verdict.outcome, "it gave no reason")
        word = {"rejected": "rejects", "unstable": "is undecided, from seed to seed, about"}
        sentence = say(
            "it {word} a correct one ({note}){where}: {said}",
            word=word.get(verdict.outcome, "fails on"),
            note=notes[verdict.implementation],
            where=where,
            said=said,
        )
        put(sentence, indent=2, hanging=2)


def _remedy(judgement: CheckJudgement) -> str:
    """Say what to do about a check that did not accept every correct implementation."""
    outcomes = {verdict.outcome for verdict in judgement.verdicts if verdict.right}
    if "not_called" in outcomes:
        return "call implementation(...) in the check, and assert what holds for its result"
    if "timeout" in outcomes:
        return "look for a loop that does not end, or try fewer and smaller inputs"
    if outcomes <= {"accepted", "error"}:
        return "let the check end by returning, or by raising an ordinary error"
    return "write down what the promise leaves open, and assert nothing about it"


def _show_remarks(judgement: CheckJudgement, source: str) -> None:
    """Say what else was seen: assertions that never fire, verdicts that change, no verdict."""
    if judgement.chaffs[0]:
        for lines, text in assertions(source):
            if not judgement.lines & set(lines):
                put(f"line {lines.start} never was the one that rejected:", indent=2)
                put_code("    ", text)
    wrong = [verdict for verdict in judgement.verdicts if not verdict.right]
    unstable = sum(verdict.outcome == "unstable" for verdict in wrong)
    if unstable:
        put(say("its verdict on {n:buggy one|buggy ones} changes with the seed; that is no catch",
                n=unstable), indent=2)  # fmt: skip
    for outcome, text in OUTCOMES.items():
        if any(verdict.outcome == outcome for verdict in wrong):
            put(f"on a buggy one {text}; that is no catch", indent=2)
    if any(verdict.outcome == "error" for verdict in wrong):
        put("on a buggy one its process ended without a verdict; that is no catch", indent=2)
    if judgement.returned:
        put(f"it returned a {judgement.returned}; only raising an error rejects", indent=2)
