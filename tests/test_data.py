"""The built-in corpus is what its README says it is, byte for byte."""

import hashlib
import json
import math
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[1] / "data"
GUIDE = DATA / "guide.txt"

STAGES = (
    *("environment", "files", "tokenizer", "token ids", "batches", "shapes", "initial loss"),
    *("gradients", "optimizer", "validation", "checkpoints", "generation"),
)
CHECKS = (
    *("environment", "files", "roundtrip", "fingerprint", "range", "text", "split", "shift"),
    *("batches", "modes", "shapes", "forward_hooks", "loss", "initial_loss"),
    *("batch_independence", "causal_independence", "prefix", "positions", "context", "padding"),
    *("gradients", "optimizer", "training_step", "accumulation", "distributed", "schedule"),
    *("evaluation", "checkpoint", "resume", "generation", "sampling", "overfit", "honesty"),
)
CHECK_PARTS = ("Why it matters.", "How it is measured.", "How to read it.", "What it cannot see.")
HEADING = re.compile(r" (?P<left>=(?: =){0,2}) (?P<title>[^=]*[^= ]) (?P<right>=(?: =){0,2}) ")


@pytest.fixture(scope="module")
def guide() -> str:
    """Return the guide; reading it strictly is itself the test that it is valid UTF-8."""
    return GUIDE.read_bytes().decode("utf-8", errors="strict")


@pytest.fixture(scope="module")
def lines(guide: str) -> list[str]:
    """Return the lines without the empty string after the last newline."""
    return guide.split("\n")[:-1]


def test_readme_figures(guide: str) -> None:
    """README.md states the size, the characters, the vocabulary and the digest of the file."""
    raw = GUIDE.read_bytes()
    readme = (DATA / "README.md").read_text(encoding="utf-8")
    digest = hashlib.sha256(raw).hexdigest()
    row = f"| `guide.txt` | {len(raw)} | {len(guide)} | {len(set(guide))} | `{digest}` |"
    assert row in readme.splitlines()
    assert f"near ln {len(set(guide))}." in readme


def test_sha256sums() -> None:
    """SHA256SUMS has one line for the guide, in the format of sha256sum."""
    digest = hashlib.sha256(GUIDE.read_bytes()).hexdigest()
    assert (DATA / "SHA256SUMS").read_bytes() == f"{digest}  guide.txt\n".encode("ascii")


def test_size_and_vocabulary(guide: str) -> None:
    """At least 80 KB, fewer than 100 distinct characters, a few of them outside ASCII."""
    outside = {character for character in guide if not character.isascii()}
    assert len(guide.encode("utf-8")) >= 80_000
    assert len(set(guide)) < 100
    assert 1 <= len(outside) <= 5


def test_training_part_holds_every_character(guide: str) -> None:
    """Validation and test hold no character that the training part does not hold."""
    assert set(guide) == set(guide[: len(guide) * 9 // 10])


def test_line_ends(guide: str) -> None:
    """LF only, one newline at the end, no other control character, no double blank line."""
    assert guide.endswith("\n")
    assert not guide.endswith("\n\n")
    assert "\n\n\n" not in guide
    assert {c for c in guide if c < " " or "\x7f" <= c <= "\x9f"} == {"\n"}
    assert not guide.startswith("\ufeff")


def test_spaces_at_line_ends(lines: list[str]) -> None:
    """A heading begins and ends with one space; code begins with four; all else with none."""
    for number, line in enumerate(lines, start=1):
        if HEADING.fullmatch(line):
            continue
        assert line == line.rstrip(), f"line {number} ends with a space"
        indent = len(line) - len(line.lstrip(" "))
        assert indent in (0, 4), f"line {number} is indented by {indent}"
        assert "  " not in line.strip(), f"line {number} holds a double space"


def test_headings(lines: list[str]) -> None:
    """Lines that look like headings are headings, balanced, alone, and no level is skipped."""
    levels: list[int] = []
    for i, line in enumerate(lines):
        if not line.lstrip(" ").startswith("="):
            continue
        match = HEADING.fullmatch(line)
        assert match is not None, f"line {i + 1} looks like a heading and is not one: {line!r}"
        assert match["left"] == match["right"]
        assert i == 0 or lines[i - 1] == ""
        assert lines[i + 1] == ""
        levels.append(match["left"].count("="))
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert HEADING.fullmatch(lines[-1]) is None


def test_heading_titles_are_unique(lines: list[str]) -> None:
    """No two sections share a title, so a title is an address."""
    titles = Counter(match["title"] for line in lines if (match := HEADING.fullmatch(line)))
    assert [title for title, count in titles.items() if count > 1] == []


def test_every_stage_has_a_chapter_in_order(lines: list[str]) -> None:
    """The twelve stages are chapters, numbered in the order of the pipeline."""
    chapters = [line for line in lines if line.startswith(" = = Stage ")]
    wanted = [f" = = Stage {i}: {name} = = " for i, name in enumerate(STAGES, start=1)]
    assert chapters == wanted


def test_every_chapter_ends_with_a_self_test(guide: str) -> None:
    """The last section of each chapter asks questions, and each has its answer beside it."""
    for chapter in _chapters(guide)[1:]:
        title = chapter.split(" = = ")[0]
        *_, last = re.split(r"\n = = = ", chapter)
        assert last.startswith("Self-test: "), f"chapter {title!r} has no self-test at its end"
        questions = [line for line in last.split("\n\n")[1:] if line]
        assert len(questions) >= 2
        for question in questions:
            assert question.startswith("Question. ")
            assert question.count(" Answer. ") == 1


@pytest.mark.parametrize("check", CHECKS)
def test_every_check_has_a_section(guide: str, check: str) -> None:
    """A check has one section, with the four parts that say what it is good for, in order."""
    heading = f"\n = = = The check {check} = = = \n"
    assert guide.count(heading) == 1
    section = guide.split(heading)[1].split("\n = ", maxsplit=1)[0]
    starts = [section.find(f"\n{part} ") for part in CHECK_PARTS]
    assert -1 not in starts
    assert starts == sorted(starts)


def test_no_unknown_check_section(lines: list[str]) -> None:
    """The guide describes these checks and no others."""
    found = [line.split()[5] for line in lines if line.startswith(" = = = The check ")]
    assert found == list(CHECKS)


def test_no_paragraph_twice(lines: list[str]) -> None:
    """No paragraph and no sentence of some length is repeated: filler would inflate every score."""
    paragraphs = Counter(line for line in lines if line)
    assert [text for text, count in paragraphs.items() if count > 1] == []
    sentences = Counter(s for line in lines for s in re.split(r"(?<=[.?:]) ", line) if len(s) > 60)
    assert [text for text, count in sentences.items() if count > 1] == []


def test_figures_about_the_text_itself(guide: str) -> None:
    """What the guide says of its own letter frequencies is true of it."""
    counts = Counter(guide)
    shares = [count / len(guide) for count in counts.values()]
    entropy_nats = -sum(share * math.log(share) for share in shares)
    assert f"On the text you are reading its loss is about {entropy_nats:.2f}," in guide
    assert max(counts, key=counts.__getitem__) == " "
    assert f"is right in about {100 * counts[' '] / len(guide):.0f} cases of 100." in guide


@pytest.mark.parametrize("chars", [["a", "b"], ["b", "a"]])
def test_fingerprint_examples(guide: str, chars: list[str]) -> None:
    """The two fingerprints printed in the guide follow from the definition printed above them."""
    text = json.dumps(chars, ensure_ascii=False, separators=(",", ":"))
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    assert f"list {', '.join(chars)} has" in guide
    assert f"begins with {digest[:8]}" in guide


@pytest.mark.parametrize("size", [65, 86, 100, 256, 32_000, 50_257])
def test_baselines(guide: str, size: int) -> None:
    """The expected first losses in the guide are the logarithms they claim to be."""
    stated = re.findall(rf"ln {size:,}(?: is|, which is) (\d+\.\d{{3}})", guide)
    assert set(stated) == {f"{math.log(size):.3f}"}


def _chapters(guide: str) -> list[str]:
    """Return the text of each chapter, without the marks before its title; item 0 precedes them."""
    return re.split(r"\n = = (?!=)", guide)
