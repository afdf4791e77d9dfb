"""What was done in a case is kept, and nothing that is found in the way of it is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exercises._case_file import Attempt, CaseFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work" / "cases.json"


def test_without_a_file_nothing_was_done(path: Path) -> None:
    file = CaseFile(path)
    assert file.read() == {}
    assert file.notes == []
    assert not path.exists()


def test_what_was_done_is_read_back_in_order_and_once(path: Path) -> None:
    file = CaseFile(path)
    for done in ({"probes": "batch"}, {"probes": "shift", "failed": "shift"}, {"probes": "batch"}):
        attempt = file.record("c0de", Attempt(), **done)
    assert attempt == Attempt(probes=("batch", "shift"), failed=("shift",))
    assert CaseFile(path).read() == {"c0de": attempt}
    assert json.loads(path.read_text(encoding="utf-8")) == {
        "schema_version": 1,
        "cases": {
            "c0de": {"probes": ["batch", "shift"], "failed": ["shift"], "answers": [], "causes": []}
        },
    }


def test_another_window_loses_nothing(path: Path) -> None:
    """Both began with an empty file; each case and each entry is there in the end."""
    one, two = CaseFile(path), CaseFile(path)
    one.read()
    two.read()
    one.record("a", Attempt(), probes="ids")
    two.record("b", Attempt(), answers="loss")
    assert one.record("a", Attempt(), causes="b") == Attempt(probes=("ids",), causes=("b",))
    assert CaseFile(path).read() == {
        "a": Attempt(probes=("ids",), causes=("b",)),
        "b": Attempt(answers=("loss",)),
    }


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b'{"schema_version": 1}', b'{"cases": []}', b"[" * 100_000],
)
def test_a_damaged_file_is_kept_under_another_name(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    file = CaseFile(path)
    assert file.read() == {}
    assert not path.exists()
    assert path.with_name("cases.json.damaged").read_bytes() == content
    assert [note.template for note in file.notes] == [
        "[WARN] {path} cannot be used: {why}; it is kept as {name}"
    ]
    assert file.record("a", Attempt(), probes="ids") == Attempt(probes=("ids",))


def test_a_second_damaged_file_does_not_replace_the_first(path: Path) -> None:
    path.parent.mkdir()
    for content in ("one", "two", "three"):
        path.write_text(content, encoding="utf-8")
        CaseFile(path).read()
    kept = {each.name: each.read_text(encoding="utf-8") for each in path.parent.iterdir()}
    assert kept == {
        "cases.json.damaged": "one",
        "cases.json.damaged2": "two",
        "cases.json.damaged3": "three",
    }


def test_a_newer_file_is_kept_as_such(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"schema_version": 2, "cases": {}}', encoding="utf-8")
    file = CaseFile(path)
    assert file.read() == {}
    assert "its version is 2 and 1 is known here" in file.notes[0]
    assert path.with_name("cases.json.newer").exists()


def test_one_bad_entry_costs_only_itself(path: Path) -> None:
    """The good case stays in use, the file as it was stays beside it."""
    path.parent.mkdir()
    content = {
        "schema_version": 1,
        "cases": {"good": {"probes": ["ids"]}, "bad": {"probes": [1]}, "worse": "solved"},
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    file = CaseFile(path)
    assert file.read() == {"good": Attempt(probes=("ids",))}
    assert "2 cases of it cannot be read" in file.notes[0]
    assert json.loads(path.with_name("cases.json.damaged").read_text("utf-8")) == content
    assert CaseFile(path).read() == {"good": Attempt(probes=("ids",))}


def test_where_nothing_can_be_written_the_case_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "work").write_text("a file where the folder would be", encoding="utf-8")
    file = CaseFile(tmp_path / "work" / "cases.json")
    attempt = file.record("a", Attempt(probes=("ids",)), answers="loss")
    assert attempt == Attempt(probes=("ids",), answers=("loss",))
    assert capsys.readouterr().err.startswith("note: this was not kept: ")
