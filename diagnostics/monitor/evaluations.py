"""Evaluations: what they say about the gap, and what they do to the model.

An evaluation must leave weights, buffers and modes as they are. It may draw random numbers (a fresh
data loader does), but it must not seed: then the batches after each evaluation are the same ones.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._side_effects import random_states
from diagnostics._state import some
from diagnostics._text import say
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.modes import depends_on_mode

SAMPLE_MAX = 4096  # numbers of one tensor that are compared
WORSE = 0.1  # nats above the best validation loss
WORSE_TIMES = 3  # evaluations in a row
NOISE = 4.0  # times the noise of one evaluation, where it is more: a best may be luck
BELOW = 0.1  # nats of validation below training, both measured in the same way
_SOURCES = ("Python", "NumPy", "torch")


@dataclass
class EvaluationWatch:
    """Judges the losses of evaluations, and what happens inside `watched`."""

    speaker: Speaker
    losses: list[tuple[int, float, float | None]] = field(default_factory=list)
    _best: tuple[float, float | None] = (math.inf, None)  # validation, training at that time
    _worse: int = 0
    _below: int = 0
    _ends: list[tuple[bytes, ...]] = field(default_factory=list)  # random states after evaluations

    def see(self, step: int, validation: float, training: float | None, *, same_way: bool) -> None:
        """Judge one evaluation.

        training: loss on training data, or None.    same_way: measured as the validation loss was,
        not taken from the updates, where dropout and label smoothing raise it.
        """
        self.losses.append((step, validation, training))
        if not math.isfinite(validation):
            self.speaker.speak(
                "validation_not_finite",
                step,
                say("the validation loss is {loss}", loss=validation),
                say("a finite number"),
                cause=say("the weights are not finite, or no token was scored"),
                measured=validation,
            )
            return
        self._judge_overfitting(step, validation, training)
        below = same_way and training is not None and validation < training - BELOW
        self._below = self._below + 1 if below else 0
        if self._below >= WORSE_TIMES:
            self.speaker.speak(
                "validation_below_training",
                step,
                say(
                    "the validation loss {loss} is below the training loss {training}, {n} times "
                    "in a row",
                    loss=validation,
                    training=training,
                    n=self._below,
                ),
                say("about the same, or more"),
                cause=say(
                    "validation text is in the training data, is easier, or is scored differently"
                ),
                measured=validation,
            )

    def _judge_overfitting(self, step: int, validation: float, training: float | None) -> None:
        best, training_then = self._best
        if validation < best:
            self._best, self._worse = (validation, training), 0
            return
        fell = training is None or training_then is None or training < training_then
        noise = noise_of([loss for _, loss, _ in self.losses[-20:]])
        worse = validation > best + max(WORSE, NOISE * noise)
        self._worse = self._worse + 1 if worse and fell else 0
        if self._worse >= WORSE_TIMES:
            self.speaker.speak(
                "overfitting",
                step,
                say(
                    "the validation loss is {loss}, after a best of {best}, {n} evaluations ago "
                    "or more",
                    loss=validation,
                    best=best,
                    n=self._worse,
                ),
                say("one that falls with the training loss"),
                cause=say("the model learns the training text by heart: the best weights are past"),
                measured=validation,
                best=best,
                training=training,
            )

    @contextmanager
    def watched(self, step: int, model: nn.Module) -> Iterator[None]:
        """Compare the model before and after the block, and see in which mode it runs."""
        before = _Picture(model)
        ran_in_train: list[bool] = []

        def note_mode(module: nn.Module, args: Any) -> None:
            ran_in_train.append(module.training)

        handle = model.register_forward_pre_hook(note_mode)
        try:
            yield
        finally:
            handle.remove()
        self._judge_change(step, model, before)
        parts = [n for n, m in model.named_modules() if depends_on_mode(m)]
        if any(ran_in_train) and parts:
            self.speaker.speak(
                "evaluation_in_train_mode",
                step,
                say(
                    "{n} of {all} forward calls of the evaluation ran in train mode",
                    n=sum(ran_in_train),
                    all=len(ran_in_train),
                ),
                say("eval mode in all of them"),
                cause=say("dropout or batch norm is active in {names}", names=some(parts)),
                measured=float(sum(ran_in_train)),
            )

    def _judge_change(self, step: int, model: nn.Module, before: _Picture) -> None:
        after = _Picture(model)
        for reason, noun, cause in (
            ("weights", "parameters", say("it calls optimizer.step(), or writes weights")),
            ("buffers", "buffers", say("batch norm ran in train mode, or something counts calls")),
            ("modes", "modes", say("train() or eval() was not put back after the evaluation")),
        ):
            changed = before.changes(after, reason)
            if changed:
                self.speaker.speak(
                    f"evaluation_changes_{reason}",
                    step,
                    say(
                        "the evaluation changed {n} {noun}: {names}",
                        n=len(changed),
                        noun=noun,
                        names=some(changed),
                    ),
                    say("none"),
                    cause=cause,
                    measured=float(len(changed)),
                    names=changed,
                )
        self._judge_random(step, before.random, after.random)

    def _judge_random(self, step: int, before: tuple[bytes, ...], after: tuple[bytes, ...]) -> None:
        moved = [s for s, a, b in zip(_SOURCES, before, after, strict=True) if a != b]
        reset = [
            source
            for place, source in enumerate(_SOURCES)
            if source in moved and any(end[place] == after[place] for end in self._ends)
        ]
        if reset:
            self.speaker.speak(
                "evaluation_seeds",
                step,
                say("two evaluations left the random state of {s} the same", s=some(reset)),
                say("a state that goes on"),
                cause=say("the evaluation seeds, so the batches after it are the same each time"),
                sources=reset,
            )
        elif moved:
            self.speaker.speak(
                "evaluation_draws",
                step,
                say("the evaluation draws from the random state of {s}", s=some(moved)),
                say("a generator of its own, if runs are to be repeated with other evaluations"),
                note=True,
            )
        self._ends = [*self._ends[-7:], after]


def noise_of(losses: list[float]) -> float:
    """Return the robust standard deviation of losses about a line through their neighbours.

    A trend leaves none. 0 for fewer than seven losses, which say nothing about it.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    if len(finite) < 7:
        return 0.0
    bends = [abs(b - (a + c) / 2) for a, b, c in zip(finite, finite[1:], finite[2:], strict=False)]
    return 1.4826 * statistics.median(bends) / math.sqrt(1.5)


class _Picture:
    """What an evaluation must not change, as numbers that are compared bit for bit."""

    def __init__(self, model: nn.Module) -> None:
        kept = set(model.state_dict(keep_vars=True))
        self.weights = {n: _sample(p) for n, p in model.named_parameters()}
        self.buffers = {n: _sample(b) for n, b in model.named_buffers() if n in kept}
        self.modes = {n or "the model itself": m.training for n, m in model.named_modules()}
        self.random = random_states()

    def changes(self, after: _Picture, part: str) -> list[str]:
        """Return the names of what differs; new and vanished ones do not count."""
        mine, other = getattr(self, part), getattr(after, part)
        return [n for n, was in mine.items() if n in other and not _same(was, other[n])]


def _same(a: Any, b: Any) -> bool:
    return same_bytes(a, b) if isinstance(a, Tensor) else bool(a == b)


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    with torch.no_grad():
        return flat[:: max(1, math.ceil(flat.numel() / SAMPLE_MAX))].clone()
