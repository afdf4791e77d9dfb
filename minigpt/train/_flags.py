"""The flags of `python -m minigpt.train`, and the presets they start from. Imports no torch."""

from __future__ import annotations

import argparse
import dataclasses
import io
import re
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from minigpt._cli import Parser
from minigpt._training_state import LAST_NAME, MATMUL_PRECISIONS, TrainSettings

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
# torchrun says how many processes there are; the other two have flags of another form.
NOT_NUMBERS = ("processes", "matmul_precision", "compiled")
SETTING_NAMES = tuple(
    field.name for field in dataclasses.fields(TrainSettings) if field.name not in NOT_NUMBERS
)
HELP = {
    "max_steps": "updates in the run; the schedule depends on it",
    "batch_size": "rows in a batch",
    "accumulation_steps": "batches of each process whose gradients make one update",
    "learning_rate": "the peak, reached after the warm-up",
    "min_learning_rate": "the floor, reached at the last step",
    "warmup_steps": "default the preset's, at most a tenth of --max-steps",
    "clip_norm": "largest gradient norm used unscaled; 0 is off",
    "evaluation_windows": "windows of each split read by an evaluation; 0 reads the whole split",
    "patience": "stop after so many evaluations without a better validation loss; 0 is off",
    "dtype": "float32, or bfloat16 under autocast",
}


def parse_flags(arguments: Sequence[str] | None, *, quiet: bool = False) -> argparse.Namespace:
    """Return the flags; quiet: another process of the same command says what is wrong."""
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
    add("--no-monitor", action="store_true", help="train without watching for silent faults")
    paths = parser.add_argument_group("files").add_argument
    paths("--data", type=Path, default=Path("data/encoded"), metavar="FOLDER", help="encoded ids")
    paths("--tokenizer", type=Path, default=Path("tokenizer/char_tokenizer.json"), metavar="FILE")
    paths("--checkpoints", type=Path, default=Path("checkpoints"), metavar="FOLDER")
    html_help = "show the run as a page of HTML, rewritten while it trains"
    paths("--html", type=Path, metavar="FILE", help=html_help)
    wait_help = "how long the run stands still where it cannot save, a full disk; default 300"
    paths("--save-wait", type=_seconds, default=300.0, metavar="SECONDS", help=wait_help)
    machine = parser.add_argument_group("machine").add_argument
    machine("--device", help="cpu, cuda, mps; default the best there is")
    threads_help = "CPU threads; default torch's own choice, a fair share for torchrun's processes"
    machine("--threads", type=int, metavar="N", help=threads_help)
    precision_help = "of float32 products; auto measures. Default highest; fixed on --resume"
    machine("--matmul-precision", choices=("auto", *MATMUL_PRECISIONS), help=precision_help)
    compile_help = "torch.compile the updates, where it works; fixed on --resume"
    machine("--compile", action="store_true", help=compile_help)
    sizes = parser.add_argument_group("model (fixed by the checkpoint on --resume)").add_argument
    for name, kind in MODEL_FLAGS.items():
        sizes(flag(name), type=kind, metavar="N")
    numbers = parser.add_argument_group("run (fixed by the checkpoint on --resume)").add_argument
    for field in dataclasses.fields(TrainSettings):
        if field.name in SETTING_NAMES:
            kind = type(field.default)
            numbers(flag(field.name), type=kind, metavar="N", help=HELP.get(field.name))
    if not quiet:
        return parser.parse_args(arguments)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds >= 0, got {text}")
    return value


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def in_flags(message: str) -> str:
    """Return the message with the names of fields as the flags that were typed."""
    names = "|".join((*MODEL_FLAGS, *SETTING_NAMES))
    return re.sub(rf"\b({names})\b", lambda match: flag(match[0]), message)


def given_flags(options: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}
