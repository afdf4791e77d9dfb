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


def break_mask_gathered(lab: Lab) -> Pipeline:
    """Read the mask of the sorted tokens at the order, where it has to be written there."""

    def probabilities(
        logits: Tensor, temperature: float, top_k: int | None, top_p: float | None
    ) -> Tensor:
        logits = logits.float() / max(temperature, 1e-6)
        if top_k is not None and top_k < len(logits):
            logits = logits.masked_fill(logits < logits.topk(top_k).values[-1], CLOSED)
        if top_p is None or top_p >= 1.0:
            return logits.softmax(-1)
        p, order = logits.softmax(-1).sort(descending=True)
        late = p.cumsum(-1) - p >= top_p
        removed = late.gather(0, order)  # BROKEN: was removed = late.scatter(0, order, late)
        return logits.masked_fill(removed, CLOSED).softmax(-1)

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
            question=(
                "With top_k = 2, which of the five tokens gets the most probability: one of the "
                "two that were kept, or one of the three that were removed?"
            ),
            hints=(
                (
                    "Look at the tokens that top_k removes, and at the value which their logits "
                    "have afterwards."
                ),
                (
                    "Print the probabilities for top_k = 2 with all logits shifted by -10, then by "
                    "+10. Healthy is twice the same: two tokens that share 1, and exact zeros."
                ),
                (
                    "Softmax gives every finite logit a share. What is removed needs the one value "
                    "whose exponential is exactly 0."
                ),
            ),
            lesson=(
                "A removed option is not an option with the value 0: before a softmax, 0 is an "
                "ordinary score, and often a high one. The same holds for attention masks and for "
                "any masked maximum."
            ),
        ),
        Bug(
            name="temperature_ignored",
            break_it=break_temperature_ignored,
            trips="sampling",
            reason="sampling.temperature_ignored",
            note="At temperature 1, where it is usually tried, nothing is wrong.",
            question=(
                "Which of the five settings in the table will show a difference, and why can the "
                "others not show one?"
            ),
            hints=(
                (
                    "Follow the two tensors of the function, the raw one and the scaled one, down "
                    "to the softmax."
                ),
                (
                    "Ask for the same logits at temperature 0.5, 1 and 2. Healthy is a largest "
                    "probability that falls from one to the next; for the five tokens it is 0.73, "
                    "0.50 and 0.35."
                ),
                (
                    "What the filters cut, and what softmax reads at the end, must be the tensor "
                    "that was divided by the temperature."
                ),
            ),
            lesson=(
                "A setting tried only at its neutral value has not been tried. Test each knob at "
                "two values on either side of the one that changes nothing."
            ),
        ),
        Bug(
            name="crossing_dropped",
            break_it=break_crossing_dropped,
            trips="sampling",
            reason="sampling.top_p_drops_crossing",
            level=2,
            note="The result sums to 1 and never is empty; the nucleus is one token too small.",
            question=(
                "The probabilities are 0.5, 0.25, 0.15, 0.07 and 0.03. Which tokens does this "
                "filter keep for top_p = 0.8, and do they hold 0.8 of the mass together?"
            ),
            hints=(
                (
                    "Look at the token with which the running sum goes past top_p, and at what "
                    "becomes of it."
                ),
                (
                    "Count the tokens that are left for top_p = 0.8 of the five, and add up what "
                    "they had before rescaling. Healthy is three tokens with 0.9; here it is two "
                    "with 0.75."
                ),
                (
                    "A token goes when the mass before it has reached top_p already, so its own "
                    "share must not count in the comparison."
                ),
            ),
            lesson=(
                "Whether an element at a boundary belongs to the set is part of the definition. "
                "Try a case where the boundary falls inside an element, and count."
            ),
        ),
        Bug(
            name="changed_in_place",
            break_it=break_changed_in_place,
            trips="sampling",
            reason="sampling.changes_input",
            level=2,
            note="Each single result is right. What is left behind in the argument is not.",
            question=(
                "The same tensor is passed five times. In which call does the result go wrong for "
                "the first time, and what would one call on a fresh tensor show?"
            ),
            hints=(
                "Look at the argument after the call, not at what the call returns.",
                (
                    "Keep a clone of the logits, call once at temperature 2, and compare: healthy "
                    "logits equal the clone. Here they are half of it."
                ),
                (
                    "The division writes into the caller's tensor. It has to make a new one, and "
                    "the rest of the function goes on with that."
                ),
            ),
            lesson=(
                "An operation whose name ends with an underscore changes what the caller still "
                "holds. Each single result can be right while every later one starts from spoiled "
                "data, so test a function twice on one argument."
            ),
        ),
        Bug(
            name="mask_gathered",
            break_it=break_mask_gathered,
            trips="sampling",
            reason="sampling.top_p_gathered",
            level=2,
            note="The five tokens come sorted, so that the table shows nothing.",
            question=(
                "How many tokens survive for top_p = 0.8, and are they the most probable ones? "
                "Predict the table for the five tokens, whose logits come sorted already."
            ),
            hints=(
                (
                    "Look at the step that carries the mask from sorted order back to the order of "
                    "the vocabulary."
                ),
                (
                    "Shuffle the logits and print which tokens are left. Healthy is the same set "
                    "of tokens, wherever they stand; in sorted order everything looks right."
                ),
                (
                    "Entry j of the mask is about token order[j]. It must be written to the place "
                    "order[j], where here it is read from there."
                ),
            ),
            lesson=(
                "gather and scatter with the same index are inverse to each other, and equal only "
                "for orders that undo themselves, such as the sorted one. Never test code that "
                "sorts on sorted data."
            ),
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
