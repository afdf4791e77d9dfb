"""The command that shows the same failure again, without what only wrote files."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

PROGRAM = "python -m diagnostics"
_WRITES = ("--json", "--html", "--ask")  # each with a value, which --ask may lack


def reproduce_command(arguments: Sequence[str]) -> str:
    """Return the command with these arguments, as a shell reads it, without the files it writes.

    arguments: those after the program's name, as they were given.
    """
    kept: list[str] = []
    dropping = False
    for argument in arguments:
        flag = argument.partition("=")[0]
        if argument.startswith("--"):
            dropping = any(len(flag) > 3 and name.startswith(flag) for name in _WRITES)
            if dropping:
                dropping = "=" not in argument
                continue
        elif dropping:
            dropping = False
            continue
        kept.append(argument)
    return shlex.join([*PROGRAM.split(), *kept])


def recipe_of(config: dict[str, Any], settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the commands that prepare and train a Mini-GPT with these sizes and settings.

    config, settings: of its checkpoint, as plain values by their names.
    """
    sizes = {name: value for name, value in config.items() if name != "vocab_size"}
    flags = {name: value for name, value in {**sizes, **settings}.items() if name in _TRAIN_FLAGS}
    words = [f"--{name.replace('_', '-')} {shlex.quote(str(flags[name]))}" for name in flags]
    return (
        "python -m minigpt.prepare --text YOUR_TEXT.txt",
        " ".join(["python -m minigpt.train", *words]),
    )


def add_flags(command: str, *, seed: Any = None, only: str | None = None) -> str:
    """Return the command with a seed, or with one check alone, where it does not say so itself."""
    try:
        given = [word.partition("=")[0] for word in shlex.split(command)]
    except ValueError:  # no shell would read it
        return command
    if seed is not None and "--seed" not in given:
        command += f" --seed {shlex.quote(str(seed))}"
    if only is not None and not {"--only", "--skip", "--self-test"} & set(given):
        command += f" --only {shlex.quote(only)}"
    return command


# Flags of `python -m minigpt.train` that change what is learnt.
_TRAIN_FLAGS = frozenset(
    {
        "block_size",
        "embedding_dim",
        "num_heads",
        "num_layers",
        "expansion_factor",
        "dropout",
        "max_steps",
        "batch_size",
        "accumulation_steps",
        "learning_rate",
        "min_learning_rate",
        "warmup_steps",
        "beta1",
        "beta2",
        "weight_decay",
        "clip_norm",
        "seed",
        "dtype",
    }
)
