"""Parameters that no gradient reaches, at one look after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from diagnostics._state import some
from diagnostics._text import say
from diagnostics.monitor.events import Speaker

IDLE_LOOKS = 5  # in a row without gradient
IDLE_STEPS = 75  # updates that they span at least
EXPERT_LOOKS = 25  # an expert may get no token for a while


@dataclass
class IdleWatch:
    """Counts looks without gradient.

    looks: updates of the looks in a row at which a parameter had none.    fed: who had one at some
    look.    routed: patterns of names among which gradients come and go, as they do among experts.
    """

    speaker: Speaker
    looks: dict[str, list[int]] = field(default_factory=dict)
    fed: set[str] = field(default_factory=set)
    routed: set[str] = field(default_factory=set)

    def is_idle(self, name: str) -> bool:
        """Whether a parameter had no gradient at the latest look."""
        return bool(self.looks.get(name))

    def see(self, step: int, every_name: Iterable[str], norms: Mapping[str, float]) -> None:
        """Take note of one look: the norm of each gradient; who has none is not among them."""
        all_names = list(every_name)
        for name in all_names:
            norm = norms.get(name, 0.0)
            looks = self.looks.get(name, [])
            if norm != 0 and looks and name in self.fed:
                self.routed |= _patterns(name)
            if norm != 0:
                self.fed.add(name)
            kept = [*looks[:1], *looks[1:][-EXPERT_LOOKS:]]  # since when, and the latest
            self.looks[name] = [*kept, step] if norm == 0 else []
        idle = [name for name in all_names if self._is_too_long(name)]
        if idle and len(idle) < len(all_names):
            absent = [name for name in idle if name not in norms]
            self.speaker.speak(
                "no_gradient",
                step,
                say(
                    "{n:trainable parameter|trainable parameters} had no gradient at any of the "
                    "last {looks} looks: {names}",
                    n=len(idle),
                    looks=len(self.looks[idle[0]]),
                    names=some(idle),
                ),
                say("a gradient, or requires_grad=False"),
                cause=say("the loss does not depend on them: detached, unused or cut off")
                if absent
                else say("their gradient is exactly 0: what they feed is multiplied by 0 or dead"),
                measured=float(len(idle)),
                names=idle,
            )

    def _is_too_long(self, name: str) -> bool:
        """Whether a parameter was without gradient for too long; experts may be, for a while."""
        routed = "expert" in name.lower() or bool(self.routed & _patterns(name))
        looks, least = self.looks[name], EXPERT_LOOKS if routed else IDLE_LOOKS
        return len(looks) >= least and looks[-1] - looks[0] >= IDLE_STEPS


def _patterns(name: str) -> set[str]:
    """Return the name once with each number in it left open: what its siblings match as well.

    Among experts some are chosen now and then. That a sibling's gradient comes and goes tells that
    they are experts, by whatever name.
    """
    parts = name.split(".")
    return {
        ".".join([*parts[:place], "*", *parts[place + 1 :]])
        for place, part in enumerate(parts)
        if part.isdigit()
    }
