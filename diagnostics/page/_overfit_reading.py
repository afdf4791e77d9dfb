"""How to read the curve of a batch that is learnt by heart, in one or two sentences.

The reading is that of the `overfit` check, told for the picture; where the check gave none that
is known here, the numbers alone are read, and where they point nowhere, that is said.
"""

from __future__ import annotations

import math

from diagnostics._text import Text, say
from diagnostics.page._figure_parts import Found, floats, mapped
from diagnostics.page._scales import number

NEAR = 0.05  # of the way from the start to the floor: at the floor, or still at the start
RISES = 0.25  # of that way: a rise after the lowest point that is no noise


def read_overfit(found: Found) -> Text:
    """Return the reading of a stored result of `overfit`."""
    known = _READINGS.get(found.reason.partition(".")[2])
    return known(found) if known is not None else _from_numbers(found)


def _healthy(found: Found) -> Text:
    numbers = found.numbers
    last, floor = number(numbers.get("final_loss")), number(numbers.get("floor_loss"))
    way = _way(found)
    if last is not None and floor is not None and way is not None and last - floor > 0.1 * way:
        return say(
            "A healthy curve: everything that can be learnt from the batch is right. The loss "
            "still lies {gap} nats above the floor: training stops once the targets are right. "
            "That learning is possible does not show that the right thing is learnt.",
            gap=last - floor,
        )
    return say(
        "A healthy curve: everything that can be learnt from the batch is right, and the loss is "
        "near its floor. That learning is possible does not show that the right thing is learnt."
    )


def _stuck(found: Found) -> Text:
    return say(
        "Stuck where it began: no signal reaches the weights that would lower the loss. The curve "
        "does not show where it is lost; the gradients and the loss are looked at for that."
    )


def _diverged(found: Found) -> Text:
    losses = floats(mapped(found.numbers.get("curve")).get("loss"))
    own = floats(found.numbers.get("reported_loss"))
    if any(loss is not None and not math.isfinite(loss) for loss in losses[:1] + own[:1]):
        return say(
            "The loss is no number before the first step, so that no learning rate is to blame: "
            "the weights, the batch, the pass forward or the loss itself make it so."
        )
    if any(loss is not None and not math.isfinite(loss) for loss in losses):
        return say(
            "The loss stops being a number: a rate that is too high for this model, or numbers "
            "that overflow."
        )
    return say(
        "The loss falls and then rises: a rate that is too high for this model, or numbers that "
        "overflow."
    )


def _incomplete(found: Found) -> Text:
    accuracy = number(found.numbers.get("final_accuracy"))
    ceiling = number(found.numbers.get("ceiling_accuracy"))
    if accuracy is None or ceiling is None:
        return say("The loss falls, but not all that can be learnt is right.")
    return say(
        "The loss falls, but {right:%} of the targets are right where {ceiling:%} can be. "
        "Contradictory examples are not the reason: the ceiling allows for them.",
        right=accuracy,
        ceiling=ceiling,
    )


def _unigram(found: Found) -> Text:
    return say(
        "The loss rests at the unigram level: the model knows how often each target occurs, and "
        "uses nothing of its input."
    )


def _position(found: Found) -> Text:
    return say("The loss rests where the position alone leads to: no token of the input is used.")


def _short(found: Found) -> Text:
    return say(
        "The loss rests above the floor, where a model ends that reads only the last few tokens."
    )


def _high(found: Found) -> Text:
    return say(
        "The targets are right, and yet the loss stays high: the predictions cannot become sure."
    )


def _bounded(found: Found) -> Text:
    return say("The model's own loss stops at one value, whatever its predictions score.")


def _other(found: Found) -> Text:
    return say(
        "The model's own loss falls, while the loss of its predictions against the targets does "
        "not: it is trained towards something else than the targets."
    )


def _below(found: Found) -> Text:
    return say(
        "More of the batch is right than what came before can tell: the model sees what it should "
        "predict."
    )


_READINGS = {
    "ok": _healthy,
    "stuck_at_uniform": _stuck,
    "no_progress": _stuck,
    "diverged": _diverged,
    "incomplete": _incomplete,
    "stuck_at_unigram": _unigram,
    "stuck_at_position": _position,
    "short_context": _short,
    "loss_stays_high": _high,
    "loss_is_bounded": _bounded,
    "other_target": _other,
    "below_floor": _below,
}


def _from_numbers(found: Found) -> Text:
    """Read the curve alone, with the same limits as the check."""
    numbers = found.numbers
    losses = floats(mapped(numbers.get("curve")).get("loss"))
    way = _way(found)
    floor = number(numbers.get("floor_loss"))
    if any(loss is not None and not math.isfinite(loss) for loss in losses):
        return _diverged(found)
    known = [loss for loss in losses if loss is not None]
    if way is None or floor is None or not way > 0 or len(known) < 2:
        return say("The numbers are too few for a reading.")
    first, last, low = known[0], known[-1], min(known)
    accuracy = number(numbers.get("final_accuracy"))
    ceiling = number(numbers.get("ceiling_accuracy"))
    if last - low > RISES * way:
        return _diverged(found)
    if not last < first - NEAR * way:
        return _stuck(found)
    if accuracy is not None and ceiling is not None and accuracy < ceiling - 1e-9:
        return _incomplete(found)
    if accuracy is not None and ceiling is not None:
        return _healthy(found)
    return say("The loss falls; without the accuracy nothing more can be read from it.")


def _way(found: Found) -> float | None:
    """Return how far the loss could fall: from its start, or ln V, to the floor of the batch."""
    numbers = found.numbers
    start = [number(numbers.get(key)) for key in ("initial_loss", "uniform_loss")]
    known = [loss for loss in start if loss is not None and math.isfinite(loss)]
    floor = number(numbers.get("floor_loss"))
    return max(known) - floor if known and floor is not None else None
