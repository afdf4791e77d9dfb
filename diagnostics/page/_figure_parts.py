"""What the pictures of a report share: how they find their numbers without trusting the form.

A page is made from a stored report too, by whichever version, perhaps edited by hand: what is
missing or of another form gives no picture, and no error. JSON sorts the names of a mapping, so
that no picture may depend on their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics.page._markup import Markup
from diagnostics.page._scales import number

THE_MODEL = "the model itself"  # what `forward_hooks` calls the outermost module
_LAYER = re.compile(r"(?:.*?\.)?\d+(?=\.|$)")
_EMBEDDING = re.compile(r"emb|wte|wpe", re.IGNORECASE)


@dataclass(frozen=True)
class Figure:
    """A picture, the check whose numbers it shows, and other checks whose faults it shows too."""

    name: str
    check: str
    markup: Markup
    also: tuple[str, ...] = ()

    def shows(self, check: str) -> bool:
        """Return whether a fault that this check found can be seen here."""
        return check == self.check or check in self.also


@dataclass(frozen=True)
class Found:
    """The stored result of one check; numbers and texts are empty where there are none."""

    numbers: Mapping[str, Any]
    reason: str
    status: str


def find(content: Mapping[str, Any], check: str) -> Found:
    """Return what the report holds of a check."""
    for result in listed(content.get("results")):
        if isinstance(result, Mapping) and result.get("check") == check:
            return Found(
                mapped(result.get("numbers")),
                str(result.get("reason", "")),
                str(result.get("status", "")),
            )
    return Found({}, "", "")


def mapped(value: Any) -> Mapping[str, Any]:
    """Return the value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def listed(value: Any) -> Sequence[Any]:
    """Return the value where it is a list, else an empty one."""
    return value if isinstance(value, (list, tuple)) else ()


def whole(value: Any) -> int | None:
    """Return a whole number that a float can hold exactly, None for all else."""
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > 2**53:
        return None
    return value


def floats(value: Any) -> list[float | None]:
    """Return the numbers of a list, also those spelt as text; None for what is no number."""
    return [number(item) for item in listed(value)]


def named_floats(value: Any) -> dict[str, float]:
    """Return the numbers of a mapping from names, in `layer_order`."""
    numbers = {str(name): number(item) for name, item in mapped(value).items()}
    known = {name: item for name, item in numbers.items() if item is not None}
    return {name: known[name] for name in sorted(known, key=layer_order)}


def layer_order(name: str) -> tuple[Any, ...]:
    """Order by: embeddings, then numbered layers by number, then the rest, the model last."""
    parts = [
        (0, int(p), "") if p.isdecimal() and len(p) < 9 else (1, 0, p) for p in name.split(".")
    ]
    place = (
        3
        if name == THE_MODEL
        else 1
        if any(kind == 0 for kind, _, _ in parts)
        else 0
        if _EMBEDDING.search(name)
        else 2
    )
    return (place, parts, name)


def layer_of(name: str) -> str:
    """Return the layer of a parameter: "blocks.0" of "blocks.0.mlp.bias", "head" of "head.bias"."""
    match = _LAYER.match(name)
    return match.group() if match else name.rpartition(".")[0] or name


def grouped(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names by layer, in the order of their first appearance."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layers.setdefault(layer_of(name), []).append(name)
    return layers
