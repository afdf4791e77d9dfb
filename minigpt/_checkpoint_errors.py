"""What can be wrong with a checkpoint; every message names the file, what it holds, what to do."""

from __future__ import annotations

import os

REMEDY = "use another copy of it, or make a new one with `python -m minigpt.train`"


class CheckpointError(ValueError):
    """The checkpoint cannot be used for what was asked of it."""


class CheckpointTokenizerError(CheckpointError):
    """The tokenizer is not the one that the model was trained with."""


class CheckpointConfigError(CheckpointError):
    """The weights, or the optimizer's state, belong to another architecture."""


class CheckpointCorruptError(CheckpointError):
    """The file is truncated, damaged, foreign or hostile; nothing in it was executed."""


def corrupt(
    path: str | os.PathLike[str], *, wanted: str, found: str, remedy: str = REMEDY
) -> CheckpointCorruptError:
    """Return the error for a file that is not what a checkpoint must be."""
    return CheckpointCorruptError(
        f"{os.fspath(path)} is no usable checkpoint: wanted {wanted}, found {found}; {remedy}"
    )
