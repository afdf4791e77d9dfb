"""Saving a model with everything that it cannot do without, and loading it back or not at all.

A file of weights alone is a trap: with another tokenizer of the same size it writes nonsense,
without the optimizer's state the loss jumps on resume, and one changed bit goes unnoticed. A
checkpoint here is one file with weights, configuration, tokenizer, optimizer, random states and a
digest over all of it. It appears under its name only once it is whole, so a crash while saving
leaves the one before.

The suffix decides the format: `.safetensors` (ours, see `_native_checkpoint`) or `.pt` (the course
guide's dictionary, readable by plain torch, see `_guide_checkpoint`). Neither runs code on loading.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from minigpt._checkpoint_config import make_config
from minigpt._checkpoint_contents import Contents, gather, name_parameters
from minigpt._checkpoint_errors import (
    CheckpointConfigError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointTokenizerError,
    corrupt,
)
from minigpt._files import atomic_write
from minigpt._guide_checkpoint import read_guide, write_guide
from minigpt._native_checkpoint import read_native, write_native
from minigpt.fingerprint import tokenizer_fingerprint
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import move_optimizer_to_device
from minigpt.tokenizer import CharTokenizer
from minigpt.weights import build_without_memory, explain_state_dict_mismatch, load_weights

__all__ = [
    "Checkpoint",
    "CheckpointConfigError",
    "CheckpointCorruptError",
    "CheckpointError",
    "CheckpointTokenizerError",
    "explain_state_dict_mismatch",
    "load_checkpoint",
    "load_weights",
    "save_checkpoint",
]

FORMATS = {".safetensors": (read_native, write_native), ".pt": (read_guide, write_guide)}
MOMENTS = frozenset({"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer"})


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """What `load_checkpoint` returns.

    model: in eval mode, on the device asked for; every parameter trainable.
    tokenizer: the one the model was trained with; None for a `.pt` loaded without one.
    losses: mean nats per token at the time of saving, None where they were not given.
    optimizer_state: as `optimizer.state_dict()` gave it, on the CPU; see `restore_optimizer`.
    random_states: for `minigpt.seed.restore_random_states`.
    """

    model: MiniGPT = field(repr=False)
    tokenizer: CharTokenizer | None
    config: MiniGPTConfig
    step: int
    tokenizer_fingerprint: str | None
    corpus_fingerprint: str | None
    train_loss: float | None
    validation_loss: float | None
    best_validation_loss: float | None
    optimizer_class: str | None
    optimizer_parameters: list[str] | None = field(repr=False)
    optimizer_state: dict[str, Any] | None = field(repr=False)
    trainer_state: dict[str, Any] | None = field(repr=False)
    random_states: dict[str, Tensor] | None = field(repr=False)
    versions: dict[str, str]
    path: Path

    def restore_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Put the saved state into an optimizer over `self.model`, on the model's device.

        The state moves: its tensors are the optimizer's from now on, and `optimizer_state` is
        empty afterwards. A second optimizer would share, and so change, the moments of the first.
        Raises CheckpointError when there is no state (left), CheckpointConfigError when it belongs
        to an optimizer of another class, or to other parameters, or to the same in another order,
        and ValueError for an optimizer over another model.
        """
        if not self.optimizer_state:
            reason = "was saved without an optimizer"
            if self.optimizer_state is not None:
                reason = "has given its optimizer state away already; load it again"
            raise CheckpointError(f"{self.path} {reason}")
        self._require_same_optimizer(optimizer)
        try:
            optimizer.load_state_dict(self.optimizer_state)
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise CheckpointConfigError(
                f"{self.path}: the optimizer state does not fit: {error}"
            ) from error
        move_optimizer_to_device(optimizer, next(self.model.parameters()).device)
        self.optimizer_state.clear()

    def _require_same_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        given = type(optimizer).__name__
        if self.optimizer_class not in (None, given):
            raise CheckpointConfigError(
                f"{self.path} holds the state of {self.optimizer_class}, got a {given}"
            )
        names = name_parameters(self.model, optimizer)
        saved = self.optimizer_parameters or names  # a file of the guide does not tell
        if names != saved:
            pairs = zip([*saved, None], [*names, None], strict=False)
            index, pair = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
            raise CheckpointConfigError(
                f"{self.path} holds the state of {len(saved)} parameters, the optimizer has "
                f"{len(names)}; number {index} was {pair[0]} and is {pair[1]}. Group them as "
                "for the saved run, with minigpt.make_optimizer for example"
            )
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for index, state in (self.optimizer_state or {})["state"].items():
            shape = tuple(parameters[index].shape) if index in range(len(parameters)) else None
            for key in MOMENTS & state.keys():
                if isinstance(state[key], Tensor) and tuple(state[key].shape) != shape:
                    raise CheckpointConfigError(
                        f"{self.path}: {key} of parameter {index} must have shape {shape}, "
                        f"got {tuple(state[key].shape)}"
                    )


def save_checkpoint(
    path: str | os.PathLike[str],
    model: nn.Module,
    tokenizer: CharTokenizer,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    train_loss: float | None = None,
    validation_loss: float | None = None,
    best_validation_loss: float | None = None,
    corpus_fingerprint: str | None = None,
    trainer_state: Mapping[str, Any] | None = None,
    random_states: Mapping[str, Tensor] | None = None,
) -> None:
    """Write a checkpoint; the file at `path` is the old one until the new one is whole.

    model: a MiniGPT in any mode and dtype, on any device, also inside torch.compile or data
    parallelism; it is not changed, and the file has its plain names. step: updates made so far.
    trainer_state: whatever JSON can hold (tuples come back as lists). random_states: see
    `minigpt.seed.random_states`; other generators' states may be added as tensors.

    Raises ValueError for another suffix or a step < 0, TypeError for a model that is no MiniGPT
    or values that the format cannot hold, CheckpointTokenizerError for a tokenizer with more
    characters than the model has ids, OSError when the file cannot be written.
    """
    _, write = _find_format(path)
    contents = gather(
        model,
        tokenizer,
        optimizer=optimizer,
        step=step,
        losses={
            "train_loss": train_loss,
            "validation_loss": validation_loss,
            "best_validation_loss": best_validation_loss,
        },
        corpus_fingerprint=corpus_fingerprint,
        trainer_state=trainer_state,
        random_states=random_states,
    )
    with atomic_write(path) as file:
        write(file, contents)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    tokenizer: CharTokenizer | None = None,
    device: torch.device | str = "cpu",
) -> Checkpoint:
    """Read a checkpoint and build its model from the configuration in the file, in eval mode.

    tokenizer: the one that will be used; it must be the one of the training run. Without it, the
    tokenizer in the file is returned (a `.pt` has none). Nothing of the file stays open or mapped.

    Raises FileNotFoundError when there is no file, and otherwise a CheckpointError (a ValueError):
    CheckpointTokenizerError for another tokenizer, CheckpointConfigError for weights that do not
    fit the configuration, CheckpointCorruptError for a truncated, damaged or foreign file.
    Warns about a file without a tokenizer fingerprint, which may belong to any tokenizer.
    """
    read, _ = _find_format(path)
    if not os.path.lexists(path):
        reason = "no checkpoint here; create one with `python -m minigpt.train`"
        raise FileNotFoundError(errno.ENOENT, reason, os.fspath(path))
    contents = read(path)
    tokenizer = _match_tokenizer(contents, path, tokenizer)
    config = make_config(contents, path)
    model = build_without_memory(config)
    try:
        load_weights(model, contents.weights, assign=True)
    except CheckpointConfigError as error:
        raise CheckpointConfigError(f"{os.fspath(path)}: {error}") from None
    _tie(model, contents.tied)
    return Checkpoint(
        model=model.to(device).eval(),
        tokenizer=tokenizer,
        config=config,
        path=Path(path),
        **{
            name: getattr(contents, name)
            for name in Contents.__dataclass_fields__.keys() & Checkpoint.__dataclass_fields__
            if name != "config"
        },
    )


def _find_format(path: str | os.PathLike[str]) -> tuple[Any, Any]:
    suffix = Path(path).suffix
    if suffix not in FORMATS:
        raise ValueError(
            f"a checkpoint's name must end in {' or '.join(FORMATS)}, got {os.fspath(path)}"
        )
    return FORMATS[suffix]


def _match_tokenizer(
    contents: Contents, path: str | os.PathLike[str], given: CharTokenizer | None
) -> CharTokenizer | None:
    """Return the tokenizer to use, after comparing all that is known about it."""
    stored, inside = contents.tokenizer_fingerprint, None
    if contents.chars is not None:
        try:
            inside = CharTokenizer(contents.chars)
        except (ValueError, TypeError) as error:
            raise corrupt(
                path, wanted="a tokenizer", found=f"characters that are none: {error}"
            ) from None
        if inside.fingerprint != stored:
            raise corrupt(path, wanted=f"a tokenizer of {stored}", found=inside.fingerprint)
    if stored is None:
        warnings.warn(
            f"{os.fspath(path)} has no tokenizer fingerprint: nothing proves which tokenizer it "
            "was trained with. Look at a sample; if it reads well, save the checkpoint again",
            stacklevel=3,
        )
        if given is not None and given.vocab_size != contents.config.get("vocab_size"):
            raise CheckpointTokenizerError(
                f"{os.fspath(path)} was trained with {contents.config.get('vocab_size')} "
                f"characters, got a tokenizer of {given.vocab_size} characters"
            )
        return given
    if given is None:
        return inside
    found = tokenizer_fingerprint(given.chars)
    if found != stored:
        remedy = "leave the tokenizer out: the checkpoint has its own"
        if inside is None:
            remedy = "find the tokenizer file that was written for that training run"
        raise CheckpointTokenizerError(
            f"{os.fspath(path)} was trained with the tokenizer {stored}, got {found} "
            f"({given.vocab_size} characters). Trust the checkpoint; {remedy}"
        )
    return given


def _tie(model: MiniGPT, tied: Mapping[str, str]) -> None:
    """Make one parameter again of names that were one when the model was saved."""
    for name, kept in tied.items():
        module_name, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(module_name), attribute, model.get_parameter(kept))
