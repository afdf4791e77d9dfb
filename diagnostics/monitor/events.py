"""What the monitor says: one sentence per problem, and a count of how often it came back."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from diagnostics._text import Text, say

COLUMNS = 88
FOLLOWS_STEPS = 200  # updates in which one problem may be what another one led to
EventHandler = Callable[["Event"], object]


# what a problem leads to by itself: said before it, the second is a note, so that one fault is
# one event
_BLOW_UP = {"loss_spike", "loss_diverges", "gradient_explodes", "attention_collapsed", "dead_units"}
_STANDSTILL = {"plateau_uniform", "plateau_unigram", "always_clipped", "parameters_still"}
LEADS_TO: dict[str, set[str]] = {
    "updates_too_large": _BLOW_UP,
    "gradient_not_cleared": _BLOW_UP | {"always_clipped", "updates_too_large"},
    "loss_spike": _BLOW_UP,
    "loss_diverges": _BLOW_UP,
    "gradient_explodes": _BLOW_UP,
    "gradient_not_finite": {"loss_not_finite", "validation_not_finite"},
    "loss_not_finite": {"gradient_not_finite", "validation_not_finite"},
    "updates_too_small": _STANDSTILL | {"weights_still"},
    "rate_zero": _STANDSTILL | {"weights_still", "rate_off_schedule"},
    "gradient_zero": _STANDSTILL | {"weights_still", "no_gradient"},
    "weights_still": _STANDSTILL,
    "dead_units": {"no_gradient"},
    "evaluation_changes_modes": {"eval_mode", "partly_eval_mode"},
    "same_batch": {"overfitting", "batches_cycle"},
}


@dataclass(kw_only=True)
class Event:
    """One problem: where it was seen first, and since then how often.

    reason: stable id, such as "monitor.loss_not_finite".
    step: number of the update at which it was spoken, 1 for the first.
    measured: the number behind the claim, or None where there is none.
    count, last_step: how often it was seen, and when last; they go on after it was spoken.
    """

    reason: str
    step: int
    claim: Text
    expected: Text
    cause: Text | None = None
    measured: float | None = None
    numbers: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    last_step: int = 0

    def __str__(self) -> str:
        """Return the sentence, wrapped; it stands alone in a log."""
        sentence = say(
            "[monitor] step {step}: {claim}; expected {expected}",
            step=self.step,
            claim=self.claim,
            expected=self.expected,
        )
        if self.cause is not None:
            sentence = say("{sentence}. {cause}", sentence=sentence, cause=_capital(self.cause))
        whole = say("{sentence} ({reason})", sentence=sentence, reason=self.reason)
        return textwrap.fill(
            whole, COLUMNS, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; numbers may be NaN here, the writer of a file takes care of it."""
        plain = asdict(self)
        for name in ("claim", "expected", "cause"):
            plain[name] = None if plain[name] is None else str(plain[name])
        return plain


class Speaker:
    """Collects events, and hands each problem on once.

    events: what is wrong.    notes: what a person may want to know and a healthy run may show, and
    what a problem that was said before leads to; they are never handed on, they stand in the
    summary.
    """

    def __init__(self, on_event: EventHandler | None) -> None:
        self.on_event = on_event
        self.events: list[Event] = []
        self.notes: list[Event] = []
        self._known: dict[tuple[str, str], Event] = {}

    def speak(
        self,
        reason: str,
        step: int,
        claim: Text,
        expected: Text,
        *,
        cause: Text | None = None,
        measured: float | None = None,
        key: str = "",
        note: bool = False,
        **numbers: Any,
    ) -> Event | None:
        """Report a problem; returns the event when it is new, None when it was only counted.

        key: tells problems of one reason apart, such as the name of a parameter group.
        """
        reason = f"monitor.{reason}"
        known = self._known.get((reason, key))
        if known is not None:
            known.count += 1
            known.last_step = step
            return None
        event = Event(
            reason=reason,
            step=step,
            claim=claim,
            expected=expected,
            cause=cause,
            measured=measured,
            numbers=numbers,
            last_step=step,
        )
        note = note or self._follows(reason.removeprefix("monitor."), step)
        self._known[reason, key] = event
        (self.notes if note else self.events).append(event)
        return event

    def _follows(self, reason: str, step: int) -> bool:
        """Whether a problem that was seen a short time ago leads to this one."""
        return any(
            step - other.last_step <= FOLLOWS_STEPS
            and reason in LEADS_TO.get(other.reason.removeprefix("monitor."), ())
            for other in self.events
        )

    def hand_on(self, event: Event) -> None:
        """Give an event to the listener."""
        if self.on_event is not None:
            self.on_event(event)

    def said(self, reason: str, key: str = "") -> bool:
        """Whether this problem was reported already."""
        return (f"monitor.{reason}", key) in self._known


def to_stderr(event: Event) -> None:
    """Write the sentence to standard error, where it does not mix with what a program prints.

    A stream that is closed or absent costs the sentence, not the training.
    """
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{event}\n")
        sys.stderr.flush()


def _capital(text: str) -> str:
    """Begin with a capital letter, unless the first word is code such as `zero_grad()`."""
    first = text.split(" ", 1)[0]
    return text[:1].upper() + text[1:] if first.isalpha() else text
