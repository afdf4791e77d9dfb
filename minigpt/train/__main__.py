"""`python -m minigpt.train`: the command, checked before its first step and watched after it.

The one place here that knows the checks: what is about to train is described to them part by part.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt._cli import CheckFailedError, run_command
from minigpt._training_state import BEST_NAME
from minigpt.train import main

if TYPE_CHECKING:  # --help must not wait for torch
    from diagnostics import TrainingMonitor
    from diagnostics.page import RunPage
    from minigpt._train_data import TrainData
    from minigpt._training_state import TrainSettings
    from minigpt.model import MiniGPT


def preflight(model: MiniGPT, data: TrainData, settings: TrainSettings) -> None:
    """Run the fast checks on what is about to train and print one line.

    Raises CheckFailedError, after printing what to mend first, when one of them fails.
    """
    from diagnostics import Pipeline, diagnose
    from minigpt._parts import describe_run

    parts = describe_run(
        model.config, data.tokenizer, data.train_ids, data.validation_ids, settings
    )
    with _announced("preflight   checks what is about to train ..."):
        report = diagnose(Pipeline(model, fresh=True, **parts), seed=settings.seed, fast=True)
    passed = sum(result.passed for result in report.results)
    print(f"preflight   {passed} checks passed in {report.seconds:.1f} s", flush=True)
    for result in report.results:
        if result.status in ("warn", "error"):  # an error is the check's own and stops nothing
            print(f"            [{result.status.upper()}] {result.check}: {result.claim}")
    if report.failures:
        own = [result for result in report.failures if result.consequence_of is None]
        first = (own or report.failures)[0]
        print(f"\n{first}")
        raise CheckFailedError(
            f"{first.check} failed before the first step; nothing was trained. "
            "Mend it, or give --no-preflight"
        )


@contextmanager
def _announced(line: str) -> Iterator[None]:
    """Show the line on a terminal while it is true: seconds of silence look like a fault."""
    shown = line if sys.stdout.isatty() else ""
    print(shown, end="\r" if shown else "", flush=True)
    try:
        yield
    finally:
        print(" " * len(shown), end="\r" if shown else "", flush=True)


def make_monitor(
    model: MiniGPT,
    data: TrainData,
    settings: TrainSettings,
    folder: Path,
    on_event: Callable[[object], None],
) -> TrainingMonitor:
    """Return the monitor of this run; a post-mortem goes into `folder`."""
    from diagnostics import TrainingMonitor
    from diagnostics.monitor import unigram_entropy
    from minigpt.update import forward_precision

    return TrainingMonitor(
        model,
        unigram_entropy=unigram_entropy(data.train_ids),
        schedule=settings.rate_after,
        clip_norm=settings.clip_norm or None,
        on_event=on_event,
        folder=folder,
        precision=forward_precision(settings.dtype, next(model.parameters()).device),
    )


def make_page(
    path: Path,
    model: MiniGPT,
    data: TrainData,
    settings: TrainSettings,
    folder: Path,
    on_warning: Callable[[str], None],
) -> RunPage:
    """Return the page of this run, of what `--html` names."""
    from diagnostics.monitor import unigram_entropy
    from diagnostics.page import RunPage
    from minigpt.train._page import describe_start

    return RunPage(
        path,
        title="Mini-GPT training run",
        total_steps=settings.max_steps,
        vocab_size=model.config.vocab_size,
        unigram_entropy=unigram_entropy(data.train_ids),
        clip_norm=settings.clip_norm or None,
        best_path=str(folder / BEST_NAME),
        facts=describe_start(model, data, settings),
        on_warning=on_warning,
    )


if __name__ == "__main__":
    raise SystemExit(
        run_command(
            lambda: main(preflight=preflight, make_watcher=make_monitor, make_page=make_page)
        )
    )
