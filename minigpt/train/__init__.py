"""The command `python -m minigpt.train`: from encoded ids to a checkpoint that generates.

What happens in a step is in `trainer.py`; here is the order of things around it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt._cli import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_USAGE,
    CommandError,
)
from minigpt._launch import Launch, read_launch
from minigpt._training_state import NonFiniteError, TrainSettings
from minigpt.train._flags import MODEL_FLAGS, PRESETS, parse_flags
from minigpt.train._prepare import Preflight, prepare_run, set_up_torch
from minigpt.train._signals import signals_noted

if TYPE_CHECKING:  # --help must not wait for torch
    from minigpt._train_data import TrainData
    from minigpt._train_report import TrainReport
    from minigpt._watcher import Page, Watcher
    from minigpt.model import MiniGPT
    from minigpt.parallel import Team
    from minigpt.trainer import Trainer

# (model, data, settings, folder for what it writes, listener for a sentence) -> to be entered
MakeWatcher = Callable[
    ["MiniGPT", "TrainData", TrainSettings, Path, Callable[[object], None]],
    "AbstractContextManager[Watcher]",
]
# (path, model, data, settings, folder of the checkpoints, listener for a sentence)
MakePage = Callable[
    [Path, "MiniGPT", "TrainData", TrainSettings, Path, Callable[[str], None]], "Page"
]

__all__ = ["MODEL_FLAGS", "PRESETS", "main"]


def main(
    arguments: Sequence[str] | None = None,
    *,
    preflight: Preflight | None = None,
    make_watcher: MakeWatcher | None = None,
    make_page: MakePage | None = None,
) -> int:
    """Train as the arguments say; returns the exit code.

    preflight: looks at what is about to train, before step 0; CheckFailedError stops it. The
        command in `__main__.py` hands it over, so that this module does not know the checks.
    make_watcher: makes what looks on while it trains; `__main__.py` hands it over, too.
    make_page: makes what `--html` shows the run on, likewise.
    """
    launch = _read_launch()
    options = parse_flags(arguments, quiet=launch.rank > 0)

    from minigpt.parallel import TIMEOUT, PeerError, team_of

    device = set_up_torch(options, launch)
    # The others wait while the first cannot save; the limit is what the clock of torch can hold.
    timeout = TIMEOUT + timedelta(seconds=min(options.save_wait, 1e6))
    try:
        with team_of(launch, device, timeout=timeout) as team:
            return _train(options, team, preflight, make_watcher, make_page)
    except PeerError as error:
        if not error.told:  # where the process that failed says it, once is enough
            print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE


def _train(
    options: argparse.Namespace,
    team: Team,
    preflight: Preflight | None,
    make_watcher: MakeWatcher | None,
    make_page: MakePage | None,
) -> int:
    """Read, build, train and report, as one of the processes of `team`."""
    from minigpt._train_report import TrainReport
    from minigpt.train._page import PageFeed
    from minigpt.trainer import Trainer

    data, model, settings, checkpoint = prepare_run(options, team, preflight)
    with ExitStack() as stack:
        stop = stack.enter_context(signals_noted(second_ends=team.size == 1))
        report = stack.enter_context(
            TrainReport(data, model, settings, options.checkpoints, on_lost=stop.set)
        )
        with team.united():
            page = None
            if make_page is not None and team.is_first and options.html is not None:
                about = model, data, settings, options.checkpoints
                page = make_page(options.html, *about, report.on_warning)
        feed = stack.enter_context(PageFeed(page, data))
        watcher = None
        if make_watcher is not None and team.is_first and not options.no_monitor:
            tell = _both(report.on_event, feed.on_event)
            made = make_watcher(model, data, settings, options.checkpoints, tell)
            watcher = feed.watcher = stack.enter_context(made)
        try:
            trainer = Trainer(
                model,
                data.tokenizer,
                data.train_ids,
                data.validation_ids,
                settings,
                folder=options.checkpoints,
                corpus_fingerprint=data.corpus_fingerprint,
                on_step=_both(report.on_step, feed.on_step) if team.is_first else _nobody,
                should_stop=stop.is_set,
                checkpoint=checkpoint,
                team=team,
                save_wait_seconds=options.save_wait,
                on_warning=_both(report.on_warning, feed.on_event),
                watcher=watcher,
            )
        except ValueError as error:  # a checkpoint whose training state does not fit
            raise CommandError(str(error)) from error
        feed.follow(trainer)
        rows = team.gather(trainer.coming_row())
        if team.is_first:
            report.print_header(trainer.state.step, rows)
        try:
            reason = trainer.run(stop_after=options.stop_after)
        except NonFiniteError as error:
            report.close()
            feed.fail(error)
            if team.is_first:  # all of them know
                print(f"error: {error}", file=sys.stderr)
            return EXIT_CHECK_FAILED
        except (OSError, RuntimeError) as error:
            told = _of_others(error, team)
            if told is not None:
                feed.fail(told)
                stack.close()  # so that no watcher writes a post-mortem about it
            raise
        feed.end(reason)
    return _end(report, trainer, reason, team)


def _of_others(error: Exception, team: Team) -> Exception | None:
    """Return what to say of an error that is the disk's or another process's; else None."""
    from minigpt.parallel import LOST, PeerError

    if isinstance(error, (OSError, PeerError)):
        return error
    if team.size > 1 and any(word in str(error).lower() for word in LOST):
        return PeerError(
            "another process is gone: its own output says why, or it was killed", told=False
        )
    return None


def _both(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return a listener that tells two, in this order."""

    def tell(told: object) -> None:
        first(told)
        second(told)

    return tell


def _nobody(told: object) -> None:
    """Listen in a process that is not the first."""


def _end(report: TrainReport, trainer: Trainer, reason: str, team: Team) -> int:
    """Say how the run ended, where anybody listens; returns the exit code."""
    if report.lost is not None:
        raise OSError(
            f"the output cannot be written ({report.lost.strerror or report.lost}); the run is "
            f"saved at step {trainer.state.step}, --resume goes on"
        )
    if team.is_first:
        report.print_summary(trainer, reason)
    return EXIT_INTERRUPTED if reason == "interrupted" else EXIT_OK


def _read_launch() -> Launch:
    try:
        return read_launch()
    except ValueError as error:
        raise CommandError(str(error)) from error
