"""Zip files made to harm: each one costs little and leaves its good files, if any, unharmed."""

from __future__ import annotations

import io
import stat
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exercises.grade._file_rules import SubmissionLimits
from exercises.grade.submissions import Source, Submission, open_submission

GOOD = ("fix_shift.py", b"def fixed(): ...\n")
Change = Callable[[list[zipfile.ZipInfo]], None]


def packed(
    *members: tuple[str | zipfile.ZipInfo, bytes],
    change: Change | None = None,
    method: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """Return a zip; `change` edits what its table of contents will say."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content, method)
        if change is not None:
            change(archive.filelist)
    return file.getvalue()


def opened(content: bytes, limits: SubmissionLimits | None = None) -> Submission:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "alice.zip"
        path.write_bytes(content)
        source = Source(student_id="alice", path=path)
        into = Path(folder) / "into"
        submission = open_submission(source, into, limits=limits or SubmissionLimits())
        written = [path for path in Path(folder).rglob("*") if path.is_file()]
        names = {path.relative_to(into).as_posix() for path in written if path.name != "alice.zip"}
        assert names == set(submission.files)
        return submission


def outcome(submission: Submission) -> tuple[list[str], tuple[str, ...]]:
    reasons = [item.reason.removeprefix("submission.") for item in submission.notes]
    return reasons, submission.files


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../fix_loss.py", "slip"),
        ("a/../../fix_loss.py", "slip"),
        ("/tmp/fix_loss.py", "slip"),
        ("//server/fix_loss.py", "slip"),
        ("..\\fix_loss.py", "slip"),
        ("\\fix_loss.py", "slip"),
        ("C:/fix_loss.py", "slip"),
        ("C:fix_loss.py", "slip"),
        ("a\\fix_loss.py", "name"),
        ("fix_loss.py:stream", "name"),
        ("fix_loss.py.", "name"),
        ("fix_loss.py ", "name"),
        ("nul.py", "name"),
        ("COM1/x.txt", "name"),
        ("a\x1b[2J.txt", "name"),
        ("a\u202egpj.txt", "name"),
        ("a\n.txt", "name"),
        ("d/" * 9 + "x", "deep"),
        ("n" * 60_000, "long_name"),
    ],
)
def test_names_that_lead_elsewhere(name: str, reason: str) -> None:
    submission = opened(packed(GOOD, (name, b"x")))
    assert outcome(submission) == ([reason], ("fix_shift.py",))
    assert submission.notes[0].text.isprintable()
    assert len(submission.notes[0].text) < 250


def test_a_name_does_not_end_at_a_nul() -> None:
    """`zipfile` would call this one fix_loss.py."""
    content = packed(GOOD, ("fix_loss.py?.txt", b"x")).replace(b"fix_loss.py?", b"fix_loss.py\0")
    assert outcome(opened(content)) == (["name"], ("fix_shift.py",))


@pytest.mark.parametrize(
    ("mode", "reason"),
    [(stat.S_IFLNK | 0o777, "link"), (stat.S_IFIFO, "special"), (stat.S_IFCHR, "special")],
)
def test_members_that_are_no_files(mode: int, reason: str) -> None:
    info = zipfile.ZipInfo("check_shift.py")
    info.external_attr = mode << 16
    assert outcome(opened(packed(GOOD, (info, b"/etc/passwd")))) == ([reason], ("fix_shift.py",))


def test_a_bomb_is_not_unpacked() -> None:
    """100 MB of zeros take 100 kB in the zip; nothing of them is ever in memory."""
    content = packed(GOOD, ("zeros.bin", bytes(100_000_000)))
    tracemalloc.start()
    submission = opened(content, SubmissionLimits(total_bytes=1_000_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome(submission) == (["zip_bomb"], ("fix_shift.py",))
    assert submission.notes[0].facts["size"] == 100_000_000
    assert peak < 3_000_000


def test_many_small_bombs_stop_at_the_limit() -> None:
    """Each of the ten fits by itself, four fit together."""
    members = [(f"{i}.bin", bytes(240_000)) for i in range(10)]
    submission = opened(packed(GOOD, *members), SubmissionLimits(total_bytes=1_000_000))
    assert submission.files == ("0.bin", "1.bin", "2.bin", "3.bin", "fix_shift.py")
    assert outcome(submission)[0] == ["zip_bomb"] * 6


def test_a_graded_file_may_be_a_bomb_too() -> None:
    assert outcome(opened(packed(("fix_shift.py", bytes(2_000_000))))) == (
        ["zip_bomb", "empty"],
        (),
    )


def test_a_nested_bomb_stays_packed() -> None:
    inner = packed(("zeros.bin", bytes(30_000_000)))
    submission = opened(packed(GOOD, ("inner.zip", inner)))
    assert outcome(submission) == ([], ("fix_shift.py", "inner.zip"))


def test_a_member_that_unpacks_to_more_than_it_says() -> None:
    def lie(infos: list[zipfile.ZipInfo]) -> None:
        infos[1].file_size = 10

    content = packed(GOOD, ("zeros.bin", bytes(5_000_000)), change=lie)
    assert outcome(opened(content)) == (["broken_file"], ("fix_shift.py",))


def test_members_that_share_their_bytes() -> None:
    def share(infos: list[zipfile.ZipInfo]) -> None:
        for info in infos[1:]:
            info.header_offset = infos[0].header_offset

    members = [(f"{i}.bin", bytes(1000)) for i in range(3)]
    assert outcome(opened(packed(*members, GOOD, change=share))) == (["zip_bomb", "empty"], ())


def test_members_that_quote_the_next_one() -> None:
    def quote(infos: list[zipfile.ZipInfo]) -> None:
        infos[0].compress_size += 60

    content = packed(("a.bin", b"a" * 50), ("b.bin", b"b" * 50), GOOD, change=quote)
    assert outcome(opened(content)) == (["zip_bomb", "empty"], ())


def test_an_encrypted_member() -> None:
    def encrypt(infos: list[zipfile.ZipInfo]) -> None:
        infos[0].flag_bits |= 0x1

    content = packed(("check_shift.py", b"x"), GOOD, change=encrypt)
    assert outcome(opened(content)) == (["encrypted"], ("fix_shift.py",))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_may_ask_for_gigabytes(method: int) -> None:
    content = packed(("check_shift.py", b"x"), method=method)
    assert outcome(opened(content)) == (["compression", "empty"], ())


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_taken_from_neither() -> None:
    content = packed(GOOD, ("check_shift.py", b"honest"), ("check_shift.py", b"other"))
    submission = opened(content)
    assert outcome(submission) == (["duplicate"], ("fix_shift.py",))
    assert submission.notes[0].facts == {"name": "check_shift.py", "count": 2}


def test_names_that_are_one_on_some_systems() -> None:
    content = packed(GOOD, ("Data.txt", b"1"), ("data.TXT", b"2"), ("e\u0301", b"3"), ("é", b"4"))
    assert outcome(opened(content)) == (["duplicate"] * 3, ("fix_shift.py",))


def test_a_file_that_is_a_folder_too() -> None:
    content = packed(GOOD, ("a", b"1"), ("a/b", b"2"))
    assert outcome(opened(content)) == (["duplicate"], ("a/b", "fix_shift.py"))


def test_a_hundred_thousand_members() -> None:
    """Refused by the size of the table, before an object is made of each entry."""
    entry = struct.pack(
        "<4s4B4HL2L5H2L", b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0
    )
    table = b"".join(entry + b"%05d" % i for i in range(100_000))
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, len(table), 0, 0)
    content = table + end
    tracemalloc.start()
    submission = opened(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert outcome(submission) == (["too_many_files", "empty"], ())
    assert peak < 3_000_000


def test_more_members_than_the_limit() -> None:
    members = [(f"{i}.txt", b"") for i in range(1000)]
    assert outcome(opened(packed(*members, GOOD))) == (["too_many_files", "empty"], ())
    assert len(opened(packed(*members[1:], GOOD)).files) == 1000


def test_hidden_members_are_not_counted() -> None:
    members = [(f".git/objects/{i}", b"") for i in range(2000)]
    assert outcome(opened(packed(*members, GOOD))) == (["hidden"], ("fix_shift.py",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK",
        b"not a zip at all",
        b"PK\5\6" + bytes(18),
        packed(GOOD)[:-10],
        packed(GOOD)[:40],
        packed(GOOD).replace(b"PK\1\2", b"PK\1\3"),
        struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 46, 0xFFFFFFF0, 0),
    ],
    ids=["empty", "start", "text", "no members", "cut", "half", "table", "offset"],
)
def test_a_broken_zip_is_a_note(content: bytes) -> None:
    reasons, files = outcome(opened(content))
    assert files == ()
    assert reasons[-1] == "empty"
    assert reasons[:-1] in ([], ["broken_zip"])


def test_a_damaged_member_leaves_the_others() -> None:
    content = packed(("check_shift.py", b"honest"), GOOD, method=zipfile.ZIP_STORED)
    submission = opened(content.replace(b"honest", b"hOnest"))
    assert outcome(submission) == (["broken_file"], ("fix_shift.py",))


def test_folders_around_everything_are_seen_through() -> None:
    content = packed(
        ("hw/", b""),
        ("hw/alice/", b""),
        ("hw/alice/fix_shift.py", b"1"),
        ("hw/alice/lib/tools.py", b"2"),
        ("__MACOSX/hw/alice/._fix_shift.py", b"3"),
        ("hw/.DS_Store", b"4"),
    )
    assert outcome(opened(content)) == ([], ("fix_shift.py", "lib/tools.py"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_damage_is_survived(data: st.DataObject) -> None:
    """Bytes of a healthy zip are changed, cut and doubled: no exception, no file too many."""
    content = bytearray(packed(GOOD, ("a/b.txt", b"abc" * 30), ("model.py", b"x = 1\n")))
    places = st.integers(min_value=0, max_value=len(content) - 1)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        content[place] = value
    start, end = sorted(data.draw(st.tuples(places, places)))
    kind = data.draw(st.sampled_from(["none", "cut", "double"]))
    if kind == "cut":
        del content[start:end]
    if kind == "double":
        content[end:end] = content[start:end]
    submission = opened(bytes(content), SubmissionLimits(total_bytes=10_000))
    assert len(submission.files) <= 3


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=30), max_size=5))
def test_any_names_are_survived(names: list[str]) -> None:
    """Whatever the names, `opened` proves that every file lies in the private folder."""
    unique = {name.split("\0")[0] or "x": b"" for name in names}
    opened(packed(GOOD, *((name, b"x") for name in unique if name not in GOOD)))
