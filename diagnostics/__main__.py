"""`python -m diagnostics`: check a trained Mini-GPT, or with --target your own pipeline.

Exit codes: 0 every check passed, 1 one failed, 2 usage or missing input, 3 a check is broken
itself, 130 interrupted. `--list`, `--explain` and `--help` do not wait for torch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt._cli import CommandError, Parser, require_writable, run_command
from minigpt._files import write_text

if TYPE_CHECKING:
    from diagnostics import Pipeline, Report

DEFAULT_CHECKPOINTS = ("checkpoints/mini_gpt_best.safetensors", "checkpoints/mini_gpt_best.pt")
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    from diagnostics._catalog import explain, select

    if options.list:
        from diagnostics._render import render_catalog

        print(render_catalog())
        return 0
    try:
        if options.explain is not None:
            print(explain(options.explain))
            return 0
        skip = [*options.skip, *(["overfit"] if options.skip_overfit else [])]
        names = select(options.only, skip, fast=options.fast)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if not names:
        raise CommandError("--skip leaves nothing of what --only asks for; give one of them")
    if options.env:
        from diagnostics.environment import render_environment

        print(render_environment())
        return 0
    require_writable(options.json, "--json")
    pipeline = _target_pipeline(options.target) if options.target else _minigpt_pipeline(options)
    if options.self_test:
        return _self_test(pipeline, options, skip)
    report = _diagnose(pipeline, options, skip)
    print(report)
    if not options.target:
        _say_classic_tests(report)
    if options.json:
        write_text(options.json, report.to_json())
    return _exit_code(report)


def _diagnose(pipeline: Pipeline, options: argparse.Namespace, skip: list[str]) -> Report:
    from diagnostics import diagnose

    with _progress() as progress:
        return diagnose(pipeline, progress=progress, **_how(options, skip))


def _self_test(pipeline: Pipeline, options: argparse.Namespace, skip: list[str]) -> int:
    """Say which bugs would be found; 2 when none could be put in, 3 when a check broke itself."""
    from diagnostics import self_test

    with _progress() as progress:
        found = self_test(pipeline, progress=progress, **_how(options, skip))
    print(found)
    if options.json:
        write_text(options.json, found.to_json())
    if found.passed:
        return 0
    return 3 if found.errors else 1 if found.injected else 2


def _how(options: argparse.Namespace, skip: list[str]) -> dict[str, Any]:
    return {
        "seed": options.seed,
        "only": options.only,
        "skip": skip,
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


def _minigpt_pipeline(options: argparse.Namespace) -> Pipeline:
    """Describe a trained Mini-GPT: its checkpoint, its tokenizer and the ids it was trained on."""
    from diagnostics import Pipeline
    from minigpt import CharTokenizer, load_checkpoint
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
    return Pipeline(
        checkpoint.model,
        files=[checkpoint_path, tokenizer_path, train_path, *([val_path] if val_path else [])],
        fresh=checkpoint.step == 0,
        **describe_run(config, tokenizer, train_ids, val_ids, settings),
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


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m diagnostics",
        description="Check a trained Mini-GPT, or your own pipeline, one assumption at a time.",
    )
    own = parser.add_argument_group("what to check")
    own.add_argument(
        "--target",
        metavar="PLACE",
        help="module:function or file.py:function that "
        "returns a Pipeline; without it a Mini-GPT checkpoint is checked",
    )
    own.add_argument("--checkpoint", metavar="FILE", help=f"default {DEFAULT_CHECKPOINTS[0]}")
    own.add_argument("--tokenizer", metavar="FILE", help=f"default {DEFAULT_TOKENIZER}")
    own.add_argument("--train-data", metavar="FILE", help=f"default {DEFAULT_TRAIN_IDS[0]}")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--only", metavar="NAME", action="extend", nargs="+", help="run these checks or stages only"
    )
    how.add_argument(
        "--skip",
        metavar="NAME",
        action="extend",
        nargs="+",
        default=[],
        help="leave these checks or stages out",
    )
    how.add_argument(
        "--fast",
        action="store_true",
        help="leave out the checks that train for many steps or start processes",
    )
    how.add_argument("--skip-overfit", action="store_true", help="the same as --skip overfit")
    how.add_argument(
        "--overfit-steps",
        metavar="N",
        type=_positive,
        default=300,
        help="at most so many steps to memorise one batch (300)",
    )
    how.add_argument(
        "--self-test",
        action="store_true",
        help="put known bugs into copies of the pipeline, and show which of them would be found",
    )
    how.add_argument("--seed", metavar="N", type=_seed, default=42, help="fixes every draw (42)")
    out = parser.add_argument_group("what to show")
    out.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    out.add_argument("--list", action="store_true", help="list the checks and exit")
    out.add_argument("--explain", metavar="NAME", help="explain one check and exit")
    out.add_argument("--env", action="store_true", help="print the environment, ready to paste")
    options = parser.parse_args(arguments)
    for name in ("checkpoint", "tokenizer", "train_data"):
        if options.target is not None and getattr(options, name) is not None:
            flag = "--" + name.replace("_", "-")
            parser.error(
                f"{flag} is about a Mini-GPT and --target brings its own; give one of them"
            )
    return options


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"wants a whole number in 0..2**32 - 1, got {text!r}")
    return int(text)


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"wants a whole number >= 1, got {text!r}")
    return number


if __name__ == "__main__":
    raise SystemExit(main())
