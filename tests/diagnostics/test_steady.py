"""Sentences without what differs from run to run, and nothing else of them changed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path, PureWindowsPath

import pytest

from diagnostics import Status
from diagnostics._steady import steady
from diagnostics._text import Text, say
from tests.diagnostics.test_report import report, result


class _Thing:
    pass


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("<Model object at 0x7f6947d11450> is odd", "<Model object at 0x...> is odd"),
        ("<function f at 0x000001F2A3B4C5D6>", "<function f at 0x...>"),
        ("a message that is cut <M object at 0x7f", "a message that is cut <M object at 0x..."),
        ("id 0x10 at position 4", "id 0x10 at position 4"),
        ("the loss at 0.5 is fine", "the loss at 0.5 is fine"),
        ("", ""),
    ],
)
def test_addresses_are_left_out(text: str, wanted: str) -> None:
    assert steady(text) == wanted


def test_folders_that_a_check_makes_are_left_out() -> None:
    for prefix in ("diagnostics-", "ranks-"):
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            path = Path(folder) / "model.pt"
            assert steady(f"no file {str(path)!r} here") == "no file '<temporary>/model.pt' here"
            assert steady(f"cut: {folder[:-3]}") == "cut: <temporary>"


def test_folders_of_the_user_stay() -> None:
    for path in ("/data/diagnostics-new/model.pt", str(Path(tempfile.gettempdir()) / "mine")):
        assert steady(path) == path


@pytest.mark.parametrize("doubled", [False, True])
def test_backslashes_of_a_path_may_be_doubled(
    doubled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = PureWindowsPath("C:/Users/a.b/Temp")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(root))
    path = str(root / "diagnostics-ab12_xyz" / "m")
    shown = repr(path) if doubled else path
    assert "ab12" not in steady(shown)
    assert "<temporary>" in steady(shown)


def test_a_sentence_becomes_plain_text() -> None:
    assert type(steady(say("{n} rows", n=3))) is str
    assert not isinstance(steady(say("at 0x12")), Text)


def test_two_objects_of_a_kind_give_the_same_report() -> None:
    """Whatever sentence quotes them, and as a number too."""

    def told(thing: _Thing) -> str:
        claim = say("it raised: {error}", error=f"bad {thing!r}")
        fields = {"measured": f"{thing!r}", "causes": (f"{thing!r}",), "numbers": {"it": thing}}
        one = result("shift", Status.ERROR, claim=claim, **fields)
        return report(one, notes=(f"{thing!r}",)).to_json()

    first, second = _Thing(), _Thing()
    assert repr(first) != repr(second)
    assert told(first) == told(second)
    assert json.loads(told(first))["results"][0]["claim_facts"]["error"].endswith("at 0x...>")


def test_numbers_that_are_text_are_the_users_data_and_stay() -> None:
    one = result("shift", Status.PASS, numbers={"row": "fault at 0x7fff"})
    assert json.loads(report(one).to_json())["results"][0]["numbers"]["row"] == "fault at 0x7fff"
