"""The command `python -m minigpt.train`: from encoded ids to a checkpoint that generates.

What happens in a step is in `trainer.py`; here are the flags, the presets and the order of things.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minigpt._cli import (
    EXIT_CHECK_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    CommandError,
    Parser,
)
from minigpt._training_state import LAST_NAME, NonFiniteError, TrainSettings

if TYPE_CHECKING:  # --help must not wait for torch
    import torch

    from minigpt._train_data import TrainData
    from minigpt.checkpoint import Checkpoint
    from minigpt.model import MiniGPT

MODEL_FLAGS: dict[str, type] = {
    "block_size": int,
    "embedding_dim": int,
    "num_heads": int,
    "num_layers": int,
    "expansion_factor": int,
    "dropout": float,
}
PRESETS: dict[str, dict[str, Any]] = {
    # Everything about it can be checked in seconds; too small to write well.
    "debug": {
        "block_size": 32,
        "embedding_dim": 64,
        "num_heads": 4,
        "num_layers": 2,
        "batch_size": 8,
        "max_steps": 300,
        "warmup_steps": 10,
        "log_every": 50,
        "evaluate_every": 50,
    },
    # The shape that nanoGPT's README recommends for a laptop without a GPU.
    "cpu": {
        "block_size": 64,
        "embedding_dim": 128,
        "num_heads": 4,
        "num_layers": 4,
        "batch_size": 12,
        "max_steps": 2000,
        "warmup_steps": 100,
        "log_every": 50,
        "evaluate_every": 250,
    },
}
THREAD_LIMIT = 256  # OpenMP ends the process, without a word, when it cannot start that many
SETTING_NAMES = tuple(field.name for field in dataclasses.fields(TrainSettings))
HELP = {
    "max_steps": "updates in the run; the schedule depends on it",
    "batch_size": "rows in a batch",
    "accumulation_steps": "batches whose gradients make one update",
    "learning_rate": "the peak, reached after the warm-up",
    "min_learning_rate": "the floor, reached at the last step",
    "warmup_steps": "default the preset's, at most a tenth of --max-steps",
    "clip_norm": "largest gradient norm used unscaled; 0 is off",
    "evaluation_windows": "windows of each split read by an evaluation; 0 reads the whole split",
    "patience": "stop after so many evaluations without a better validation loss; 0 is off",
    "dtype": "float32, or bfloat16 under autocast",
}


Preflight = Callable[["MiniGPT", "TrainData", TrainSettings], None]


def main(arguments: Sequence[str] | None = None, *, preflight: Preflight | None = None) -> int:
    """Train as the arguments say; returns the exit code.

    preflight: looks at what is about to train, before step 0; CheckFailedError stops it. The
        command in `__main__.py` hands it over, so that this module does not know the checks.
    """
    options = _parse(arguments)

    from minigpt._train_data import load_train_data
    from minigpt._train_report import TrainReport
    from minigpt.trainer import Trainer

    device = _set_up_torch(options)
    data = load_train_data(options.data, options.tokenizer)
    checkpoint = None if options.resume is None else _load_resumed(options, data, device)
    if checkpoint is None:
        model, settings = _new_run(options, data, device)
    else:
        model, settings = checkpoint.model, _resumed_settings(options, checkpoint)
    data.require_usable(model.config)
    if preflight is not None and checkpoint is None and not options.no_preflight:
        preflight(model, data, settings)
    report = TrainReport(data, model, settings, options.checkpoints)
    with _signals_noted() as stop, report:
        try:
            trainer = Trainer(
                model,
                data.tokenizer,
                data.train_ids,
                data.validation_ids,
                settings,
                folder=options.checkpoints,
                corpus_fingerprint=data.corpus_fingerprint,
                on_step=report.on_step,
                should_stop=stop.is_set,
                checkpoint=checkpoint,
            )
        except ValueError as error:  # a checkpoint whose training state does not fit
            raise CommandError(str(error)) from error
        report.print_header(trainer.state.step)
        try:
            reason = trainer.run(stop_after=options.stop_after)
        except NonFiniteError as error:
            report.close()
            print(f"error: {error}", file=sys.stderr)
            return EXIT_CHECK_FAILED
    report.print_summary(trainer, reason)
    return EXIT_INTERRUPTED if reason == "interrupted" else EXIT_OK


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m minigpt.train",
        description="Train a Mini-GPT on the ids that `python -m minigpt.prepare` wrote.",
    )
    add = parser.add_argument
    add("--preset", choices=PRESETS, help="sizes to start from; default debug")
    resume_help = f"go on exactly where FILE, by default {LAST_NAME}, left off"
    add("--resume", nargs="?", type=Path, const=Path(), metavar="FILE", help=resume_help)
    add("--stop-after", type=int, metavar="N", help="pause the run after step N, to be resumed")
    add("--no-preflight", action="store_true", help="train without checking everything first")
    paths = parser.add_argument_group("files").add_argument
    paths("--data", type=Path, default=Path("data/encoded"), metavar="FOLDER", help="encoded ids")
    paths("--tokenizer", type=Path, default=Path("tokenizer/char_tokenizer.json"), metavar="FILE")
    paths("--checkpoints", type=Path, default=Path("checkpoints"), metavar="FOLDER")
    machine = parser.add_argument_group("machine").add_argument
    machine("--device", help="cpu, cuda, mps; default the best there is")
    machine("--threads", type=int, metavar="N", help="CPU threads; default torch's own choice")
    machine("--matmul-precision", choices=("highest", "high", "medium"), default="highest")
    sizes = parser.add_argument_group("model (fixed by the checkpoint on --resume)").add_argument
    for name, kind in MODEL_FLAGS.items():
        sizes(_flag(name), type=kind, metavar="N")
    numbers = parser.add_argument_group("run (fixed by the checkpoint on --resume)").add_argument
    for field in dataclasses.fields(TrainSettings):
        kind = type(field.default)
        numbers(_flag(field.name), type=kind, metavar="N", help=HELP.get(field.name))
    return parser.parse_args(arguments)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _in_flags(message: str) -> str:
    """Return the message with the names of fields as the flags that were typed."""
    names = "|".join((*MODEL_FLAGS, *SETTING_NAMES))
    return re.sub(rf"\b({names})\b", lambda match: _flag(match[0]), message)


def _set_up_torch(options: argparse.Namespace) -> torch.device:
    """Apply what is about the machine and not about the run; return the device."""
    import torch

    from minigpt.device import find_device

    if options.threads is not None:
        if not 1 <= options.threads <= THREAD_LIMIT:
            raise CommandError(f"--threads must be in 1..{THREAD_LIMIT}, got {options.threads}")
        torch.set_num_threads(options.threads)
    if options.stop_after is not None and options.stop_after < 1:
        raise CommandError(f"--stop-after must be >= 1, got {options.stop_after}")
    torch.set_float32_matmul_precision(options.matmul_precision)
    try:
        return find_device(options.device)
    except ValueError as error:
        raise CommandError(f"--{error}") from error


def _new_run(
    options: argparse.Namespace, data: TrainData, device: torch.device
) -> tuple[MiniGPT, TrainSettings]:
    """Build the model and the settings from the preset and the flags given."""
    from minigpt.model import MiniGPT, MiniGPTConfig
    from minigpt.seed import set_seed

    preset = PRESETS[options.preset or "debug"]
    values = preset | _given(options, (*MODEL_FLAGS, *SETTING_NAMES))
    if options.warmup_steps is None:  # a run shorter than the preset's needs a shorter warm-up
        values["warmup_steps"] = min(values["warmup_steps"], values["max_steps"] // 10)
    if options.min_learning_rate is None and options.learning_rate is not None:
        values["min_learning_rate"] = options.learning_rate / 10
    sizes = {name: values.pop(name) for name in MODEL_FLAGS if name in values}
    try:
        settings = TrainSettings(**values)
        config = MiniGPTConfig(vocab_size=data.tokenizer.vocab_size, **sizes)
    except ValueError as error:
        raise CommandError(_in_flags(str(error))) from error
    set_seed(settings.seed)
    return MiniGPT(config).to(device), settings


def _load_resumed(options: argparse.Namespace, data: TrainData, device: torch.device) -> Checkpoint:
    """Load the checkpoint to go on from, and refuse one of another corpus."""
    from minigpt.checkpoint import CheckpointError, load_checkpoint

    path = options.checkpoints / LAST_NAME if options.resume == Path() else options.resume
    if not path.exists():
        raise CommandError(f"nothing to resume at {path}; start a run without --resume")
    try:
        checkpoint = load_checkpoint(path, tokenizer=data.tokenizer, device=device)
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


def _resumed_settings(options: argparse.Namespace, checkpoint: Checkpoint) -> TrainSettings:
    """Return the stored settings; a flag that says something else would make it another run."""
    try:
        settings = TrainSettings(**(checkpoint.trainer_state or {})["settings"])
    except (KeyError, TypeError, ValueError) as error:
        raise CommandError(f"the checkpoint's settings cannot be read: {error}") from error
    stored = dataclasses.asdict(settings) | checkpoint.config.to_dict()
    for name, value in _given(options, (*MODEL_FLAGS, *SETTING_NAMES)).items():
        if value != stored[name]:
            raise CommandError(
                f"--resume goes on with {_flag(name)} {stored[name]}, got {value}; leave the flag "
                "out, or start a run without --resume"
            )
    return settings


def _given(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


@contextmanager
def _signals_noted() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C (or SIGTERM) into a flag, so that no update is cut in the middle.

    The second one interrupts at once, for a user who does not want to wait.
    """
    requested = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread():
        yield requested  # only the main thread may set handlers
        return
    before = {number: signal.getsignal(number) for number in numbers}

    def note(number: int, frame: object) -> None:
        requested.set()
        for each in numbers:
            signal.signal(each, signal.default_int_handler)

    for number in numbers:
        signal.signal(number, note)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
