"""What is done and what comes next, as a table and as one command. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from exercises._case_book import CASES
from exercises._case_file import CaseFile
from exercises._case_score import is_solved
from exercises._outline import bug_levels
from exercises._progress import Entry, Progress, read_progress
from exercises._terminal import put

COLUMNS = ("level 1", "level 2", "level 3", "repair")
OPEN, BEGUN, DONE = "open", "begun", "done"


def show_status() -> None:
    """Print the table by stage, the counts, and the next command."""
    progress, problem = read_progress()
    name_width = max(map(len, CATALOG)) + 3
    print(" " * name_width + "".join(f"{title:<9}" for title in COLUMNS).rstrip())
    for stage, rows in groupby(CATALOG.values(), lambda row: row.stage):
        print(stage)
        for row in rows:
            words = words_of(row.name, progress.of(row.name))
            line = "".join(f"{words[title]:<9}" for title in COLUMNS)
            print(f"  {row.name:<{name_width - 2}}{line}".rstrip())
    print()
    put("Level 1 is the classic bug, level 2 one that the textbook check cannot see, level 3 to "
        "write the check; repair is one small file.")  # fmt: skip
    show_summary(progress)
    if problem:
        put(f"[WARN] {problem}", hanging=7)


def show_summary(progress: Progress) -> None:
    """Print how much is done, and the next command."""
    done = {
        title: sum(words_of(check, progress.of(check))[title] == DONE for check in CATALOG)
        for title in COLUMNS
    }
    levels = ", ".join(f"{done[title]} at {title}" for title in COLUMNS[:-1])
    put(f"Done, of {len(CATALOG)} checks: {levels}; {done['repair']} repaired.", hanging=2)
    predicted = [right for check in CATALOG for right in progress.of(check).predicted.values()]
    if predicted:
        put(say("Predicted right: {right} of {n}.", right=sum(predicted), n=len(predicted)))
    cases = CaseFile()
    attempts = cases.read()
    solved = sum(case.code in attempts and is_solved(case, attempts[case.code]) for case in CASES)
    put(
        say("Cases solved: {n} of {total} (python -m exercises.cases).", n=solved, total=len(CASES))
    )
    for note in cases.notes:
        put(note, hanging=7)
    put(f"Next: {next_step(progress)}", hanging=6)


def words_of(check: str, entry: Entry) -> Mapping[str, str]:
    """Return the word for each column: open, begun or done."""
    levels = bug_levels(check)
    words = {}
    for level, title in ((1, "level 1"), (2, "level 2")):
        bugs = [bug for bug, of in levels.items() if of == level]
        done = all(entry.caught.get(bug, False) for bug in bugs)
        words[title] = _word(done, any(bug in entry.caught for bug in bugs))
    words["level 3"] = _word(entry.check is not None and entry.check.complete, bool(entry.check))
    words["repair"] = _word(entry.repaired, bool(entry.repairs))
    return words


def next_step(progress: Progress, check: str | None = None) -> str:
    """Return the command to type next: first the bugs and a repair of each check, then level 3.

    check: the one that was just worked on; what it still wants comes first, then those after it.
    """
    names = list(CATALOG)
    start = 0 if check is None else names.index(check)
    return next(_steps(progress, names[start:] + names[:start]), "python -m exercises.cases")


def _steps(progress: Progress, names: list[str]) -> Iterator[str]:
    words = {name: words_of(name, progress.of(name)) for name in names}
    for name in names:
        if {words[name]["level 1"], words[name]["level 2"]} != {DONE}:
            yield f"python -m exercises.break_{name}{_missing(name, progress.of(name))}"
        if words[name]["repair"] != DONE:
            yield f"python -m exercises.break_{name} --fix"
    for name in names:
        if words[name]["level 3"] != DONE:
            yield f"python -m exercises.break_{name} --check work/check_{name}.py"


def _missing(check: str, entry: Entry) -> str:
    """Return the bug to look at next, with a blank before it; "" where none was looked at yet."""
    missing = [bug for bug in bug_levels(check) if not entry.caught.get(bug, False)]
    return f" {missing[0]}" if entry.caught and missing else ""


def _word(done: bool, begun: bool) -> str:
    return DONE if done else BEGUN if begun else OPEN
