"""Attacks of one submission on its class, each with what it gets now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exercises.grade import __main__ as command
from exercises.grade import _class, _grading
from exercises.grade._class import State
from exercises.grade._grading import Settings, grade_source
from exercises.grade.rubric import Rubric
from exercises.grade.submissions import Source
from exercises.isolation.sandbox import IsolationError, Sandbox


class OneSource:
    """A connection on which one submission comes, and no second one for ever."""

    def __init__(self) -> None:
        self.sent: list[object] = []

    def recv(self) -> Source:
        return Source(student_id="eve", path=Path("eve"))

    def send(self, value: object) -> None:
        self.sent.append(value)


def test_a_submission_that_ends_the_clean_process_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The grading process ends, which the other side sees; it used to wait for the next source."""

    def ended(*_: object, **__: object) -> None:
        raise IsolationError("the clean process has ended")

    monkeypatch.setattr(_class, "grade_source", ended)
    connection: Any = OneSource()
    settings = Settings(rubric=Rubric(), secret=b"k" * 32)
    with pytest.raises(SystemExit):
        _class._grade_next(connection, settings, State(tmp_path), Sandbox(), None)
    assert connection.sent == []


def test_submissions_are_unpacked_where_no_other_job_can_look(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A job that waits in /tmp for a fellow student's check to be unpacked finds none there."""
    unpacked: list[Path] = []

    def seen(submission: Any, *_: object) -> None:
        unpacked.append(submission.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(_grading, "_grade", seen)
    (tmp_path / "ada").mkdir()
    (tmp_path / "ada" / "answers.json").write_text("{}", encoding="utf-8")
    hidden = tmp_path / "state"
    hidden.mkdir()
    settings = Settings(rubric=Rubric(), secret=b"k" * 32, workspace=hidden)
    with pytest.raises(KeyboardInterrupt):
        grade_source(Source(student_id="ada", path=tmp_path / "ada"), settings, Sandbox())
    assert [path.is_relative_to(hidden) for path in unpacked] == [True]
    assert list(hidden.iterdir()) == []


def test_every_file_of_the_command_is_hidden(tmp_path: Path) -> None:
    """The report names the buggy implementations and holds what other students' checks said."""
    names = ("out", "json", "junit", "gradescope", "exercism", "metadata")
    given = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    options = command._parse([str(tmp_path / "class"), *given])
    state = State(tmp_path / "state")
    settings = command._settings(options, Rubric(), state)
    assert {tmp_path / name for name in (*names, "class", "state")} <= set(settings.hidden)
    assert settings.workspace in settings.hidden
