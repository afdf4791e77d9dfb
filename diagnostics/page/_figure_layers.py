"""One bar for each layer: gradient norms, sizes of updates, sizes of activations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._bar_chart import BARS_MAX
from diagnostics.page._charts import Bar, Level, bar_chart
from diagnostics.page._figure_bars import (
    ends,
    layer_bars,
    median,
    merged_note,
    root_of_squares,
)
from diagnostics.page._figure_parts import (
    THE_MODEL,
    Figure,
    find,
    floats,
    layer_of,
    layer_order,
    listed,
    mapped,
    named_floats,
    whole,
)
from diagnostics.page._scales import finite

ADAM_STEP_OFF = 0.01  # of the rate: the first step of Adam is the rate, but for its epsilon


def draw_gradients(content: Mapping[str, Any]) -> Figure | None:
    """Draw the L2 norm of each parameter's gradient; of each layer's where they are many."""
    found = find(content, "gradients")
    if found.status == "skip":
        return None  # what is missing then are parts of the pipeline
    numbers = found.numbers
    norms = named_floats(numbers.get("norms"))
    missing = sorted(map(str, listed(numbers.get("missing"))), key=layer_order)
    if not norms and not missing:
        return None
    flags = _gradient_flags(numbers, norms) | dict.fromkeys(missing, say("no gradient"))
    values: dict[str, float | None] = {**norms, **dict.fromkeys(missing)}
    bars, per_layer = layer_bars(values, flags, root_of_squares)
    markup = bar_chart(
        "figure-gradients",
        _gradient_finding(numbers, norms, flags),
        label="layer" if per_layer else "parameter",
        x_label="gradient norm (L2), log scale",
        bars=bars,
        log_x=True,
        note=merged_note(
            per_layer, len(values), "the norm of all gradients of a layer taken together"
        ),
    )
    return Figure("figure-gradients", "gradients", markup)


def _gradient_flags(numbers: Mapping[str, Any], norms: Mapping[str, float]) -> dict[str, str]:
    """Return a word for each parameter that the check has named, the gravest last."""
    marks = (
        ("zero", say("zero")),
        ("noise", say("only rounding")),
        ("wrong", say("wrong value")),
        ("stuck", say("stays at 0")),
    )
    flags: dict[str, str] = {}
    for key, word in marks:
        named = {*map(str, listed(numbers.get(key))), *mapped(numbers.get(key))}
        flags |= {name: word for name in norms if name in named}
    return flags | {
        name: say("not finite") for name, norm in norms.items() if not math.isfinite(norm)
    }


def _gradient_finding(
    numbers: Mapping[str, Any], norms: Mapping[str, float], flags: Mapping[str, str]
) -> Text:
    total = len(norms.keys() | flags.keys())
    frozen = whole(numbers.get("frozen")) or 0
    later = whole(numbers.get("zero_at_first")) or 0
    if flags:
        counts = Counter(flags.values())
        told = ", ".join(say(_TOLD[word], n=n) for word, n in counts.items())
        if (
            later > 0
        ):  # the check looks at more batches, as experts need who are chosen now and then
            return say(
                "Of {total:gradient|gradients} of one batch {told}; {later:of these comes|"
                "of these come} with other batches or weights",
                total=total,
                told=told,
                later=later,
            )
        return say("Of {total:gradient|gradients} {told}", total=total, told=told)
    low, high = ends(norms)
    return say(
        "Each of {total} parameters has a gradient, with norms from {low} to {high}{rest}",
        total=total,
        low=norms[low],
        high=norms[high],
        rest=say("; {n:other is|others are} frozen", n=frozen) if frozen else "",
    )


_TOLD = {
    "no gradient": "{n:is|are} missing",
    "zero": "{n:is|are} 0 everywhere",
    "only rounding": "{n:is|are} only rounding",
    "wrong value": "{n:has|have} a wrong value",
    "stays at 0": "{n:stays|stay} at 0",
    "not finite": "{n:is|are} nan or infinite",
}


def draw_updates(content: Mapping[str, Any]) -> Figure | None:
    """Draw how far one step moves each parameter, as a share of the parameter's own size."""
    found = find(content, "optimizer")
    numbers = found.numbers
    ratios = named_floats(numbers.get("update_to_weight_by_name"))
    known = {name: ratio for name, ratio in ratios.items() if math.isfinite(ratio)}
    if not ratios:
        return None
    flags = {name: say("does not move") for name, ratio in ratios.items() if ratio == 0}
    flags |= {name: say("not finite") for name in ratios if name not in known}
    bars, per_layer = layer_bars(dict(ratios), flags, median)
    rate = _adam_rate(numbers)
    markup = bar_chart(
        "figure-updates",
        _update_finding(ratios, known, rounded=found.reason.endswith("lost_to_rounding")),
        label="layer" if per_layer else "parameter",
        x_label="update / weights (L2), log scale",
        bars=bars,
        log_x=True,
        levels=[] if rate is None else [Level(label=say("the rate {rate}", rate=rate), y=rate)],
        note=_update_note(rate, merged_note(per_layer, len(ratios), MEDIAN)),
    )
    return Figure("figure-updates", "optimizer", markup)


MEDIAN = "the median of a layer's parameters"


def _adam_rate(numbers: Mapping[str, Any]) -> float | None:
    """Return the one learning rate by which the first step moved every number, as Adam's does."""
    rates = finite(floats(numbers.get("learning_rates")))
    in_rates = named_floats(numbers.get("adam_first_step")).values()
    as_adam = bool(in_rates) and all(abs(n - 1.0) <= ADAM_STEP_OFF for n in in_rates)
    return rates[0] if as_adam and len(set(rates)) == 1 and rates[0] > 0 else None


def _update_note(rate: float | None, merged: str) -> str:
    told = say(
        "One step of your optimizer with the decay off, on a copy with a little noise on "
        "its weights."
    )
    if rate is not None:
        adam = say(
            "The first step of Adam moves each number by the learning rate: gains of size 1 by "
            "that share of themselves, weights of size 0.02 by 50 times as much."
        )
        return f"{told} {adam} {merged}".rstrip()
    return f"{told} {merged}".rstrip()


def _update_finding(
    ratios: Mapping[str, float], known: Mapping[str, float], *, rounded: bool
) -> Text:
    """rounded: the model's own dtype loses what these sizes, computed in float64, still show."""
    still = [name for name, ratio in known.items() if ratio == 0]
    if len(known) < len(ratios):
        return say(
            "{n} of {total} updates are nan or infinite",
            n=len(ratios) - len(known),
            total=len(ratios),
        )
    if still:
        return say(
            "One step leaves {n} of {total} parameters where they were; the first is {name}",
            n=len(still),
            total=len(ratios),
            name=still[0],
        )
    low, high = ends(known)
    return say(
        "Computed in float64, one step moves the parameters by {low} to {high} of their own size"
        if rounded
        else "One step moves the parameters by {low} to {high} of their own size",
        low=known[low],
        high=known[high],
    )


def draw_activations(content: Mapping[str, Any]) -> Figure | None:
    """Draw the size of each module's output, in the order of the pass where it is stored."""
    numbers = find(content, "forward_hooks").numbers
    sizes = named_floats(numbers.get("rms"))
    known = {name: size for name, size in sizes.items() if math.isfinite(size)}
    if not known:
        return None
    order = [str(name) for name in listed(numbers.get("order")) if str(name) in sizes]
    in_pass = len(order) == len(sizes) == len(set(order))
    names = order if in_pass else list(sizes)
    kept = names if len(names) <= BARS_MAX else [name for name in names if _is_outer(name)]
    low, high = ends(known)
    markup = bar_chart(
        "figure-activations",
        say("Outputs have sizes from {low} to {high}", low=known[low], high=known[high]),
        label="module",
        x_label="size of the output (RMS), log scale",
        bars=[
            Bar(
                label=name,
                value=sizes[name],
                flag="" if name in known else "not finite",
            )
            for name in kept
        ],
        log_x=True,
        note=" ".join(
            [
                say("RMS: root mean square over the last axis, the median of all positions."),
                say("From the first module that ended to the last.")
                if in_pass
                else say("Embeddings first, then the numbered layers, then the rest."),
                say("{n:module inside|modules inside} the layers are left out.", n=n)
                if (n := len(names) - len(kept))
                else "",
            ]
        ),
    )
    return Figure("figure-activations", "forward_hooks", markup)


def _is_outer(name: str) -> bool:
    """Whether a module is a numbered layer as a whole, or stands outside of all of them."""
    return name == THE_MODEL or layer_of(name) == name or "." not in name
