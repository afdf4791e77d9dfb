"""The pictures of a report: each finds its numbers in the plain values, or is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diagnostics.page._figure_baselines import draw_honesty, draw_initial_loss
from diagnostics.page._figure_histogram import draw_histogram
from diagnostics.page._figure_influence import draw_influence
from diagnostics.page._figure_layers import draw_activations, draw_gradients, draw_updates
from diagnostics.page._figure_overfit import draw_accuracy, draw_overfit
from diagnostics.page._figure_parts import Figure
from diagnostics.page._figure_sample import draw_sample
from diagnostics.page._figure_schedule import draw_schedule

__all__ = ["Figure", "figures"]

_DRAWN: Sequence[Callable[[Mapping[str, Any]], Figure | None]] = (
    draw_histogram,
    draw_sample,
    draw_activations,
    draw_initial_loss,
    draw_influence,
    draw_gradients,
    draw_updates,
    draw_schedule,
    draw_overfit,
    draw_accuracy,
    draw_honesty,
)


def figures(content: Mapping[str, Any]) -> Sequence[Figure]:
    """Return the pictures that the numbers of a report allow, in the catalogue's order.

    content: what `Report.to_dict()` returned, now or when it was stored. Never raises: a number
    of an unexpected form costs its picture only.
    """
    drawn: list[Figure] = []
    for draw in _DRAWN:
        try:
            figure = draw(content)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            continue  # edited by hand, or of another version; the verdict is still in the page
        if figure is not None:
            drawn.append(figure)
    return drawn
