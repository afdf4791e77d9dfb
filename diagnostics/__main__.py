"""`python -m diagnostics`: check a trained Mini-GPT, or with --target your own pipeline.

Exit codes: 0 every check passed, 1 one failed, 2 usage or missing input, 3 a check is broken
itself, 130 interrupted. What needs no measurement (`--list`, `--explain`, `--traceback`,
`--symptom`, `--help`) does not wait for torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics._answers import RunFacts, answer, read_log, render
from diagnostics._flags import add_flags, find_conflict
from minigpt._cli import CommandError, Parser, require_writable, run_command
from minigpt._files import write_text

if TYPE_CHECKING:
    from diagnostics import Pipeline, Report

DEFAULT_CHECKPOINTS = ("checkpoints/mini_gpt_best.safetensors", "checkpoints/mini_gpt_best.pt")
STDIN = "/dev/stdin"
DEFAULT_LOG = "checkpoints/mini_gpt_log.jsonl"
DEFAULT_TOKENIZER = "tokenizer/char_tokenizer.json"
DEFAULT_TRAIN_IDS = ("data/encoded/train_ids.npy", "data/encoded/train_ids.pt")
DEFAULT_VAL_IDS = ("data/encoded/val_ids.npy", "data/encoded/val_ids.pt")

# The tests that a person would run by hand, and the checks that run them here.
CLASSIC_TESTS = {
    "tokenizer round trip": "roundtrip",
    "token id range": "range",
    "batch shift": "shift",
    "forward pass": "shapes",
    "causal independence": "causal_independence",
    "gradients": "gradients",
    "optimizer update": "optimizer",
    "one-batch overfit": "overfit",
}


@dataclass(frozen=True)
class Subject:
    """What is checked, and what is known of a Mini-GPT besides: how to make it, how it writes.

    recipe: the commands that make it.    measure_generation: () -> settings, for a checklist.
    """

    pipeline: Pipeline
    recipe: tuple[str, ...] = ()
    measure_generation: Callable[[], dict[str, Any]] | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    return run_command(lambda: _run(_parse(given), given))


def _run(options: argparse.Namespace, given: Sequence[str]) -> int:
    try:
        answered = answer(options)
        if answered is not None:
            print(answered[0])
            return answered[1]
        names = _selected(options)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not names:
        raise CommandError("--skip leaves nothing of what --only asks for; give one of them")
    for flag in ("json", "html"):
        require_writable(getattr(options, flag), f"--{flag}")
    require_writable(None if options.ask == "-" else options.ask, "--ask")
    if options.report is not None:
        return _show(_stored_report(options.report), options, given)
    if options.target is not None:
        subject = Subject(_target_pipeline(options.target))
    else:
        subject = _minigpt_subject(options)
    if options.self_test:
        return _self_test(subject.pipeline, options)
    return _show(_diagnose(subject.pipeline, options), options, given, subject)


def _selected(options: argparse.Namespace) -> list[str]:
    from diagnostics._catalog import select

    return select(options.only, _skipped(options), fast=options.fast)


def _skipped(options: argparse.Namespace) -> list[str]:
    return [*options.skip, *(["overfit"] if options.skip_overfit else [])]


def _show(
    report: Report,
    options: argparse.Namespace,
    given: Sequence[str],
    subject: Subject | None = None,
) -> int:
    """Print the report or what was asked of it, write its files, and return the exit code."""
    if options.json is not None:
        write_text(options.json, report.to_json())
    if options.html is not None:
        write_text(options.html, report.to_html())
    if options.ask is not None:
        recipe = () if subject is None else subject.recipe
        _write_request(_request(report, options, given, recipe), options.ask)
        return _exit_code(report)
    print(render(report, options, run=_run_facts(options, subject)))
    is_minigpt = options.target is None and options.report is None
    if is_minigpt and options.symptom is None and options.checklist is None:
        _say_classic_tests(report)
    return _exit_code(report)


def _run_facts(options: argparse.Namespace, subject: Subject | None) -> RunFacts:
    """Return what a checklist wants to know of a run besides its report."""
    if options.checklist is None:
        return RunFacts()
    log = options.log or (None if options.target or options.report else DEFAULT_LOG)
    measure = None if subject is None else subject.measure_generation
    asked = options.checklist != "before"  # also for the step of the checkpoint
    return RunFacts(
        log=read_log(log, required=options.log is not None),
        generation=measure() if measure is not None and asked else None,
    )


def _request(
    report: Report, options: argparse.Namespace, given: Sequence[str], recipe: tuple[str, ...]
) -> str:
    from diagnostics.help.ask import write_help_request
    from diagnostics.help.ask._command import reproduce_command
    from diagnostics.help.ask._target_source import read_target_source

    stored = options.report is not None
    return write_help_request(
        report.to_dict(),
        command="" if stored else reproduce_command(given),
        target_source=read_target_source(options.target) if options.target else None,
        recipe=recipe,
    )


def _write_request(request: str, place: str) -> None:
    if place == "-":
        print(request, end="")
        return
    write_text(place, request)
    print(f"wrote {place}; read it before you post it, and fill in what is marked FILL IN")


def _stored_report(path: str) -> Report:
    from diagnostics import Report
    from diagnostics._stored import StoredReportError, load_report

    if not path:
        raise CommandError("--report wants a file, got an empty name")
    try:
        return Report.from_dict(load_report(Path(STDIN if path == "-" else path)))
    except StoredReportError as error:
        raise CommandError(str(error)) from error


def _diagnose(pipeline: Pipeline, options: argparse.Namespace) -> Report:
    from diagnostics import diagnose

    with _progress() as progress:
        return diagnose(pipeline, progress=progress, **_how(options))


def _self_test(pipeline: Pipeline, options: argparse.Namespace) -> int:
    """Say which bugs would be found; 2 when none could be put in, 3 when a check broke itself."""
    from diagnostics import self_test

    with _progress() as progress:
        found = self_test(pipeline, progress=progress, **_how(options))
    print(found)
    if options.json:
        write_text(options.json, found.to_json())
    if found.passed:
        return 0
    return 3 if found.errors else 1 if found.injected else 2


def _how(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "only": options.only,
        "skip": _skipped(options),
        "overfit_steps": options.overfit_steps,
        "fast": options.fast,
    }


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    from tqdm import tqdm

    with tqdm(disable=None, leave=False, bar_format="{desc}") as bar:  # silent without a terminal
        yield lambda name, index, total: bar.set_description_str(f"[{index + 1}/{total}] {name}")


def _target_pipeline(target: str) -> Pipeline:
    from diagnostics._target import TargetError, describe_exception, load_target

    try:
        return load_target(target)
    except TargetError as error:
        raise CommandError(str(error)) from error
    except SystemExit as error:  # its code would pass for a verdict, 0 for a green one
        raise CommandError(
            f"--target {target} ended the program with SystemExit({error.code!r}) instead of "
            "returning a Pipeline; put what runs it as a script under if __name__ == '__main__'"
        ) from error
    except Exception as error:  # any: it is the user's own code
        raise CommandError(f"--target {target} raised {describe_exception(error)}") from error


def _minigpt_subject(options: argparse.Namespace) -> Subject:
    """Describe a trained Mini-GPT: its checkpoint, its tokenizer and the ids it was trained on."""
    from diagnostics import Pipeline
    from diagnostics.help.ask._command import recipe_of
    from minigpt import CharTokenizer, load_checkpoint
    from minigpt._generation_facts import measure_generation
    from minigpt._parts import describe_run
    from minigpt._training_state import TrainSettings
    from minigpt.encoded import load_ids

    checkpoint_path = _existing(
        options.checkpoint, DEFAULT_CHECKPOINTS, "checkpoint", "python -m minigpt.train"
    )
    tokenizer_path = _existing(
        options.tokenizer, (DEFAULT_TOKENIZER,), "tokenizer file", "python -m minigpt.prepare"
    )
    train_path = _existing(
        options.train_data,
        DEFAULT_TRAIN_IDS,
        "file of encoded train ids",
        "python -m minigpt.prepare",
    )
    try:
        tokenizer = CharTokenizer.from_file(tokenizer_path)
        checkpoint = load_checkpoint(checkpoint_path, tokenizer=tokenizer)
        train_ids = load_ids(train_path)
        val_path = next((p for p in map(Path, DEFAULT_VAL_IDS) if p.exists()), None)
        val_ids = load_ids(val_path) if val_path and options.train_data is None else None
    except (ValueError, OSError) as error:
        raise CommandError(str(error)) from error
    config = checkpoint.config
    if len(train_ids) <= config.block_size:
        raise CommandError(
            f"{train_path} holds {len(train_ids)} ids, the model's block needs at least "
            f"{config.block_size + 1}; give a longer text to python -m minigpt.prepare"
        )
    stored = (checkpoint.trainer_state or {}).get("settings", {})
    try:
        settings = TrainSettings(**stored)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{checkpoint_path}: its settings cannot be read: {error}") from error
    pipeline = Pipeline(
        checkpoint.model,
        files=[checkpoint_path, tokenizer_path, train_path, *([val_path] if val_path else [])],
        fresh=checkpoint.step == 0,
        **describe_run(config, tokenizer, train_ids, val_ids, settings),
    )
    ids = train_ids if val_ids is None or not len(val_ids) else val_ids
    return Subject(
        pipeline,
        recipe=recipe_of(dataclasses.asdict(config), stored),
        measure_generation=lambda: {
            **measure_generation(checkpoint.model, tokenizer, ids, seed=options.seed),
            "checkpoint_step": checkpoint.step,
        },
    )


def _existing(given: str | None, defaults: Sequence[str], what: str, command: str) -> Path:
    for name in [given] if given is not None else defaults:
        if Path(name).is_file():
            return Path(name)
    wanted = given if given is not None else defaults[0]
    found = "that is a folder" if Path(wanted).is_dir() else "there is none"
    raise CommandError(f"wanted a {what} at {wanted or repr('')}, {found}; `{command}` writes one")


def _say_classic_tests(report: Report) -> None:
    by_check = {result.check: result for result in report.results}
    print("\nthe eight classic tests")
    good = 0
    for title, check in CLASSIC_TESTS.items():
        status = str(by_check[check].status) if check in by_check else "not asked for"
        good += check in by_check and by_check[check].passed
        print(f"  {title:<22} {status}")
    if good == len(CLASSIC_TESTS):
        print("all eight classic tests passed")


def _exit_code(report: Report) -> int:
    if report.passed:
        return 0
    if not report.failures and any(not result.where for result in report.errors):
        return 3  # raised in a check, not in the user's code
    return 1 if report.failures or report.errors else 2


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = Parser(
        prog="python -m diagnostics",
        description="Check a trained Mini-GPT, or your own pipeline, one assumption at a time.",
    )
    add_flags(parser, checkpoint=DEFAULT_CHECKPOINTS[0], tokenizer=DEFAULT_TOKENIZER)
    options = parser.parse_args(arguments)
    conflict = find_conflict(options)
    if conflict is not None:
        parser.error(conflict)
    return options


if __name__ == "__main__":
    raise SystemExit(main())
