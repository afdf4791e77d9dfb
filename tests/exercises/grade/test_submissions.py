"""Finding submissions and opening folders; what zip files can do is in test_zip_attacks."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import unicodedata
import zipfile
from pathlib import Path

import pytest

from exercises.grade import submissions
from exercises.grade._file_rules import Part, SubmissionLimits
from exercises.grade._results import Kind
from exercises.grade.submissions import (
    Source,
    Submission,
    content_sha256,
    find_submissions,
    open_submission,
)
from minigpt._cli import CommandError

CHECK = b"def check(implementation):\n    pass\n"


def write(folder: Path, **files: bytes) -> Path:
    """Make a folder with files; __ stands for / and _dot_ for a dot in their names."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def opened(path: Path, *, limits: SubmissionLimits | None = None) -> Submission:
    into = path.parent / f"opened {path.name}"
    source = Source(student_id="alice", path=path)
    return open_submission(source, into, limits=limits or SubmissionLimits())


def reasons(submission: Submission) -> list[str]:
    return [item.reason for item in submission.notes]


def on_disk(submission: Submission) -> dict[str, bytes]:
    return {
        path.relative_to(submission.folder).as_posix(): path.read_bytes()
        for path in submission.folder.rglob("*")
        if path.is_file()
    }


# ---- finding ---------------------------------------------------------------------------------


def test_one_source_per_folder_and_zip(tmp_path: Path) -> None:
    for name in ("carol", "alice", ".git", "__MACOSX"):
        (tmp_path / name).mkdir()
    for name in ("bob.zip", "dave.ZIP", "grades.csv", ".DS_Store"):
        (tmp_path / name).write_bytes(b"")
    found = find_submissions(tmp_path)
    assert [(source.student_id, source.path.name) for source in found.sources] == [
        ("alice", "alice"),
        ("bob", "bob.zip"),
        ("carol", "carol"),
        ("dave", "dave.ZIP"),
    ]
    assert [(item.reason, item.text) for item in found.notes] == [
        (
            "submissions.ignored",
            "grades.csv is passed over: a submission is a folder or a .zip",
        )
    ]


def test_a_student_who_is_there_twice_is_graded_once(tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice.zip").write_bytes(b"")
    found = find_submissions(tmp_path)
    assert [source.path.name for source in found.sources] == ["alice"]
    assert [item.text for item in found.notes] == [
        "alice is there twice: alice is graded, alice.zip is not; remove one of them"
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="needs names that differ in case only")
def test_ids_that_differ_in_case_only_are_reported(tmp_path: Path) -> None:
    for name in ("Bob", "bob", "alice"):
        (tmp_path / name).mkdir()
    found = find_submissions(tmp_path)
    assert [source.student_id for source in found.sources] == ["Bob", "alice", "bob"]
    assert [(item.reason, item.facts) for item in found.notes] == [
        ("submissions.case", {"students": "Bob, bob"})
    ]


def test_ids_are_nfc(tmp_path: Path) -> None:
    (tmp_path / unicodedata.normalize("NFD", "José")).mkdir()
    assert find_submissions(tmp_path).sources[0].student_id == unicodedata.normalize("NFC", "José")


@pytest.mark.skipif(sys.platform != "linux", reason="needs names of any bytes")
def test_an_id_is_text_whatever_the_name_is(tmp_path: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xff\xfe"))).mkdir()
    source = find_submissions(tmp_path).sources[0]
    assert source.student_id == "a%FF%FE"
    assert reasons(open_submission(source, tmp_path / "into")) == ["submission.empty"]


def test_other_archives_are_students_with_nothing(tmp_path: Path) -> None:
    """They get a row and a reason, not silence."""
    for name in ("alice.7z", "bob.tar.gz"):
        (tmp_path / name).write_bytes(b"")
    sources = find_submissions(tmp_path).sources
    assert [source.student_id for source in sources] == ["alice", "bob"]
    submission = open_submission(sources[0], tmp_path / "into")
    assert (submission.parts, submission.files) == ((), ())
    assert reasons(submission) == ["submission.archive", "submission.empty"]


def test_a_link_among_the_submissions_is_not_followed(tmp_path: Path) -> None:
    write(tmp_path / "alice", check_shift_dot_py=CHECK)
    (tmp_path / "mallory").symlink_to(tmp_path / "alice")
    source = find_submissions(tmp_path).sources[1]
    assert source.student_id == "mallory"
    submission = open_submission(source, tmp_path / "into")
    assert submission.files == ()
    assert reasons(submission) == ["submission.link", "submission.empty"]


def test_one_student(tmp_path: Path) -> None:
    write(tmp_path / "work", check_shift_dot_py=CHECK)
    assert find_submissions(tmp_path / "work", student="alice").sources == (
        Source(student_id="alice", path=tmp_path / "work"),
    )


def test_a_folder_that_holds_no_submissions(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"is no folder; give the one that holds"):
        find_submissions(tmp_path / "nowhere")
    with pytest.raises(CommandError, match=r"there is no submission .*nowhere; check the name"):
        find_submissions(tmp_path / "nowhere", student="alice")
    with pytest.raises(CommandError, match=r"it holds no folder and no \.zip per student"):
        find_submissions(tmp_path)
    write(tmp_path, check_shift_dot_py=CHECK)
    with pytest.raises(CommandError, match=r"is the submission of one student; .*--student NAME"):
        find_submissions(tmp_path)


# ---- opening a folder ------------------------------------------------------------------------


def test_what_is_graded_and_what_goes_along(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "alice",
        check_break_shift_dot_py=b"1",
        fix_loss_dot_py=b"2",
        model_dot_py=b"3",
        answers_dot_json=b"{}",
        helpers_dot_py=b"4",
        data__corpus_dot_txt=b"5",
    )
    submission = opened(folder)
    assert submission.parts == (
        Part(Kind.ANSWERS, "answers", "answers.json"),
        Part(Kind.CHECK, "shift", "check_shift.py"),
        Part(Kind.FIX, "loss", "fix_loss.py"),
        Part(Kind.MODEL, "model", "model.py"),
    )
    contents = {
        "answers.json": b"{}",
        "check_shift.py": b"1",
        "data/corpus.txt": b"5",
        "fix_loss.py": b"2",
        "helpers.py": b"4",
        "model.py": b"3",
    }
    assert on_disk(submission) == contents
    assert submission.files == tuple(contents)
    assert submission.sha256 == content_sha256(contents)
    assert submission.notes == ()


def test_the_digest_is_of_names_and_contents() -> None:
    digest = hashlib.sha256()
    for piece in (b"a", b"1", b"b", b"22"):
        digest.update(len(piece).to_bytes(8, "big") + piece)
    assert content_sha256({"b": b"22", "a": b"1"}) == digest.hexdigest()
    assert content_sha256({"a": b"1b"}) != content_sha256({"a1": b"b"})


def test_a_folder_and_a_zip_of_it_are_the_same_submission(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", fix_shift_dot_py=b"1", data__x_dot_txt=b"2")
    zipped = tmp_path / "b.zip"
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("alice/data/x.txt", (1999, 1, 1, 0, 0, 0)), b"2")
        archive.writestr("alice/fix_shift.py", b"1")
        archive.writestr("__MACOSX/alice/._fix_shift.py", b"junk")
    left, right = opened(folder), opened(zipped)
    assert left.sha256 == right.sha256
    assert on_disk(left) == on_disk(right) == {"fix_shift.py": b"1", "data/x.txt": b"2"}
    assert left.notes == right.notes == ()


def test_links_and_special_files_stay_behind(tmp_path: Path) -> None:
    other = write(tmp_path / "bob", check_shift_dot_py=CHECK)
    folder = write(tmp_path / "alice", model_dot_py=b"")
    (folder / "check_shift.py").symlink_to(other / "check_shift.py")
    (folder / "passwd").symlink_to("/etc/passwd")
    (folder / "friend").symlink_to(other)
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(os.path.relpath(folder / "socket"))
        submission = opened(folder)
    assert on_disk(submission) == {"model.py": b""}
    assert [(item.reason, item.facts["name"]) for item in submission.notes] == [
        ("submission.link", "check_shift.py"),
        ("submission.link", "friend"),
        ("submission.link", "passwd"),
        ("submission.special", "pipe"),
        ("submission.special", "socket"),
    ]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("conftest.py", "startup"),
        ("tests/conftest.py", "startup"),
        ("sitecustomize.py", "startup"),
        ("usercustomize.py", "startup"),
        ("evil.pth", "startup"),
        ("helpers.pyc", "cache"),
        ("__pycache__/helpers.cpython-311.pyc", "cache"),
        (".env", "hidden"),
        (".git/config", "hidden"),
        ("json.py", "shadow"),
        ("JSON.py", "shadow"),
        ("torch.py", "shadow"),
        ("torch/__init__.py", "shadow"),
        ("numpy/linalg.py", "shadow"),
        ("diagnostics/shift.py", "shadow"),
        ("exercises/grade.py", "shadow"),
        ("minigpt.py", "shadow"),
        ("random.cpython-311-x86_64-linux-gnu.so", "shadow"),
        ("encodings.zip", "shadow"),
        ("sub/check_shift.py", "misplaced"),
        ("Check_Shift.py", "misnamed"),
        ("check_loss (1).py", "misnamed"),
        ("check_shfit.py", "misnamed"),
        ("fix_gremlins.py", "unknown_exercise"),
    ],
)
def test_what_stays_behind_or_is_not_graded(tmp_path: Path, name: str, reason: str) -> None:
    folder = write(tmp_path / "alice", check_range_dot_py=CHECK)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    submission = opened(folder)
    assert reasons(submission) == [f"submission.{reason}"]
    assert submission.parts == (Part(Kind.CHECK, "range", "check_range.py"),)
    kept = reason in ("misplaced", "misnamed", "unknown_exercise")
    assert (name in submission.files) == kept


def test_a_note_says_what_to_do(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "alice",
        json_dot_py=b"",
        check_shfit_dot_py=b"",
        sub__fix_loss_dot_py=b"",
    )
    assert [item.text for item in opened(folder).notes] == [
        "check_shfit.py is not graded under this name; rename it to check_shift.py",
        "json.py is left out: it would take the place of the module json; rename it",
        "sub/fix_loss.py is not graded there; put it at the top of the submission",
        "there is nothing to grade: no fix_<exercise>.py, check_<exercise>.py, model.py or "
        "answers.json",
    ]


def test_data_may_have_any_name(tmp_path: Path) -> None:
    """Only what Python could import shadows a module."""
    folder = write(tmp_path / "alice", model_dot_py=b"", random_dot_txt=b"", json_dot_json=b"")
    assert opened(folder).files == ("json.json", "model.py", "random.txt")


def test_a_hidden_folder_is_one_note(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", model_dot_py=b"")
    for i in range(50):
        (folder / ".git" / str(i)).mkdir(parents=True)
    assert [item.facts for item in opened(folder).notes] == [{"name": ".git"}]


def test_two_names_of_one_exercise_are_none(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", fix_shift_dot_py=b"1", fix_break_shift_dot_py=b"2")
    submission = opened(folder)
    assert submission.files == ()
    assert [(item.reason, item.facts) for item in submission.notes][:2] == [
        ("submission.duplicate", {"name": "fix_break_shift.py", "count": 2}),
        ("submission.duplicate", {"name": "fix_shift.py", "count": 2}),
    ]


def test_graded_files_come_before_data(tmp_path: Path) -> None:
    """The limit is 100 bytes: both graded files fit, then a.bin does not, then b.bin does."""
    folder = write(
        tmp_path / "alice",
        a_dot_bin=b"a" * 61,
        b_dot_bin=b"b" * 60,
        fix_shift_dot_py=b"f" * 20,
        model_dot_py=b"m" * 20,
    )
    submission = opened(folder, limits=SubmissionLimits(total_bytes=100))
    assert submission.files == ("b.bin", "fix_shift.py", "model.py")
    assert [(item.reason, item.facts) for item in submission.notes] == [
        ("submission.too_large", {"name": "a.bin", "size": 61, "limit": 60})
    ]


def test_a_graded_file_has_a_limit_of_its_own(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", fix_shift_dot_py=b"#" * 1001)
    submission = opened(folder, limits=SubmissionLimits(graded_file_bytes=1000))
    assert reasons(submission) == ["submission.too_large", "submission.empty"]


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", **{f"f{i}": b"" for i in range(10)}, model_dot_py=b"")
    assert len(opened(folder, limits=SubmissionLimits(files=11)).files) == 11
    (folder / "one_more").write_bytes(b"")
    source = Source(student_id="alice", path=folder)
    limits = SubmissionLimits(files=11)
    submission = open_submission(source, tmp_path / "again", limits=limits)
    assert submission.files == ()
    assert reasons(submission) == ["submission.too_many_files", "submission.empty"]


def test_depth_and_length_of_names(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", model_dot_py=b"", a__b__c=b"", a__b__c_d__e=b"")
    (folder / ("n" * 21)).write_bytes(b"")
    submission = opened(folder, limits=SubmissionLimits(depth=2, name_bytes=20))
    assert submission.files == ("a/b/c", "model.py")
    assert [(item.reason, item.facts["limit"]) for item in submission.notes] == [
        ("submission.deep", 2),
        ("submission.long_name", 20),
    ]


def test_folders_that_hold_everything_are_seen_through(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", hw1__alice__model_dot_py=b"", hw1__alice__x__y=b"")
    assert opened(folder).files == ("model.py", "x/y")


def test_many_notes_are_cut(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", model_dot_py=b"")
    for i in range(submissions.NOTES_MAX + 5):
        (folder / f"link{i}").symlink_to("/etc/passwd")
    notes = opened(folder).notes
    assert len(notes) == submissions.NOTES_MAX + 1
    assert notes[-1].text == "5 more files are left out"


def test_the_private_folder_is_new_and_ours_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "alice", model_dot_py=b"")
    submission = opened(folder)
    assert submission.folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        open_submission(Source(student_id="alice", path=folder), submission.folder)


def test_a_submission_that_has_gone_is_empty(tmp_path: Path) -> None:
    submission = opened(tmp_path / "gone")
    assert reasons(submission) == ["submission.broken_zip", "submission.empty"]
