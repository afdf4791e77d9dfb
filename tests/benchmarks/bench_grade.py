"""Grade a class of made-up submissions: time per submission, a kill half-way, and a second run.

    python -m tests.benchmarks.bench_grade [--count 100] [--jobs 2]

Prints the seconds per submission, whether every score is the one that the submission deserves,
whether a grader that was killed and started again writes the same file, and whether a run in a new
folder gives the same grades.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from exercises.grade._results import StudentGrade
from exercises.grade.own_report import grade_digest, read_report
from tests.exercises.grade.synthetic import RUBRIC, write_class

ROOT = Path(__file__).parents[2]
TIMES = ("seconds", "graded_at")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-grade-") as name:
        _bench(Path(name), options.count, options.jobs)


def _bench(folder: Path, count: int, jobs: int) -> None:
    deserved = write_class(folder / "submissions", count)
    (folder / "rubric.toml").write_text(RUBRIC, encoding="utf-8")
    (folder / "secret").write_bytes(bytes(range(32)))

    def command(run: str) -> list[str]:
        return [
            sys.executable, "-m", "exercises.grade", str(folder / "submissions"),
            "--rubric", str(folder / "rubric.toml"), "--secret", str(folder / "secret"),
            "--jobs", str(jobs), "--out", str(folder / f"{run}.csv"),
            "--json", str(folder / f"{run}.json"),
        ]  # fmt: skip

    def run(name: str) -> float:
        start = time.perf_counter()
        subprocess.run(command(name), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - start

    seconds = run("whole")
    students = _students(folder / "whole.json")
    times = sorted(student.seconds for student in students)
    print(f"{count} submissions, {jobs} processes: {seconds:.0f} s, {seconds / count:.2f} s each")
    print(
        f"seconds of one submission: median {statistics.median(times):.2f}, "
        f"9th decile {times[int(0.9 * len(times))]:.2f}, longest {times[-1]:.2f}"
    )
    print(f"isolation {students[0].isolation}")
    wrong = [s.student_id for s in students if abs(s.score - deserved[s.student_id]) > 1e-3]
    print(f"scores as deserved: {count - len(wrong)} of {count} {wrong or ''}")

    with subprocess.Popen(
        command("parts"), cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(count // 2):
            process.stdout.readline()
        process.kill()
    done = len({row["student_id"] for row in _rows(folder / "parts.csv")})
    seconds = run("parts")
    same = _rows(folder / "parts.csv") == _rows(folder / "whole.csv")
    print(f"killed after {done}, started again: {seconds:.0f} s, the same file: {same}")

    seconds = run("again")
    digests = [
        [grade_digest(s) for s in _students(folder / f"{n}.json")] for n in ("whole", "again")
    ]
    equal = sum(a == b for a, b in zip(*digests, strict=True))
    print(f"graded once more in {seconds:.0f} s: {equal} of {count} grades are the same")


def _same_grade(a: StudentGrade, b: StudentGrade) -> bool:
    return grade_digest(a) == grade_digest(b)


def _students(path: Path) -> tuple[StudentGrade, ...]:
    return read_report(path.read_bytes())


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [{name: cell for name, cell in row.items() if name not in TIMES} for row in rows]


if __name__ == "__main__":
    main()
