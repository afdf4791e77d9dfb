"""What happens before the first step: read, build or load, check that all of it fits together."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from minigpt._cli import CommandError
from minigpt._training_state import BEST_NAME, LAST_NAME, TrainSettings
from minigpt.train._flags import (
    MODEL_FLAGS,
    PRESETS,
    SETTING_NAMES,
    flag,
    given_flags,
    in_flags,
)

if TYPE_CHECKING:  # --help must not wait for torch
    import torch

    from minigpt._launch import Launch
    from minigpt._train_data import TrainData
    from minigpt.checkpoint import Checkpoint
    from minigpt.model import MiniGPT, MiniGPTConfig
    from minigpt.parallel import Team

THREAD_LIMIT = 256  # OpenMP ends the process, without a word, when it cannot start that many

Preflight = Callable[["MiniGPT", "TrainData", TrainSettings], None]


def set_up_torch(options: argparse.Namespace, launch: Launch) -> torch.device:
    """Apply what is about the machine and not about the run; return the device."""
    import torch

    from minigpt.parallel import choose_device

    if options.threads is not None and not 1 <= options.threads <= THREAD_LIMIT:
        raise CommandError(f"--threads must be in 1..{THREAD_LIMIT}, got {options.threads}")
    threads = launch.default_threads() if options.threads is None else options.threads
    if threads is not None:
        torch.set_num_threads(threads)
    if options.stop_after is not None and options.stop_after < 1:
        raise CommandError(f"--stop-after must be >= 1, got {options.stop_after}")
    try:
        return choose_device(launch, options.device)
    except ValueError as error:
        raise CommandError(f"--{error}") from error


def prepare_run(
    options: argparse.Namespace, team: Team, preflight: Preflight | None
) -> tuple[TrainData, MiniGPT, TrainSettings, Checkpoint | None]:
    """Return what is about to train, after looking at it; what fails in one process ends all."""
    from minigpt._lock import require_free
    from minigpt._train_data import load_train_data
    from minigpt.train._page import require_page

    checkpoint = None
    with team.united():
        if team.is_first:  # the run locks the folder; this only says so before minutes of checks
            require_page(options.html, options.checkpoints)
            require_free(options.checkpoints)
        data = load_train_data(options.data, options.tokenizer)
        if options.resume is None:
            config, settings = _new_settings(options, data, team)
        else:
            checkpoint = _load_resumed(options, data, team.device)
            config, settings = checkpoint.config, _resumed_settings(options, checkpoint, team)
        data.require_usable(config)
    settings = _settle_speed(options, config, settings, team)
    with team.united():
        model = _new_model(config, settings, team) if checkpoint is None else checkpoint.model
        wanted = checkpoint is None and not options.no_preflight
        if preflight is not None and wanted and team.is_first:
            preflight(model, data, settings)
    with team.united():
        _require_same_run(team, data, model, settings, checkpoint)
    return data, model, settings, checkpoint


def _require_same_run(
    team: Team,
    data: TrainData,
    model: MiniGPT,
    settings: TrainSettings,
    checkpoint: Checkpoint | None,
) -> None:
    """Refuse processes that read other data or went on from another step, as machines may."""
    facts = [
        dataclasses.asdict(settings),
        model.config.to_dict(),
        [data.tokenizer.fingerprint, data.corpus_fingerprint],
        [len(data.train_ids), len(data.validation_ids)],
        None if checkpoint is None else [checkpoint.trainer_state, checkpoint.step],
    ]
    try:
        team.require_same("settings, ids and checkpoint", facts)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _new_settings(
    options: argparse.Namespace, data: TrainData, team: Team
) -> tuple[MiniGPTConfig, TrainSettings]:
    """Return the numbers of model and run, from the preset and the flags given."""
    from minigpt.model import MiniGPTConfig

    preset = PRESETS[options.preset or "debug"]
    values = preset | given_flags(options, (*MODEL_FLAGS, *SETTING_NAMES))
    if options.warmup_steps is None:  # a run shorter than the preset's needs a shorter warm-up
        values["warmup_steps"] = min(values["warmup_steps"], values["max_steps"] // 10)
    if options.min_learning_rate is None and options.learning_rate is not None:
        values["min_learning_rate"] = options.learning_rate / 10
    sizes = {name: values.pop(name) for name in MODEL_FLAGS if name in values}
    try:
        settings = TrainSettings(**values, processes=team.size)
        config = MiniGPTConfig(vocab_size=data.tokenizer.vocab_size, **sizes)
    except ValueError as error:
        raise CommandError(in_flags(str(error))) from error
    return config, settings


def _settle_speed(
    options: argparse.Namespace, config: MiniGPTConfig, settings: TrainSettings, team: Team
) -> TrainSettings:
    """Return the settings with the choices that all processes agree on; they exchange messages."""
    from minigpt._train_speed import choose_speed, keep_speed

    if options.resume is not None:
        return keep_speed(settings, team)
    return choose_speed(
        settings,
        config,
        team,
        matmul_precision=options.matmul_precision or "highest",
        compiled=options.compile,
    )


def _new_model(config: MiniGPTConfig, settings: TrainSettings, team: Team) -> MiniGPT:
    from minigpt.model import MiniGPT
    from minigpt.seed import set_seed

    set_seed(settings.seed)
    return MiniGPT(config).to(team.device)


def _load_resumed(options: argparse.Namespace, data: TrainData, device: torch.device) -> Checkpoint:
    """Load the checkpoint to go on from, and refuse one of another corpus."""
    from minigpt.checkpoint import CheckpointCorruptError, CheckpointError, load_checkpoint

    path = options.checkpoints / LAST_NAME if options.resume == Path() else options.resume
    if not path.exists():
        remedy = _other_checkpoint(options, path) or "start a run without --resume"
        raise CommandError(f"nothing to resume at {path}; {remedy}")
    try:
        checkpoint = load_checkpoint(path, tokenizer=data.tokenizer, device=device)
    except CheckpointCorruptError as error:
        other = _other_checkpoint(options, path)
        raise CommandError(f"{error}. Then {other}" if other else str(error)) from error
    except (CheckpointError, ValueError) as error:
        raise CommandError(str(error)) from error
    if checkpoint.trainer_state is None or checkpoint.optimizer_state is None:
        raise CommandError(f"{path} holds no training state; --resume needs a {LAST_NAME}")
    theirs, ours = checkpoint.corpus_fingerprint, data.corpus_fingerprint
    if theirs and ours and theirs != ours:
        raise CommandError(
            f"{path} was trained on corpus {theirs[:12]}, {options.data} holds {ours[:12]}; "
            "prepare the same text again, or start a run without --resume"
        )
    return checkpoint


def _other_checkpoint(options: argparse.Namespace, path: Path) -> str | None:
    best = options.checkpoints / BEST_NAME
    return f"--resume {best} goes on from the best one" if best.exists() and path != best else None


def _resumed_settings(
    options: argparse.Namespace, checkpoint: Checkpoint, team: Team
) -> TrainSettings:
    """Return the stored settings; a flag that says something else would make it another run.

    Another number of processes does not: each then reads more or fewer of the same batches.
    """
    try:
        settings = TrainSettings(**(checkpoint.trainer_state or {})["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"the checkpoint's settings cannot be read: {error}") from error
    try:
        settings = settings.with_processes(team.size)
    except ValueError as error:
        raise CommandError(f"--resume: {error}") from error
    stored = dataclasses.asdict(settings) | checkpoint.config.to_dict()
    given = given_flags(options, (*MODEL_FLAGS, *SETTING_NAMES))
    if options.matmul_precision not in (None, "auto"):  # auto: as it was measured then
        given["matmul_precision"] = options.matmul_precision
    if options.compile and not settings.compiled:
        raise CommandError(
            "--resume goes on with a run that was not compiled; leave --compile out, or start a "
            "run without --resume"
        )
    for name, value in given.items():
        if value != stored[name]:
            reason = ""
            if name == "max_steps":
                reason = (
                    ": the learning rate falls from the first step to the last, so that a run of "
                    "another length is another run"
                )
            raise CommandError(
                f"--resume goes on with {flag(name)} {stored[name]}, got {value}{reason}; leave "
                "the flag out, or start a run without --resume"
            )
    return settings
