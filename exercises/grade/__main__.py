"""`python -m exercises.grade SUBMISSIONS --out grades.csv`: grade a class, one submission each.

Exit codes: 0 everything was graded, 1 the grader itself could not bring a submission to its end,
2 usage or missing input, 3 a fault of the program, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from diagnostics._text import printable, say
from exercises._console import tell
from exercises.grade.autograder import build_autograder
from exercises.grade.container import container_text
from exercises.grade.csv_file import write_csv
from exercises.grade.exercism import write_exercism
from exercises.grade.feedback import file_names, write_feedback
from exercises.grade.gradescope import read_metadata, write_gradescope, write_provisional
from exercises.grade.junit import write_junit
from exercises.grade.own_report import write_report
from exercises.grade.rubric import Rubric, read_rubric
from exercises.grade.submissions import Found, find_submissions
from exercises.isolation.limits import MEANING, Level
from minigpt._cli import CommandError, Parser, require_writable, run_command

if TYPE_CHECKING:
    from exercises.grade._class import Graded, State
    from exercises.grade._grading import Settings
    from exercises.grade._results import StudentGrade

LIBRARY = Path(__file__).resolve().parents[2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.autograder is not None:
        return _build_autograder(options)
    if options.submissions is None:
        raise CommandError("give the folder with the submissions; --help shows the rest")
    if options.container:
        text = container_text(
            options.submissions, _out(options).parent, options.torch_index,
            rubric=options.rubric, private=options.private, secret=options.secret,
        )  # fmt: skip
        print(text, end="")
        return 0
    return _grade(options)


def _build_autograder(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory() as folder:
        secret = options.secret
        if secret is None:  # one for all submissions: the same one gets the same grade every time
            secret = Path(folder) / "secret"
            secret.write_bytes(secrets.token_bytes(32))
        names = build_autograder(
            options.autograder,
            rubric=options.rubric,
            private=options.private,
            secret=secret,
            torch_index=options.torch_index,
        )
    tell(say("{path} holds {count:file|files}", path=str(options.autograder), count=len(names)))
    tell("Next: upload it in Gradescope under Configure Autograder", hanging=6)
    return 0


def _grade(options: argparse.Namespace) -> int:
    single = options.gradescope is not None or options.exercism is not None
    for name in ("out", "json", "junit", "gradescope", "exercism"):
        require_writable(getattr(options, name), f"--{name}")
    if options.gradescope is not None:
        write_provisional(options.gradescope)
    student, created_at = options.student, None
    if options.metadata is not None:
        metadata = read_metadata(options.metadata)
        student, created_at = student or metadata.student_id, metadata.created_at
    if single and student is None:
        student = options.submissions.resolve().name
    found = find_submissions(options.submissions, student=student)
    rubric = read_rubric(options.rubric) if options.rubric is not None else Rubric()
    _require_apart(options)

    from exercises.grade._class import State
    from exercises.isolation import linux

    linux.set_dumpable(False)  # the secret and all grades are in this memory
    with contextlib.ExitStack() as stack:
        state = State(_state_folder(options, stack))
        return _grade_all(options, found, _settings(options, rubric, state), state, created_at)


def _grade_all(
    options: argparse.Namespace,
    found: Found,
    settings: Settings,
    state: State,
    created_at: datetime | None,
) -> int:
    from exercises.grade._class import grade_class

    for problem in found.notes:
        tell(f"[WARN] {printable(problem.text)}", hanging=7)
    if settings.rubric.due is not None and created_at is None:
        tell(
            "[WARN] the due date counts for nothing here: only --metadata says when a submission "
            "was handed in",
            hanging=7,
        )
    graded: dict[str, StudentGrade] = {}
    started = time.perf_counter()
    for one in grade_class(
        found.sources, settings, state, jobs=options.jobs, created_at=created_at
    ):
        graded[one.source.student_id] = one.grade
        _write(options, _in_order(found, graded), found, one.grade)
        _show_progress(one, len(graded), len(found.sources))  # what is said to be done is written
    _show_end(options, list(graded.values()), time.perf_counter() - started)
    return int(any(_is_ours(grade) for grade in graded.values()))


def _settings(options: argparse.Namespace, rubric: Rubric, state: State) -> Settings:
    from exercises.grade._grading import Settings
    from exercises.grade._private_code import doubts_about

    secret = options.secret.read_bytes() if options.secret is not None else state.secret()
    if len(secret) < 16:
        raise CommandError(f"{options.secret} is too short to be a secret; give 16 bytes or more")
    private = options.private.resolve() if options.private is not None else None
    if private is not None:
        for doubt in doubts_about(private):
            tell(f"[WARN] {printable(doubt)}", hanging=7)
    covered = [options.submissions, state.folder, private, _feedback_folder(options)]
    covered += [options.secret, options.rubric, options.out, options.json, options.junit]
    covered += [options.metadata, options.gradescope, options.exercism]
    return Settings(
        rubric=rubric,
        secret=secret,
        private=private,
        hidden=tuple(path.resolve() for path in covered if path is not None),
        require=Level[options.require],
        workspace=state.folder.resolve(),
    )


def _require_apart(options: argparse.Namespace) -> None:
    """Refuse a folder of submissions that holds this library: it is covered up for every job."""
    submissions = options.submissions.resolve()
    if submissions == LIBRARY or submissions in LIBRARY.parents:
        raise CommandError(
            f"{options.submissions} holds this library itself; put the submissions elsewhere"
        )


def _in_order(found: Found, graded: dict[str, StudentGrade]) -> list[StudentGrade]:
    return [graded[one.student_id] for one in found.sources if one.student_id in graded]


def _write(
    options: argparse.Namespace, students: list[StudentGrade], found: Found, latest: StudentGrade
) -> None:
    """Write every file that was asked for, with what is there so far."""
    if (options.gradescope is None and options.exercism is None) or options.out is not None:
        write_csv(_out(options), students, bom=options.bom)
        names = file_names(source.student_id for source in found.sources)
        folder = _feedback_folder(options)
        folder.mkdir(parents=True, exist_ok=True)
        write_feedback(folder, latest, names[latest.student_id])
    if options.json is not None:
        write_report(options.json, students)
    if options.junit is not None:
        write_junit(options.junit, students)
    if options.gradescope is not None:
        write_gradescope(options.gradescope, students[0])
    if options.exercism is not None:
        write_exercism(options.exercism, students[0])


def _show_progress(one: Graded, number: int, total: int) -> None:
    grade = one.grade
    how = "graded before" if one.before else f"{grade.seconds:.1f} s"
    how = "not graded" if _is_ours(grade) else how
    width = len(str(total))
    tell(
        f"[{number:>{width}}/{total}] {printable(grade.student_id)[:40]}: "
        f"{grade.score:g} of {grade.max_score:g} ({how})"
    )
    sys.stdout.flush()  # a class takes minutes, and a file or a pipe would keep the line back


def _show_end(options: argparse.Namespace, grades: list[StudentGrade], seconds: float) -> None:
    levels = sorted({grade.isolation for grade in grades})
    for level in levels:
        tell(f"isolation {level}: {MEANING[Level[level]]}", hanging=14)
    if min(Level[level] for level in levels) < Level.L3:
        tell(
            "[WARN] submissions could read and write what your user can; --container shows how to "
            "shut them in",
            hanging=7,
        )
    lost = sum(map(_is_ours, grades))
    if lost:
        tell(
            say("[ERROR] {count:submission was|submissions were} not graded", count=lost)
            + "; give the same command again to try once more",
            hanging=8,
        )
    where = _out(options) if options.gradescope is None else options.gradescope
    tell(
        say(
            "{count:submission|submissions} in {seconds} s; grades in {path}",
            count=len(grades),
            seconds=round(seconds),
            path=str(where),
        )
    )


def _is_ours(grade: StudentGrade) -> bool:
    return any(problem.reason == "grader.ended" for problem in grade.problems)


def _out(options: argparse.Namespace) -> Path:
    return options.out if options.out is not None else Path("grades.csv")


def _state_folder(options: argparse.Namespace, stack: contextlib.ExitStack) -> Path:
    """Return the folder that is given, or the one beside the grades; none is left without them.

    It holds the secret and the names of buggy implementations, so it does not belong beside a
    results.json that a student may see.
    """
    if options.state is not None:
        return Path(options.state)
    if options.out is None and (options.gradescope or options.exercism):
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grading-")))
    return _out(options).with_name(f"{_out(options).stem}.state")


def _feedback_folder(options: argparse.Namespace) -> Path:
    if options.feedback is not None:
        return Path(options.feedback)
    return _out(options).with_name(f"{_out(options).stem}-feedback")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m exercises.grade",
        description="Grade submissions, one folder or zip file per student, each holding any of "
        "check_<exercise>.py, fix_<exercise>.py, model.py and answers.json.",
        epilog="A run that was stopped goes on where it stopped when it is started again.",
    )
    parser.add_argument("submissions", nargs="?", type=Path, metavar="SUBMISSIONS")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the grades (grades.csv)")
    parser.add_argument("--rubric", type=Path, metavar="FILE", help="TOML: points, due, limits")
    parser.add_argument("--private", type=Path, metavar="DIR", help="your own implementations")
    parser.add_argument("--secret", type=Path, metavar="FILE", help="seeds are made from it")
    parser.add_argument(
        "--require",
        choices=[level.name for level in Level if level >= Level.L1],
        default=Level.L1.name,
        help="grade nothing with less isolation than this (%(default)s)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        choices=range(1, 65),
        metavar="N",
        default=min(8, os.cpu_count() or 1),
        help="submissions at the same time (%(default)s)",
    )
    parser.add_argument("--state", type=Path, metavar="DIR", help="where finished work is kept")
    parser.add_argument("--feedback", type=Path, metavar="DIR", help="a text file per student")
    parser.add_argument("--bom", action="store_true", help="mark the CSV as UTF-8, for Excel")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write our own report")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="also write JUnit XML")
    parser.add_argument("--student", metavar="ID", help="SUBMISSIONS is this one student's")
    parser.add_argument("--gradescope", type=Path, metavar="FILE", help="write its results.json")
    parser.add_argument("--exercism", type=Path, metavar="FILE", help="write its results.json")
    parser.add_argument("--metadata", type=Path, metavar="FILE", help="Gradescope's, for lateness")
    parser.add_argument("--container", action="store_true", help="show the container commands")
    parser.add_argument("--autograder", type=Path, metavar="ZIP", help="build Gradescope's zip")
    parser.add_argument(
        "--torch-index",
        metavar="URL",
        help="where pip finds torch without CUDA, for the zip and the container's image",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
