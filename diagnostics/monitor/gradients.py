"""The gradient of each update: its norm, and how often it was clipped."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from diagnostics._text import say
from diagnostics.monitor.events import Speaker

WINDOW = 50
USUAL_MIN = 20
REFRESH = 10  # updates for which what is usual is kept
EXPLODES = 30.0  # times the usual norm in one update; healthy runs measured: up to 8
EXPLODES_RISING = 4 * EXPLODES  # while the rate rises, the usual norm is that of lower rates
GREW = 100.0  # times the norm of the first updates, as the median of ten
ZERO_STEPS = 3  # a single zero may be a batch without targets
SKIPPED_MAX = 20  # a loss scaler halves its scale so often before it fits
CLIP_STEPS = 200
CLIP_SHARE = 0.98
CLIP_RATIO = 10.0  # times the limit, where it is known; 1 row of 4 tokens measured: 4, healthy


@dataclass
class GradientWatch:
    """Judges one global gradient norm after the other.

    clip_norm: the limit that the loop clips to, or None.
    skips_non_finite: a loss scaler skips updates whose gradient is not finite, which is its design.
    """

    speaker: Speaker
    clip_norm: float | None = None
    skips_non_finite: bool = False
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    first: list[float] = field(default_factory=list)
    clips: deque[tuple[bool, float]] = field(default_factory=lambda: deque(maxlen=CLIP_STEPS))
    clipped_steps: int = 0
    steps: int = 0
    _usual: tuple[float, float] | None = None  # medians of late and at the start, of a moment ago
    _zeros: int = 0
    _bad: int = 0

    def see(
        self,
        step: int,
        norm: float,
        *,
        clipped: bool | None,
        before_clipping: bool,
        warming_up: bool = False,
    ) -> bool:
        """Judge the norm of one update; returns whether it is worth a post-mortem.

        clipped: as the loop says, or None.    before_clipping: whether the norm is known to be
        the one before clipping.
        """
        self.steps += 1
        if not math.isfinite(norm):
            self._bad += 1
            return not self.skips_non_finite or self._bad > SKIPPED_MAX
        self._bad = 0
        self._judge_zero(step, norm)
        self._judge_growth(step, norm, EXPLODES_RISING if warming_up else EXPLODES)
        self._judge_clipping(step, norm, clipped, before_clipping)
        self.norms.append(norm)
        if len(self.first) < USUAL_MIN:
            self.first.append(norm)
        return False

    @property
    def clipped_share(self) -> float:
        """The share of all updates whose gradient was scaled down, from 0 to 1."""
        return self.clipped_steps / self.steps if self.steps else 0.0

    def _judge_zero(self, step: int, norm: float) -> None:
        self._zeros = self._zeros + 1 if norm == 0 else 0
        if self._zeros >= ZERO_STEPS:
            self.speaker.speak(
                "gradient_zero",
                step,
                say("the gradient has been exactly 0 for {n} updates", n=self._zeros),
                say("a gradient that is not 0"),
                cause=say(
                    "it was cleared between backward and the step, or the loss does not depend "
                    "on the weights"
                ),
                measured=0.0,
            )

    def _judge_growth(self, step: int, norm: float, most: float) -> None:
        if len(self.norms) < USUAL_MIN:
            return
        if step % REFRESH == 0 or self._usual is None:
            self._usual = statistics.median(self.norms), statistics.median(self.first)
        middle, start = self._usual
        if 0 < most * middle < norm:
            usual, now = middle, norm
        elif 0 < GREW * start < norm:
            usual, now = start, statistics.median([*list(self.norms)[-9:], norm])
            if not now > GREW * start:
                return
        else:
            return
        self.speaker.speak(
            "gradient_explodes",
            step,
            say(
                "the gradient norm is {now}, {times} times the usual {usual}",
                now=now,
                times=now / usual,
                usual=usual,
            ),
            say("at most {limit}", limit=most * usual),
            cause=say(
                "the update before was too large, or gradients add up because they are never "
                "cleared"
            ),
            measured=now,
            usual=usual,
        )

    def _judge_clipping(
        self, step: int, norm: float, clipped: bool | None, before_clipping: bool
    ) -> None:
        limit = self.clip_norm
        if limit is None or limit <= 0:
            return
        # torch scales to limit / (norm + 1e-6), so a clipped gradient lies a little below it
        was_clipped = norm >= 0.999 * limit if clipped is None else clipped
        self.clipped_steps += was_clipped
        self.clips.append((was_clipped, norm / limit if before_clipping else math.inf))
        if step % 10 or len(self.clips) < CLIP_STEPS:
            return
        share = sum(was for was, _ in self.clips) / CLIP_STEPS
        ratio = statistics.median(ratio for _, ratio in self.clips)
        still = self.speaker.said("weights_still") or self.speaker.said("rate_zero")
        if share >= CLIP_SHARE and ratio >= CLIP_RATIO and not still:
            self.speaker.speak(
                "always_clipped",
                note=math.isinf(ratio),  # healthy small models clip nine updates in ten
                step=step,
                claim=say("{share:%} of {n} updates were clipped", share=share, n=CLIP_STEPS),
                expected=say("a limit that only the odd update reaches"),
                cause=say(
                    "the limit of {limit} is far below the usual norm, so the rate no longer says "
                    "how large a step is",
                    limit=limit,
                )
                if math.isinf(ratio)
                else say(
                    "the usual norm is {ratio} times the limit of {limit}", ratio=ratio, limit=limit
                ),
                measured=share,
                ratio=None if math.isinf(ratio) else ratio,
            )
