"""Symptom-first cases: something is wrong with a pipeline, and only its symptoms are shown.

python -m exercises.cases                   the next case
python -m exercises.cases 7                 case 7
python -m exercises.cases 7 --probe batch --answer shift --cause 2

Every probe and every wrong answer has a cost; the score is the cost until the right cause. What
was done is kept in work/cases.json. Exit codes: 0 as asked, 1 a wrong answer or a case that was
left unsolved, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from exercises import _exit
from exercises._case_book import CASES, GRADES, Case
from exercises._case_file import Attempt, CaseFile
from exercises._case_score import cost_of, is_named, is_solved, probe_names
from exercises._console import ask, on_terminal, tell
from exercises._terminal import no_such, number_to
from minigpt._cli import CommandError, Parser, run_command

if TYPE_CHECKING:
    from exercises._case_session import Session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    file = CaseFile()
    attempts = file.read()
    for note in file.notes:
        tell(note, hanging=7)
    probes = [_known("probe", name, probe_names()) for name in options.probe]
    answer = options.answer and _known("check", options.answer, list(CATALOG))
    number = options.case or _next_number(attempts)
    if options.list or number is None:
        _show_list(attempts)
        return _exit.CAUGHT
    from exercises._case_session import Session

    case = CASES[number - 1]
    session = Session(number, case, file, attempts.get(case.code, Attempt()))
    if not (probes or answer or options.cause is not None or options.hint):
        return _visit(session)
    for name in probes:
        session.probe(name)
    right = session.answer(answer) if answer else True
    if right and options.cause is not None:
        right = session.name_cause(options.cause)
    elif right and answer:
        print(f"  next  python -m exercises.cases {number} --cause N")
    if options.hint:
        session.show_hints()
    return _exit.CAUGHT if right else _exit.NOT_CAUGHT


def _visit(session: Session) -> int:
    """Show the symptoms; on a terminal, ask what to do until the case is solved or left."""
    session.show_symptoms()
    if session.solved:
        session.show_solution()
        return _exit.CAUGHT
    session.show_ways(typed=on_terminal())
    if not on_terminal():
        return _exit.CAUGHT
    return _talk(session)


def _talk(session: Session) -> int:
    while not session.solved:
        line = ask(f"\ncase {session.number}, cost {session.cost}> ")
        if line is None or line in ("quit", "exit", "q"):
            tell(f"Kept in {session.file.path}; python -m exercises.cases {session.number}")
            return _exit.NOT_CAUGHT
        _obey(session, line)
    return _exit.CAUGHT


def _obey(session: Session, line: str) -> None:
    """Do what one typed line asks for."""
    words = line.split()
    verb, rest = (words[0], words[1:]) if words else ("", [])
    if verb in ("probe", "answer", "cause"):
        words = rest
    if not words or verb == "help":
        session.show_ways(typed=True)
    elif verb == "hint":
        session.show_hints()
    elif verb == "show":
        session.show_symptoms()
    else:
        try:
            if words[0].isdecimal():
                session.name_cause(int(words[0]))
            elif verb == "answer":
                if session.answer(_known("check", words[0], list(CATALOG))):
                    print("  type  its number")
            else:
                session.probe(_known("probe", words[0], probe_names()))
        except CommandError as error:
            tell(str(error))


def _known(kind: str, name: str, names: list[str]) -> str:
    """Return the name when there is such a thing; raise CommandError with the closest ones."""
    if name not in names:
        raise CommandError(no_such(kind, name, names))
    return name


def _next_number(attempts: Mapping[str, Attempt]) -> int | None:
    """Return the number of the easiest unsolved case; None when all are solved."""
    unsolved = [
        (case.grade, number)
        for number, case in enumerate(CASES, 1)
        if not is_solved(case, attempts.get(case.code, Attempt()))
    ]
    return min(unsolved)[1] if unsolved else None


def _show_list(attempts: Mapping[str, Attempt]) -> None:
    solved = [case for case in CASES if is_solved(case, attempts.get(case.code, Attempt()))]
    print("case  grade  cost  state")
    for number, case in enumerate(CASES, 1):
        attempt = attempts.get(case.code, Attempt())
        cost = str(cost_of(case, attempt)) if attempt != Attempt() else ""
        print(f"{number:4d}  {case.grade:5d}  {cost:>4}  {_state(case, attempt)}".rstrip())
    for grade, told in GRADES.items():
        print(f"grade {grade}: {told}")
    total = sum(cost_of(case, attempts[case.code]) for case in solved)
    print(
        say(
            "{solved} of {count:case|cases} solved, at a cost of {total}",
            solved=len(solved),
            count=len(CASES),
            total=total,
        )
    )
    following = _next_number(attempts)
    if following is not None:
        print(f"next: python -m exercises.cases {following}")


def _state(case: Case, attempt: Attempt) -> str:
    if is_solved(case, attempt):
        return f"solved: {case.check}"
    if is_named(case, attempt):
        return "check found, cause open"
    return "begun" if attempt != Attempt() else "open"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m exercises.cases",
        description="Something is wrong, and only its symptoms are shown: find the cause cheaply.",
    )
    parser.add_argument(
        "case",
        nargs="?",
        type=number_to(len(CASES)),
        metavar="N",
        help=f"a case, 1 to {len(CASES)}; without it the easiest that is not solved",
    )
    parser.add_argument(
        "--probe",
        action="append",
        default=[],
        metavar="NAME",
        help="look at batch, decode, sizes, rate or ids, run a check, or report; may be repeated",
    )
    parser.add_argument("--answer", metavar="CHECK", help="the first check that fails here")
    parser.add_argument("--cause", type=int, metavar="N", help="which of the causes it is")
    parser.add_argument("--hint", action="store_true", help="show the hints that are open")
    parser.add_argument("--list", action="store_true", help="show what is done and what is next")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
