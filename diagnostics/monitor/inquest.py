"""What happens when a number is not finite: find the place, write the post-mortem, say it.

For each kind of problem this is done once; after that the problem is only counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from diagnostics._state import some
from diagnostics._text import Text, say
from diagnostics.monitor import postmortem
from diagnostics.monitor.batches import first_tensor
from diagnostics.monitor.calls import Forward
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.finding import Finding
from diagnostics.monitor.replay import non_finite, replay

if TYPE_CHECKING:
    from diagnostics.monitor.update import Update

NAMES_MAX = 200  # in a post-mortem
_NUMERIC = ("nan", "finite", "overflow")  # words in the message of an error about numbers


@dataclass(frozen=True)
class KeptBatch:
    """References to what one update was made from; nothing is copied."""

    step: int
    inputs: Any
    targets: Any
    random_state: Tensor | None  # of torch on the CPU, before the forward pass


class Inquest:
    """Keeps the batches of late updates, and examines the one that broke.

    folder: for post-mortems, or None.    lag: updates by which a problem may be noticed late.
    """

    def __init__(
        self,
        speaker: Speaker,
        folder: Path | None,
        forward: Forward | None,
        precision: Callable[[], AbstractContextManager[Any]],
        lag: int,
    ) -> None:
        self.speaker, self.folder = speaker, folder
        self.forward, self.precision = forward, precision
        self.record: dict[str, Any] | None = None
        self.path: Path | None = None
        self._batches: deque[KeptBatch] = deque(maxlen=lag + 1)
        self._random_state: Tensor | None = None

    @property
    def has_batch(self) -> bool:
        """Whether any batch was given."""
        return bool(self._batches)

    def keep(self, step: int, inputs: Any, targets: Any, *, before: bool) -> None:
        """Keep one batch.

        before: its forward pass is still to come; otherwise the random state is that of the end of
        the step before, after which the loop may have drawn.
        """
        state = torch.get_rng_state() if before else self._random_state
        if self._batches and self._batches[-1].step == step:
            kept = self._batches.pop()  # `begin` has told it already
            state = kept.random_state
        self._batches.append(KeptBatch(step, inputs, targets, state))

    def end_of_step(self) -> None:
        """Note the random state: the next forward pass starts from it, or a little later."""
        self._random_state = torch.get_rng_state()

    def note_loss(self, update: Update, model: nn.Module | None, history: Sequence[Update]) -> None:
        """Report a loss that is not a number."""
        claim = say("the loss is {x}", x=update.loss)
        self._report("loss_not_finite", claim, update.loss, update, model, history)

    def note_gradient(
        self, update: Update, model: nn.Module | None, history: Sequence[Update]
    ) -> None:
        """Report a gradient norm that is not a number although the loss is one."""
        claim = say(
            "the gradient norm is {x}, and the loss {loss}", x=update.grad_norm, loss=update.loss
        )
        self._report("gradient_not_finite", claim, update.grad_norm, update, model, history)

    def note_exception(
        self, step: int, error: Exception, model: nn.Module | None, history: Sequence[Update]
    ) -> None:
        """Write what is known when the loop raises; replay where the error speaks of numbers."""
        if self.record is not None and self.record["step"] >= step:
            return  # the same story is told already
        message = f"{type(error).__name__} {error}".lower()
        numeric = isinstance(error, ArithmeticError) or any(w in message for w in _NUMERIC)
        latest = self._batches[-1] if self._batches else None
        broken = max(step, latest.step if latest is not None else 0)
        finding, weights = self._examine(model, broken) if numeric else (Finding(), [])
        sentence = say(
            "training ended with {kind}: {error}",
            kind=type(error).__name__,
            error=str(error)[:500],
        )
        if finding.phase:
            sentence = say("{a}; {b}", a=sentence, b=finding.sentence())
        record = self._describe("exception", broken, sentence, finding, weights, model, history)
        record["exception"] = {"type": type(error).__name__, "message": str(error)[:2000]}
        self._write(record)

    def _report(
        self,
        reason: str,
        claim: Text,
        measured: float | None,
        update: Update,
        model: nn.Module | None,
        history: Sequence[Update],
    ) -> None:
        if self.speaker.said(reason):
            self.speaker.speak(reason, update.step, claim, say(""))
            return
        finding, weights = self._examine(model, update.step)
        cause = _sentence(finding, weights)
        if weights and self.speaker.said("gradient_not_finite"):
            cause = say("the gradient that was not finite went into the weights")
        event = self.speaker.speak(
            reason, update.step, claim, say("a finite number"), cause=cause, measured=measured
        )
        sentence = say("{a}; {b}", a=claim, b=cause)
        record = self._describe(
            f"monitor.{reason}", update.step, sentence, finding, weights, model, history
        )
        record |= {
            "loss": update.loss,
            "grad_norm": update.grad_norm,
            "learning_rates": list(update.learning_rates),
        }
        self._write(record)
        if event is not None:
            event.numbers = dict(record["where"])
            if self.path is not None and self.folder is not None:
                event.cause = say("{cause}. Post-mortem: {path}", cause=cause, path=str(self.path))

    def _examine(self, model: nn.Module | None, step: int) -> tuple[Finding, list[str]]:
        """Return where it broke, and which weights are not finite by now."""
        if model is None:
            return Finding(trouble="the monitor was given no model"), []
        weights = non_finite(dict(model.named_parameters()))
        if weights:
            return Finding(phase="weights", parameter=weights[0]), weights
        batch = next((b for b in self._batches if b.step == step), None)
        if batch is None:
            return Finding(trouble="step() was not given the inputs"), []
        finding = replay(
            model,
            batch.inputs,
            batch.targets,
            self.forward,
            random_state=batch.random_state,
            precision=self.precision,
        )
        return finding, weights

    def _describe(
        self,
        reason: str,
        step: int,
        sentence: Text,
        finding: Finding,
        weights: list[str],
        model: nn.Module | None,
        history: Sequence[Update],
    ) -> dict[str, Any]:
        gradients = {}
        if model is not None:
            gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        batch = next((b for b in self._batches if b.step == step), None)
        ids = None if batch is None else first_tensor(batch.inputs)
        where = asdict(finding)
        where.pop("loss_is_ours")
        made = finding.phase in ("forward", "backward") or finding.loss is not None
        return {
            "schema": postmortem.SCHEMA,
            "version": postmortem.VERSION,
            "reason": reason,
            "step": step,
            "sentence": sentence,
            "loss": None,
            "grad_norm": None,
            "learning_rates": [],
            "exception": None,
            "replay": {
                "made": made,
                "reproduced": finding.phase in ("forward", "backward"),
                "trouble": where.pop("trouble"),
                "loss": where.pop("loss"),
            },
            "where": where,
            "weights": {"finite": not weights, "non_finite": weights[:NAMES_MAX]},
            "gradients": {
                "seen": bool(gradients),
                "non_finite": non_finite(gradients)[:NAMES_MAX],
            },
            "batch": postmortem.describe_batch(ids),
            "history": [asdict(update) for update in history],
            "events": [event.to_dict() for event in self.speaker.events],
            "notes": [event.to_dict() for event in self.speaker.notes],
            "environment": postmortem.describe_environment(model),
        }

    def _write(self, record: dict[str, Any]) -> None:
        self.record = record
        if self.folder is None:
            return
        try:
            self.path = postmortem.write(self.folder, record)
        except OSError as error:
            self.speaker.speak(
                "postmortem_not_written",
                record["step"],
                say("the post-mortem could not be written: {error}", error=error.strerror or error),
                say("a file in {folder}", folder=str(self.folder)),
                cause=say("it is kept in `monitor.postmortem`"),
            )


def _sentence(finding: Finding, weights: list[str]) -> Text:
    if not weights:
        return finding.sentence()
    return say(
        "{n:weight tensor is|weight tensors are} not finite: {names}; those before the update are "
        "gone, so it cannot be run again. Call step() before optimizer.step() to see more",
        n=len(weights),
        names=some(weights),
    )
