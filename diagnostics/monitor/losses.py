"""The loss of each update: is it a number, does it jump, does it stand still where it should not?

The limits stay clear of 52 healthy runs of up to 320 updates: nanoGPT at rates from 3e-4 to 3e-3,
warm-up, one row of four tokens, experts, LoRA, bfloat16, and other designs.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diagnostics._text import say
from diagnostics.monitor.events import Speaker

WINDOW = 50  # losses that say what is usual
USUAL_MIN = 20  # fewer say nothing about noise
REFRESH = 10  # updates for which what is usual is kept
RECENT = 5  # a jump must last: the median of so many, so that one odd batch is no alarm
SIGMAS, RISE_MIN = 6.0, 0.5  # of a lasting jump: robust standard deviations, and nats
SIGMAS_ONCE, RISE_ONCE = 20.0, 2.0  # of a single step
DIVERGED = 0.5  # nats above where training began, as the median of ten
FLAT_STEPS = 200  # a plateau lasts so long
FLAT = 0.02  # nats between the medians of its halves
NEAR = 0.03  # nats from ln V or from the unigram entropy


@dataclass
class LossWatch:
    """Judges one loss after the other.

    vocab_size: V, for ln V.    unigram_entropy: nats of a model that knows frequencies only.
    """

    speaker: Speaker
    vocab_size: int | None = None
    unigram_entropy: float | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=FLAT_STEPS))
    first: list[float] = field(default_factory=list)
    _usual: tuple[float, float] | None = None  # of a moment ago: medians cost more than a compare
    _steady_steps: int = 0  # updates since the rate stopped rising

    def see(self, step: int, loss: float, *, warming_up: bool) -> bool:
        """Judge the loss of one update; returns whether it is a finite number."""
        if not math.isfinite(loss):
            return False
        self._judge_jump(step, loss)
        self.recent.append(loss)
        if len(self.first) < 3:
            self.first.append(loss)
        self._steady_steps = 0 if warming_up else self._steady_steps + 1
        self._judge_divergence(step)
        self._judge_plateau(step)
        return True

    def usual(self) -> tuple[float, float] | None:
        """Return (median, robust standard deviation) of the losses before the latest few."""
        before = list(self.recent)[-WINDOW - RECENT : -RECENT]
        if len(before) < USUAL_MIN:
            return None
        middle = statistics.median(before)
        return middle, 1.4826 * statistics.median(abs(loss - middle) for loss in before)

    def _judge_jump(self, step: int, loss: float) -> None:
        if self._usual is None or step % REFRESH == 0:
            self._usual = self.usual()
        if self._usual is None:
            return
        middle, sigma = self._usual
        limit = middle + max(SIGMAS * sigma, RISE_MIN)
        if not loss > limit:
            return
        lasting = statistics.median([*list(self.recent)[1 - RECENT :], loss])
        once = loss > middle + max(SIGMAS_ONCE * sigma, RISE_ONCE, middle)
        if not once and not lasting > limit:
            return
        self.speaker.speak(
            "loss_spike",
            step,
            say(
                "the loss jumped to {loss}, from a median of {middle} over {count} updates",
                loss=loss if once else lasting,
                middle=middle,
                count=min(WINDOW, len(self.recent) - RECENT),
            ),
            say("at most {limit}", limit=limit),
            cause=say("the step before was too large, or the data changed"),
            measured=loss if once else lasting,
            median=middle,
            sigma=sigma,
        )

    def _judge_divergence(self, step: int) -> None:
        if step % 5 or len(self.recent) < 10 or len(self.first) < 3:
            return
        now, start = statistics.median(list(self.recent)[-10:]), statistics.median(self.first)
        if now > start + DIVERGED:
            self.speaker.speak(
                "loss_diverges",
                step,
                say("the loss is {now}, more than the {start} it began at", now=now, start=start),
                say("a loss that falls"),
                cause=say("the learning rate is too high, or the gradient points the wrong way"),
                measured=now,
                start=start,
            )

    def _judge_plateau(self, step: int) -> None:
        if step % 10 or self._steady_steps < FLAT_STEPS or len(self.recent) < FLAT_STEPS:
            return
        if self.speaker.said("weights_still") or self.speaker.said("rate_zero"):
            return  # that is why
        losses = list(self.recent)
        half = FLAT_STEPS // 2
        early, late = statistics.median(losses[:half]), statistics.median(losses[half:])
        if not abs(early - late) <= FLAT:
            return
        if self.vocab_size is not None and abs(late - math.log(self.vocab_size)) <= NEAR:
            self.speaker.speak(
                "plateau_uniform",
                step,
                say(
                    "the loss has stood at {late} for {count} updates, which is ln V",
                    late=late,
                    count=FLAT_STEPS,
                ),
                say("less than {guess}, what guessing gives", guess=math.log(self.vocab_size)),
                cause=say("nothing is learnt: the weights do not move, or the data is random"),
                measured=late,
            )
        elif self.unigram_entropy is not None and abs(late - self.unigram_entropy) <= NEAR:
            self.speaker.speak(
                "plateau_unigram",
                step,
                say(
                    "the loss has stood at {late} for {count} updates, which is the entropy of "
                    "single tokens",
                    late=late,
                    count=FLAT_STEPS,
                ),
                say("less than {entropy}", entropy=self.unigram_entropy),
                cause=say(
                    "only frequencies are learnt: the context does not reach the head, or the "
                    "targets do not belong to the inputs"
                ),
                measured=late,
            )


def unigram_entropy(ids: Tensor) -> float:
    """Return the entropy of single tokens in nats: the loss of a model that knows them only."""
    counts = torch.bincount(ids.reshape(-1)).double()
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * shares.log()).sum())
