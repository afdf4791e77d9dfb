"""Numbers as a loop or a log gives them: of any library, or none at all."""

from __future__ import annotations

from typing import Any

STEP_MAX = 2**53  # whole numbers that a chart and JSON can tell apart


def whole_step(step: Any) -> int:
    """Return the number of a step, of any library; raises TypeError for what is none."""
    try:
        number = int(step)
    except Exception as error:  # any: a tensor of several elements has an error of its own
        raise TypeError(f"step must be a whole number, got {_described(step)}") from error
    if abs(number) > STEP_MAX:
        raise TypeError(f"step must be at most 2**53, got one of {number.bit_length()} bits")
    return number


def plain_number(name: str, value: Any) -> float:
    """Return the one number of a float, a NumPy scalar, or a tensor with or without a graph.

    Raises TypeError, with the name, for anything else.
    """
    try:
        return float(value.item() if hasattr(value, "item") else value)
    except Exception as error:  # any: torch, NumPy and JAX each have their own
        raise TypeError(f"{name} must be a number, got {_described(value)}") from error


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    kind = type(value).__name__
    return f"{kind} of shape {tuple(shape)}" if isinstance(shape, tuple) else kind


def json_number(value: Any) -> float | None:
    """Return a JSON value as a number; JSON spells what is not finite as a string."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    try:
        return float(value) if isinstance(value, (int, float)) else None
    except OverflowError:
        return None
