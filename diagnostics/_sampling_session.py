"""One sampling function under examination: it is called, compared, and its mistakes are named.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagnostics._result import CheckResult, Status, verdict
from diagnostics._sampling_readings import Formula, Setting, distribution
from diagnostics._sampling_words import MISTAKES
from diagnostics._text import say

NOISE = 1e-5  # float32 softmax over 50,000 tokens stays within 3e-6 of float64


@dataclass
class Session:
    """The function under examination and what was noticed beside its results."""

    function: Callable[..., Any]
    logits: Tensor  # (V,)
    off: tuple[Any, Any] | None = None  # what stands for no top_k and no top_p
    settings: int = 0
    worst: float = 0.0
    kept_of_ties: int = 0
    changed_input: Setting | None = None
    misshapen: str = ""
    first_results: list[tuple[Setting, Tensor]] = field(default_factory=list)

    def ask(self, setting: Setting) -> Tensor:
        """Return the probabilities (V,) in float64 on the CPU. Raises what the function raises."""
        given = setting.logits.clone()
        if self.off is None:
            self.off = self._find_off(given)
        k = self.off[0] if setting.top_k is None else setting.top_k
        p = self.off[1] if setting.top_p is None else setting.top_p
        raw = self.function(given, setting.temperature, k, p)
        if not torch.equal(given, setting.logits):
            self.changed_input = self.changed_input or setting
        got = torch.as_tensor(raw).detach().cpu()
        if got.numel() != len(setting.logits) or not got.is_floating_point():
            self.misshapen = self.misshapen or f"{tuple(got.shape)} of {got.dtype}"
            return torch.full((len(setting.logits),), float("nan"), dtype=torch.float64)
        return got.flatten().double()

    def answer(self, setting: Setting) -> Tensor:
        """As `ask`, and count it among the settings that were judged."""
        got = self.ask(setting)
        self.settings += 1
        self.first_results.append((setting, got))
        return got

    def complaints(self) -> Iterator[CheckResult]:
        """What is wrong beside the numbers: the shape, or an argument that was changed."""
        if self.misshapen:
            yield verdict(
                Status.FAIL,
                "sampling.wrong_shape",
                say("the function does not return one probability per token"),
                measured=say("{came}", came=self.misshapen),
                expected=say("floating shape ({V},), as the logits", V=len(self.logits)),
                next_step=say("return the probabilities of the whole vocabulary, zeros included"),
            )
        if self.changed_input is not None:
            yield verdict(
                Status.FAIL,
                "sampling.changes_input",
                say("the logits that are passed are changed in place"),
                measured=say("changed by a call with {setting}", setting=str(self.changed_input)),
                expected=say("the argument as it was: called twice, settings apply twice"),
                causes=(say("logits /= temperature, or logits[mask] = -inf on the argument"),),
                next_step=say("write logits = logits / temperature, which makes a new tensor"),
            )

    def _find_off(self, logits: Tensor) -> tuple[Any, Any]:
        try:
            self.function(logits.clone(), 1.0, None, None)
        except TypeError:
            return len(logits), 1.0
        return None, None


def differs(got: Tensor, wanted: Tensor, noise: float = NOISE) -> bool:
    return not bool((got - wanted).abs().max() <= noise)  # NaN differs


def judge(
    session: Session,
    settings: Sequence[Setting],
    kind: str,
    mistakes: Iterator[tuple[str, Formula]],
) -> Iterator[CheckResult]:
    """Compare a group of calls with the definition; name the mistake that gives all of them."""
    answers = [(setting, session.answer(setting)) for setting in settings]
    wrong = [pair for pair in answers if differs(pair[1], distribution(pair[0]))]
    for setting, got in answers:
        session.worst = max(session.worst, float((got - distribution(setting)).abs().max()))
    if not wrong or session.misshapen:
        return
    reason = next((r for r, formula in mistakes if _fits(answers, formula)), kind)
    yield fault(reason, wrong, len(answers))


def _fits(answers: list[tuple[Setting, Tensor]], formula: Formula) -> bool:
    """Whether a mistake gives every answer; where it gives no number it says nothing."""
    compared = 0
    for setting, got in answers:
        predicted = formula(setting)
        if not bool(predicted.isfinite().all()):
            continue
        compared += 1
        if differs(got, predicted, NOISE * max(1.0, float(predicted.abs().max()))):
            return False
    return compared > 0


def fault(reason: str, wrong: list[tuple[Setting, Tensor]], total: int) -> CheckResult:
    told, cause, cure = MISTAKES[reason]
    setting, got = wrong[0]
    wanted = distribution(setting)
    place = int((got - wanted).abs().nan_to_num(nan=float("inf")).argmax())
    return verdict(
        Status.FAIL,
        reason,
        say(told),
        measured=say(
            "token {i} has {got}; {kept:token|tokens} kept, their sum {mass}",
            i=place,
            got=float(got[place]),
            kept=int((got > 0).sum()),
            mass=float(got.sum()),
        ),
        expected=say(
            "{wanted}; {kept:token|tokens} kept, sum 1",
            wanted=float(wanted[place]),
            kept=int((wanted > 0).sum()),
        ),
        where=say(
            "{n} of {total:call|calls}; first {setting}",
            n=len(wrong),
            total=total,
            setting=str(setting),
        ),
        causes=(say(cause),) if cause else (),
        next_step=say(cure),
        numbers={"wrong": len(wrong), "calls": total, "setting": str(setting)},
    )
