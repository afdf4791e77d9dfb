"""Requests for help from reports made by hand: what they hold, and what cannot break them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from diagnostics._report import Report
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._versions import measure_versions, render_facts
from diagnostics.help.ask import _privacy, write_help_request
from diagnostics.help.ask._command import _TRAIN_FLAGS, add_flags, recipe_of, reproduce_command
from diagnostics.help.ask._markdown import fence, span
from diagnostics.help.ask._privacy import shorten_paths
from diagnostics.help.ask._target_source import read_target_source
from diagnostics.help.ask._text import FILL_IN

ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "cuda_devices": [], "mps_available": False}
SHIFT = verdict(
    Status.FAIL,
    "shift.identical",
    "the targets equal the inputs: the model is trained to copy what it reads",
    measured="100 % of targets equal their own input",
    expected="100 % of targets equal the input 1 place later",
    where="first at row 0, column 0",
    causes=("the batch lacks the shift by one",),
    next_step="return data[start + 1 : start + T + 1] as targets",
)
BATCHES = CheckResult(
    check="batches",
    status=Status.FAIL,
    reason="batches.edge",
    claim="the last window is never drawn",
    consequence_of="shift",
)
PASS = verdict(Status.PASS, "shapes.ok", "logits are (B, T, 65)")
WARN = verdict(Status.WARN, "context.bigram", "predictions use their own token only")
SKIP = verdict(
    Status.SKIP,
    "padding.missing_part",
    "not measured: there is no pad_id",
    next_step="to unlock it, give Pipeline pad_id",
)
ERROR = verdict(
    Status.ERROR,
    "loss.raised",
    "the check could not finish: ValueError: no room",
    where="mine.py:17 in forward: raise ValueError",
)


def content(*results: CheckResult, **environment: Any) -> dict[str, Any]:
    return Report(results=results, environment=ENVIRONMENT | environment).to_dict()


def request(*results: CheckResult, command: str = "python -m diagnostics", **how: Any) -> str:
    return write_help_request(content(*results), command=command, **how)


def section(text: str, title: str) -> str:
    return text.partition(f"\n## {title}\n\n")[2].partition("\n## ")[0].strip()


# ---- what a request holds --------------------------------------------------------------------


def test_the_title_is_the_first_failure() -> None:
    text = request(SHIFT, BATCHES, PASS)
    assert text.startswith(
        "# `shift` fails: `the targets equal the inputs: the model is trained to copy what it "
        "reads`\n"
    )


def test_the_first_failure_comes_in_full() -> None:
    assert section(request(PASS, SHIFT), "Expected and actual") == (
        "Check `shift`, stage `batches`, reason `shift.identical`.\n"
        "\n"
        "Expected:\n"
        "\n"
        "```text\n"
        "100 % of targets equal the input 1 place later\n"
        "```\n"
        "\n"
        "Actual:\n"
        "\n"
        "```text\n"
        "the targets equal the inputs: the model is trained to copy what it reads\n"
        "measured: 100 % of targets equal their own input\n"
        "where: first at row 0, column 0\n"
        "```\n"
        "\n"
        "What could produce these numbers, most likely first:\n"
        "\n"
        "```text\n"
        "1. the batch lacks the shift by one\n"
        "```\n"
        "\n"
        "Next step that the report names:\n"
        "\n"
        "```text\n"
        "return data[start + 1 : start + T + 1] as targets\n"
        "```\n"
        "\n"
        "**FILL IN:** what did you want to do, and what did you see yourself?"
    )


def test_other_findings_take_one_line_each() -> None:
    """A consequence names its cause and nothing else; a failure of its own says its numbers."""
    late = verdict(Status.FAIL, "resume.differs", "two runs differ", measured="by 0.2")
    text = request(SHIFT, BATCHES, late, WARN)
    assert section(text, "Other failures") == (
        "- `resume` (`resume.differs`): `two runs differ`; measured `by 0.2`\n"
        "- `batches`: likely a consequence of `shift`"
    )
    assert section(text, "Warnings") == (
        "- `context` (`context.bigram`): `predictions use their own token only`"
    )


def test_what_passed_and_what_is_missing_is_named() -> None:
    assert section(request(SHIFT, PASS, SKIP), "What else was measured") == (
        "Passed, 1: `shapes`.\n"
        "\n"
        "Not measured, 1:\n"
        "\n"
        "- `padding`: `to unlock it, give Pipeline pad_id`"
    )


def test_the_command_has_its_seed_and_a_shorter_one() -> None:
    text = section(request(SHIFT), "How to reproduce")
    assert "```sh\npython -m diagnostics --seed 42\n```" in text
    assert "The seed, 42, fixes every draw of the checks." in text
    assert "```sh\npython -m diagnostics --seed 42 --only shift\n```" in text


def test_a_stored_report_leaves_its_command_to_the_person() -> None:
    assert section(request(SHIFT, command=""), "How to reproduce") == (
        "**FILL IN:** the command that wrote the report; its seed was 42."
    )


def test_an_error_shows_where_it_was_raised_and_its_traceback() -> None:
    report = content(ERROR)
    report["results"][0]["traceback"] = 'Traceback\n  File "mine.py", line 17\nValueError: no room'
    text = write_help_request(report, command="x")
    assert text.startswith("# `loss` raises: `the check could not finish: ValueError: no room`\n")
    body = section(text, "Expected and actual")
    assert "```text\nthe check comes to its end\n```" in body
    assert "where: mine.py:17 in forward: raise ValueError\n" in body
    assert '```text\nTraceback\n  File "mine.py", line 17\nValueError: no room\n```' in body
    assert "point to a cause" not in body


def test_a_failure_that_no_report_names_first_is_told_all_the_same() -> None:
    """A file that was edited may lack its first failure."""
    report = content(PASS, BATCHES) | {"first_failure": None}
    assert write_help_request(report, command="x").startswith("# `batches` fails: `the last window")


def test_a_failure_without_cause_says_so() -> None:
    bare = verdict(Status.FAIL, "shift.unclear", "unclear")
    assert "The numbers do not point to a cause." in request(bare)


def test_a_healthy_report_asks_for_the_symptom() -> None:
    text = request(PASS, WARN, SKIP)
    assert text.startswith("# **FILL IN:** in one line, what goes wrong (nothing fails)\n")
    body = section(text, "Expected and actual")
    assert body.startswith("Nothing failed: 2 checks of 3 measured something, and all of them")
    assert '`python -m diagnostics --symptom "what you see"`' in body
    assert "- [ ] expected against actual" in text
    assert "--only" not in text


def test_a_report_that_measured_nothing_says_so() -> None:
    text = request(SKIP)
    assert "what goes wrong (nothing could be measured)\n" in text
    assert "Nothing could be measured: each of the checks lacks a part" in text
    assert "`padding`: `to unlock it, give Pipeline pad_id`" in text


def test_the_example_is_the_target_s_source() -> None:
    text = request(SHIFT, target_source="def make():\n\treturn 1\n")
    assert "```python\ndef make():\n\treturn 1\n```" in section(text, "Minimal example")
    assert "- [x] a minimal example" in text


def test_a_long_example_is_cut_at_a_line_and_says_so() -> None:
    text = request(SHIFT, target_source="x = 1234\n" * 5000)
    assert "the code was cut here" in section(text, "Minimal example")
    assert len(text) < 25_000


def test_without_an_example_the_person_is_asked_for_one() -> None:
    text = request(SHIFT)
    assert section(text, "Minimal example") == (
        "**FILL IN:** the shortest code and data that still show it."
    )
    assert "- [ ] a minimal example" in text


def test_a_mini_gpt_is_reproduced_by_its_commands() -> None:
    recipe = recipe_of(
        {"vocab_size": 65, "block_size": 32, "dropout": 0.0},
        {"max_steps": 300, "learning_rate": 0.001, "log_every": 50, "seed": 42},
    )
    text = request(SHIFT, recipe=recipe)
    assert (
        "```sh\n"
        "python -m minigpt.prepare --text YOUR_TEXT.txt\n"
        "python -m minigpt.train --block-size 32 --dropout 0.0 --max-steps 300 "
        "--learning-rate 0.001 --seed 42\n"
        "python -m diagnostics --seed 42\n"
        "```"
    ) in text
    assert "a Mini-GPT of this library" in section(text, "Minimal example")


def test_the_train_command_knows_each_of_these_flags(capsys: pytest.CaptureFixture[str]) -> None:
    from minigpt.train import main

    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')} " in known for name in _TRAIN_FLAGS)


def test_the_environment_is_the_report_s_own() -> None:
    """A stored report may come from another machine."""
    text = request(SHIFT, packages={"torch": "9.9", "tqdm": "4.70"})
    assert section(text, "Environment") == (
        "```text\n"
        "torch          2.13.0\n"
        "tqdm           4.70\n"
        "python         3.11.7\n"
        "cuda devices   none\n"
        "mps available  no\n"
        "```"
    )
    bare = content(SHIFT) | {"environment": {}}
    assert "the output of `python -m diagnostics --env`" in write_help_request(bare, command="x")


def test_the_ten_figures_are_there_and_a_long_list_is_cut() -> None:
    names = [f"blocks.{n}.weight" for n in range(8)]
    gradients = verdict(Status.FAIL, "gradients.missing", "8 get none", numbers={"missing": names})
    figures = section(request(gradients), "Figures of the run")
    assert len(figures.splitlines()) == 12
    assert "missing gradients        blocks.0.weight, blocks.1.weight" in figures
    assert "blocks.4.weight and 3 more\n" in figures
    assert "initial loss             not measured" in figures


def test_what_was_measured_stands_below_the_figures_with_short_digests() -> None:
    subject = {"model": "GPT", "parameters": 10_000, "weights_sha256": "ab" * 32}
    subject |= {"val_ids_sha256": None, "options": {"only": None, "skip": ["loss"], "fast": True}}
    text = write_help_request(content(SHIFT) | {"subject": subject}, command="x")
    assert section(text, "Figures of the run").partition("Measured on, and how:\n\n")[2] == (
        "```text\n"
        "model                    GPT\n"
        "parameters               10,000\n"
        "weights, SHA-256         abababababab...\n"
        "validation ids, SHA-256  not known\n"
        "only                     all\n"
        "skip                     loss\n"
        "fast                     yes\n"
        "```"
    )


@pytest.mark.parametrize("known", [{}, {"subject": {}}, {"subject": {"tomorrow": 1}}])
def test_a_report_without_a_subject_asks_without_it(known: dict[str, Any]) -> None:
    old = {name: value for name, value in content(SHIFT).items() if name != "subject"}
    assert "Measured on" not in write_help_request(old | known, command="x")


def test_the_checklist_says_how_to_find_the_latest_version() -> None:
    text = request(SHIFT)
    assert "`python -m pip list --outdated`" in section(text, "Before posting")
    assert "- [x] the seed is fixed: 42" in text
    assert f"- [ ] {FILL_IN} what you tried already" in text


def test_versions_are_read_without_an_import() -> None:
    versions = measure_versions()
    assert {"minigpt_diagnostics", "safetensors", "tqdm"} <= versions.keys()
    assert render_facts({}) == ""


# ---- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ([], "python -m diagnostics"),
        (["--ask"], "python -m diagnostics"),
        (["--ask", "out.md", "--fast"], "python -m diagnostics --fast"),
        (["--json", "r.json", "--seed", "7"], "python -m diagnostics --seed 7"),
        (["--html=r.html", "--only", "shift"], "python -m diagnostics --only shift"),
        (["--target", "my file.py:make"], "python -m diagnostics --target 'my file.py:make'"),
    ],
)
def test_flags_that_write_files_are_left_out(arguments: list[str], command: str) -> None:
    assert reproduce_command(arguments) == command


def test_flags_that_are_given_are_not_given_again() -> None:
    assert add_flags("x --seed 7", seed=42) == "x --seed 7"
    assert add_flags("x --seed=7", seed=42) == "x --seed=7"
    assert add_flags("x --only loss", only="shift") == "x --only loss"
    assert add_flags("x", seed=42, only="a b; rm") == "x --seed 42 --only 'a b; rm'"
    assert add_flags("x 'open", seed=42) == "x 'open"


# ---- the source of a target ------------------------------------------------------------------


def test_a_short_file_comes_whole(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("import os\n\n\ndef make():\n    return 1\n", encoding="utf-8")
    assert read_target_source(f"{path}:make") == path.read_text(encoding="utf-8")


def test_a_long_file_is_cut_down_to_what_the_function_needs(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        '"""Notes."""\n'
        "from __future__ import annotations\n"
        "import os\n"
        "import torch\n"
        "from torch import nn\n"
        "torch.manual_seed(1)\n"
        "WIDTH = 8\n"
        "UNUSED = 9\n"
        "@decorate\n"
        "class Model(nn.Module):\n"
        "    width = WIDTH\n"
        "def other():\n"
        "    return os.getcwd()\n"
        "def make():\n"
        "    return Model(torch.zeros(1))\n" + "# filler\n" * 200,
        encoding="utf-8",
    )
    assert read_target_source(f"{path}:make") == (
        "from __future__ import annotations\n"
        "import torch\n"
        "from torch import nn\n"
        "\n"
        "torch.manual_seed(1)\n"
        "\n"
        "WIDTH = 8\n"
        "\n"
        "@decorate\n"
        "class Model(nn.Module):\n"
        "    width = WIDTH\n"
        "\n"
        "def make():\n"
        "    return Model(torch.zeros(1))\n"
    )
    assert read_target_source(f"{path}:none") is None


@pytest.mark.parametrize("text", ["def broken(:\n", "x = '\0'\n"])
def test_a_file_that_cannot_be_read_gives_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(text, encoding="utf-8")
    assert path.exists()
    source = read_target_source(f"{path}:make")
    assert source is None
    assert read_target_source(f"{tmp_path / 'none.py'}:make") is None
    assert read_target_source(f"{tmp_path}.py:make") is None
    assert read_target_source("no_such_module_here:make") is None
    assert read_target_source("..:make") is None
    assert read_target_source("make") is None


def test_a_module_is_found_by_its_name() -> None:
    source = read_target_source("diagnostics.help.ask._markdown:span")
    assert source is not None
    assert "def span(text: str) -> str:" in source


# ---- nothing breaks the page, nothing gives a person away ------------------------------------

HOSTILE = (
    "``` ````x \n# head <script>alert(1)</script> @everyone #1 ![](http://x) [a](b) | \x1b[31m"
    "\u202eabc\ud800 ~~~ \r\n- item\n`"
)


def test_hostile_text_stays_in_spans_and_fences() -> None:
    """With spans and fences taken out, not one of its words is left."""
    bad = verdict(
        Status.FAIL,
        f"shift.{HOSTILE}",
        HOSTILE,
        measured=HOSTILE,
        expected=HOSTILE,
        where=HOSTILE,
        causes=(HOSTILE,),
        next_step=HOSTILE,
    )
    more = verdict(Status.FAIL, f"loss.{HOSTILE}", HOSTILE, measured=HOSTILE, expected=HOSTILE)
    skip = verdict(Status.SKIP, "padding.missing_part", HOSTILE, next_step=HOSTILE)
    warn = verdict(Status.WARN, f"context.{HOSTILE}", HOSTILE)
    report = content(bad, more, skip, warn, **{HOSTILE: HOSTILE})
    report["subject"] = {
        "model": HOSTILE,
        "weights_sha256": HOSTILE,
        "options": {"only": [HOSTILE]},
    }
    report["debug"] = {HOSTILE: [HOSTILE], "b": HOSTILE}
    text = write_help_request(
        report, command=shlex.join(["x", HOSTILE]), target_source=HOSTILE, recipe=(HOSTILE,)
    )
    text.encode("utf-8")
    assert all(line.replace("\t", "").isprintable() for line in text.split("\n"))
    left = without_code(text)
    for word in ("script", "everyone", "http", "head", "[a]", "item", "~~~"):
        assert word not in left, word


def without_code(markdown: str) -> str:
    """Return what Markdown would read as markup: all but fences and spans, as its rules have them.

    A fence ends at a line with at least as many backticks and nothing else; a span ends at a row
    of just as many backticks.
    """
    kept, closing = [], None
    for line in markdown.split("\n"):
        opened = re.match(r"(`{3,})[^`]*$", line)
        if closing is not None:
            closing = None if re.fullmatch(rf"`{{{closing},}}", line.strip()) else closing
        elif opened:
            closing = len(opened[1])
        else:
            kept.append(re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", line))
    assert closing is None
    return "\n".join(kept)


def test_spans_and_fences_are_longer_than_what_they_hold() -> None:
    assert span("a") == "`a`"
    assert span("a`b``c") == "```a`b``c```"
    assert span("`") == "`` ` ``"
    assert span("") == "` `"
    assert span("a\n b") == "`a b`"
    assert fence("a\n````\nb\n") == "`````text\na\n````\nb\n`````"
    assert fence("\tx\x07\r\ny", "python") == "```python\n\tx\\x07\ny\n```"


HOMES = "/home"
ROOT_HOME = "/root"


def test_paths_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_privacy.Path, "cwd", lambda: Path(f"{HOMES}/student/course/gpt"))
    monkeypatch.setattr(_privacy.Path, "home", lambda: Path(f"{HOMES}/student"))
    monkeypatch.setattr(_privacy.getpass, "getuser", lambda: "student")
    for text, short in (
        (f"{HOMES}/student/course/gpt/mine.py:3", "mine.py:3"),
        (f"in {HOMES}/student/course/gpt", "in ."),
        (f"{HOMES}/student/course/gpt2/x.py", "~/course/gpt2/x.py"),
        (f"'{HOMES}/student'", "'~'"),
        (f"{HOMES}/other/x", "~/x"),
        ("/Users/other/x", "~/x"),
        ("file:///Users/other/x", "file://~/x"),
        (f"{ROOT_HOME}/.cache/x", "~/.cache/x"),
        ("/data/student/x", "/data/USER/x"),
        (r"C:\Users\A Student\x.py", r"~\x.py"),
        (r"C:\\Users\\student\\x.py", r"~\\x.py"),
        ("c:/users/student/x.py", "~/x.py"),
        (
            "a/home/x and student and https://x.org/home/y",
            "a/home/x and student and https://x.org/home/y",
        ),
        ("the root of /rooted/x", "the root of /rooted/x"),
    ):
        assert shorten_paths(text) == short, text


def test_a_person_without_name_or_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> str:
        raise KeyError("uid")

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(_privacy.getpass, "getuser", nobody)
    monkeypatch.setattr(_privacy.Path, "home", homeless)
    assert shorten_paths("/srv/x") == "/srv/x"


def test_the_request_names_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_privacy.Path, "home", lambda: Path(f"{HOMES}/student"))
    path = f"{HOMES}/student/secret/mine.py"
    bad = verdict(Status.FAIL, "shift.x", path, where=path, causes=(path,), next_step=path)
    text = request(bad, command=f"python -m diagnostics --target {path}:f", target_source=path)
    assert "student" not in text
    assert "~/secret/mine.py" in text
