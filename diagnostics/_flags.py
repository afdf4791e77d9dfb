"""The flags of `python -m diagnostics`, in groups by what a person comes with. Imports no torch."""

from __future__ import annotations

import argparse
import os

CHECKLISTS = ("before", "training", "generation")


def add_flags(parser: argparse.ArgumentParser, *, checkpoint: str, tokenizer: str) -> None:
    """Add every flag; `checkpoint` and `tokenizer` are the default paths that the help names."""
    _add_subject(parser.add_argument_group("what to check"), checkpoint, tokenizer)
    _add_ways(parser.add_argument_group("how"))
    _add_reports(parser.add_argument_group("what to write and show"))
    _add_help(parser.add_argument_group("without a run: what to do when something is wrong"))


def find_conflict(options: argparse.Namespace) -> str | None:
    """Return a sentence about flags that exclude each other, None when all fit together."""
    for name in ("checkpoint", "tokenizer", "train_data"):
        if options.target is not None and getattr(options, name) is not None:
            return (
                f"{_flag(name)} is about a Mini-GPT and --target brings its own; give one of them"
            )
    alone = _given(options, _ALONE)
    if len(alone) > 1:
        return f"{' and '.join(map(_flag, alone))} are one question each; give one of them"
    asked = _given(options, ("ask", "symptom", "checklist"))
    if len(asked) > 1:
        return f"{' and '.join(map(_flag, asked))} print one answer each; give one of them"
    if options.self_test and options.html is not None:
        return "--self-test has no page; --json FILE writes what it found"
    return _find_unused(options, alone, asked) or _find_overwriting(options)


_ALONE = ("list", "explain", "env", "compare", "traceback")
_RUNS = ("target", "checkpoint", "tokenizer", "train_data", "self_test")
_WAYS = ("only", "skip", "fast", "skip_overfit", "overfit_steps", "seed")
_OUTPUTS = ("html", "json", "ask")
_DEFAULTS = {"overfit_steps": 300, "seed": 42}


def _find_unused(options: argparse.Namespace, alone: list[str], asked: list[str]) -> str | None:
    """A flag that would change nothing is refused: who gave it would believe that it did."""
    if alone:
        others = (*_RUNS, "report", *_WAYS, *_OUTPUTS, "symptom", "checklist", "log")
        unused = _given(options, others)
        if unused:
            return f"{_flag(alone[0])} runs no check and has no use for {_flag(unused[0])}; drop it"
    if options.report is not None and (unused := _given(options, (*_RUNS, *_WAYS))):
        return (
            f"--report shows a stored run and {_flag(unused[0])} asks for a new one; "
            "give one of them"
        )
    if options.symptom is not None and options.report is None and options.target is None:
        unused = _given(options, (*_RUNS, *_WAYS, *_OUTPUTS, "log"))
        if unused:
            return (
                f"--symptom alone runs no check and has no use for {_flag(unused[0])}; "
                "--report FILE or --target PLACE gives it something measured"
            )
    if options.self_test and asked:
        return f"--self-test and {_flag(asked[0])} print one answer each; give one of them"
    if options.log is not None and options.checklist is None:
        return "--log is read for --checklist alone; give both of them"
    return None


def _find_overwriting(options: argparse.Namespace) -> str | None:
    """Two files in one place, or a page in the place of the report that it is made from."""
    written: dict[str, str] = {}
    for name in _OUTPUTS:
        path = getattr(options, name)
        if path is None or path == "-":
            continue
        place = os.path.realpath(path)
        if place in written:
            return f"{_flag(written[place])} and {_flag(name)} write to one file, {path}; name two"
        written[place] = name
        if name != "json" and options.report and place == os.path.realpath(options.report):
            return f"{_flag(name)} would write over the report {path}; name another file"
    return None


def _given(options: argparse.Namespace, names: tuple[str, ...]) -> list[str]:
    """Return the flags that were given another value than they have without."""
    return [
        name
        for name in names
        if getattr(options, name) not in (None, False, []) and not _is_default(options, name)
    ]


def _is_default(options: argparse.Namespace, name: str) -> bool:
    return name in _DEFAULTS and getattr(options, name) == _DEFAULTS[name]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _add_subject(group: argparse._ArgumentGroup, checkpoint: str, tokenizer: str) -> None:
    group.add_argument(
        "--target",
        metavar="PLACE",
        help="module:function or file.py:function that "
        "returns a Pipeline; without it a Mini-GPT checkpoint is checked",
    )
    group.add_argument("--checkpoint", metavar="FILE", help=f"default {checkpoint}")
    group.add_argument("--tokenizer", metavar="FILE", help=f"default {tokenizer}")
    group.add_argument("--train-data", metavar="FILE", help="default data/encoded/train_ids.npy")
    group.add_argument(
        "--report", metavar="FILE", help="show a report that --json wrote, and run nothing"
    )


def _add_ways(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--only", metavar="NAME", action="extend", nargs="+", help="run these checks or stages only"
    )
    group.add_argument(
        "--skip",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="leave these checks or stages out",
    )
    group.add_argument(
        "--fast",
        action="store_true",
        help="leave out the checks that train for many steps or start processes",
    )
    group.add_argument("--skip-overfit", action="store_true", help="the same as --skip overfit")
    group.add_argument(
        "--overfit-steps",
        metavar="N",
        type=positive_number,
        default=_DEFAULTS["overfit_steps"],
        help="at most so many steps to memorise one batch (300)",
    )
    group.add_argument(
        "--self-test",
        action="store_true",
        help="put known bugs into copies of the pipeline, and show which of them would be found",
    )
    group.add_argument(
        "--seed",
        metavar="N",
        type=seed_number,
        default=_DEFAULTS["seed"],
        help="fixes every draw (42)",
    )


def _add_reports(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--html", metavar="FILE", help="also write the report as one HTML page")
    group.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    group.add_argument(
        "--ask",
        metavar="FILE",
        nargs="?",
        const="-",
        help="write a request for help in Markdown, ready to paste, instead of the report",
    )
    group.add_argument(
        "--checklist",
        metavar="NAME",
        nargs="?",
        const="all",
        choices=("all", *CHECKLISTS),
        help="tick what the report has measured: before, training, generation or all",
    )
    group.add_argument(
        "--log",
        metavar="FILE",
        help="the run's log, one JSON object per line, for --checklist",
    )
    group.add_argument("--list", action="store_true", help="list the checks and exit")
    group.add_argument("--explain", metavar="NAME", help="explain one check and exit")


def _add_help(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--symptom",
        metavar="WORDS",
        nargs="?",
        const="",
        help='a guided path from what you see, such as "loss stuck", to the check that '
        "separates the suspects; with --report or --target it is walked by measuring",
    )
    group.add_argument(
        "--traceback",
        metavar="FILE",
        help="read a Python traceback from the bottom; - reads what is pasted or piped in",
    )
    group.add_argument(
        "--compare",
        metavar=("A.json", "B.json"),
        nargs=2,
        help="say what changed between two reports; exit code 1 when a verdict got worse",
    )
    group.add_argument("--env", action="store_true", help="print the environment, ready to paste")


def seed_number(text: str) -> int:
    """Return a seed from the command line; ArgumentTypeError for what NumPy would not take."""
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"wants a whole number in 0..2**32 - 1, got {text!r}")
    return int(text)


def positive_number(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"wants a whole number >= 1, got {text!r}")
    return number
