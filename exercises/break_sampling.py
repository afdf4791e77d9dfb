"""Break the sampling filters: draw from another distribution than the settings say."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run

# Five tokens whose probabilities are easy to remember: 0.5, 0.25, 0.15, 0.07 and 0.03.
FIVE = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03]).log()
CLOSED = float("-inf")


def break_top_k_fill(lab: Lab) -> Pipeline:
    """Fill what top-k removes with a number close to 0, which is a logit like any other."""

    def probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        logits = logits.float() / max(temperature, 1e-6)
        if top_k is not None and top_k < len(logits):
            removed = logits < logits.topk(top_k).values[-1]
            fill = -1e-10  # BROKEN: was fill = CLOSED
            logits = logits.masked_fill(removed, fill)
        return _nucleus(logits, top_p)

    return lab.pipeline(next_token_probabilities=probabilities)


def break_temperature_ignored(lab: Lab) -> Pipeline:
    """Scale one tensor and go on with the other."""

    def probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        scaled = logits.float() / max(temperature, 1e-6)
        kept = logits.float()  # BROKEN: was kept = scaled
        if top_k is not None and top_k < len(scaled):
            kept = kept.masked_fill(scaled < scaled.topk(top_k).values[-1], CLOSED)
        return _nucleus(kept, top_p)

    return lab.pipeline(next_token_probabilities=probabilities)


def break_crossing_dropped(lab: Lab) -> Pipeline:
    """Keep what lies fully below top_p: the token that crosses it is lost."""

    def probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        logits = logits.float() / max(temperature, 1e-6)
        if top_k is not None and top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], CLOSED)
        if top_p is None or top_p >= 1.0:
            return logits.softmax(-1)
        p, order = logits.softmax(-1).sort(descending=True)
        removed = p.cumsum(-1) > top_p  # BROKEN: was removed = p.cumsum(-1) - p >= top_p
        removed[0] = False
        back = torch.zeros_like(removed).scatter(0, order, removed)
        return logits.masked_fill(back, CLOSED).softmax(-1)

    return lab.pipeline(next_token_probabilities=probabilities)


def break_changed_in_place(lab: Lab) -> Pipeline:
    """Divide the caller's tensor: a second call applies the temperature twice."""

    def probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        scale = max(temperature, 1e-6)
        logits = logits.div_(scale)  # BROKEN: was logits = logits.div(scale)
        logits = logits.float()
        if top_k is not None and top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], CLOSED)
        return _nucleus(logits, top_p)

    return lab.pipeline(next_token_probabilities=probabilities)


def _nucleus(logits: Tensor, top_p: float | None) -> Tensor:
    """Return softmax over the smallest set of tokens whose mass reaches top_p."""
    if top_p is None or top_p >= 1.0:
        return logits.softmax(-1)
    p, order = logits.softmax(-1).sort(descending=True)
    removed = torch.zeros_like(p, dtype=torch.bool).scatter(0, order, p.cumsum(-1) - p >= top_p)
    return logits.masked_fill(removed, CLOSED).softmax(-1)


def symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Return what five tokens get in four settings; the second call uses the same tensor."""
    filters = pipeline.next_token_probabilities
    assert filters is not None
    logits = FIVE.clone()
    settings = {
        "temperature 1": (1.0, None, None),
        "temperature 2": (2.0, None, None),
        "temperature 1 again, same tensor": (1.0, None, None),
        "top_k = 2": (1.0, 2, None),
        "top_p = 0.8": (1.0, None, 0.8),
    }
    return {
        name: "  ".join(f"{p:.3f}" for p in filters(logits, *setting).tolist())
        for name, setting in settings.items()
    }


EXERCISE = Exercise(
    name="break_sampling",
    question=(
        "Five tokens have the probabilities 0.5, 0.25, 0.15, 0.07 and 0.03. What does top_k=2 "
        "leave, and which tokens survive top_p=0.8?"
    ),
    bugs=(
        Bug(
            name="top_k_fill",
            break_it=break_top_k_fill,
            trips="sampling",
            reason="sampling.top_k_fill",
            note="With negative logits the removed tokens come out first.",
        ),
        Bug(
            name="temperature_ignored",
            break_it=break_temperature_ignored,
            trips="sampling",
            reason="sampling.temperature_ignored",
            note="At temperature 1, where it is usually tried, nothing is wrong.",
        ),
        Bug(
            name="crossing_dropped",
            break_it=break_crossing_dropped,
            trips="sampling",
            reason="sampling.top_p_drops_crossing",
            level=2,
            note="The result sums to 1 and never is empty; the nucleus is one token too small.",
        ),
        Bug(
            name="changed_in_place",
            break_it=break_changed_in_place,
            trips="sampling",
            reason="sampling.changes_input",
            level=2,
            note="Each single result is right. What is left behind in the argument is not.",
        ),
    ),
    hint="Add 10 to every logit, then take 10 off: the probabilities must not move.",
    lesson=(
        "A filter is defined: compute by hand which tokens stay and what they get, for logits of "
        "either sign. Look at the limits too: temperature 0, k = V, p = 1, and equal logits."
    ),
    symptom=symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
