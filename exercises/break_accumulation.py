"""Break accumulation: micro-batches that are added, averaged or dropped in the wrong way.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import IGNORE_INDEX, Lab
from exercises._run import run

Batches = list[tuple[Tensor, Tensor]]
PARTS = 4


def break_not_divided(lab: Lab) -> Pipeline:
    """Add up the mean losses of the micro-batches."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        tokens = sum(_count(targets) for _, targets in batches)
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, targets in batches:
            if _count(targets):
                loss = model(inputs, targets)[1]
                share = _count(targets) / tokens
                total += loss.detach() * share
                loss.backward()  # BROKEN: was (loss * share).backward()
        optimizer.step()
        return total

    return lab.pipeline(accumulate=accumulate)


def break_mean_of_means(lab: Lab) -> Pipeline:
    """Give every micro-batch the same weight, however many tokens it scores."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        batches = [(inputs, targets) for inputs, targets in batches if _count(targets)]
        tokens = sum(_count(targets) for _, targets in batches)
        optimizer.zero_grad()
        total = torch.zeros(())
        for inputs, targets in batches:
            share = 1 / len(batches)  # BROKEN: was share = _count(targets) / tokens
            loss = model(inputs, targets)[1] * share
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total if tokens else torch.zeros(())

    return lab.pipeline(accumulate=accumulate)


def break_partial_window(lab: Lab) -> Pipeline:
    """Step when the window is full; the last window of an epoch seldom is."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        tokens = sum(_count(targets) for _, targets in batches)
        last = PARTS - 1  # BROKEN: was last = len(batches) - 1
        total = torch.zeros(())
        for number, (inputs, targets) in enumerate(batches):
            if _count(targets):
                loss = model(inputs, targets)[1] * (_count(targets) / tokens)
                loss.backward()
                total += loss.detach()
            if number == last:
                optimizer.step()
                optimizer.zero_grad()
        return total

    return lab.pipeline(accumulate=accumulate)


def gradient_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Return the norm of the gradient at the step, for a full window and a shorter one."""
    assert pipeline.accumulate is not None
    return {
        f"gradient norm at the step, {parts} micro-batches": _norm_at_step(
            lab, pipeline.accumulate, parts
        )
        for parts in (PARTS, PARTS - 1)
    }


def _norm_at_step(lab: Lab, accumulate: Callable[..., object], parts: int) -> str:
    norms: list[float] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        pipeline = lab.pipeline()
        optimizer = torch.optim.SGD(pipeline.model.parameters(), lr=0.0)

        def note(stepped: Optimizer, args: object, kwargs: object) -> None:
            gradients = [p.grad for group in stepped.param_groups for p in group["params"]]
            norms.append(float(nn.utils.get_total_norm([g for g in gradients if g is not None])))

        optimizer.register_step_pre_hook(note)
        batches = []
        for part in range(parts):
            inputs, targets = lab.get_batch(lab.train_ids)
            targets[:, len(targets[0]) // (part + 1) :] = IGNORE_INDEX  # shorter and shorter
            batches.append((inputs, targets))
        accumulate(pipeline.model, optimizer, batches)
    return ", ".join(f"{norm:.4f}" for norm in norms) or "no step"


def _count(targets: Tensor) -> int:
    return int((targets != IGNORE_INDEX).sum())


EXERCISE = Exercise(
    name="break_accumulation",
    question=(
        "Four micro-batches of 8 rows, or one batch of 32: when are the two gradients equal, and "
        "what happens to a short row at the end of the data?"
    ),
    bugs=(
        Bug(
            name="not_divided",
            break_it=break_not_divided,
            trips="accumulation",
            reason="accumulation.not_divided",
            note="Four times too large. Adam does not care, and clipping hides the rest.",
        ),
        Bug(
            name="mean_of_means",
            break_it=break_mean_of_means,
            trips="accumulation",
            reason="accumulation.mean_of_means",
            level=2,
            note="With equal counts it is right, so a test with full rows cannot see it.",
        ),
        Bug(
            name="partial_window",
            break_it=break_partial_window,
            trips="accumulation",
            reason="accumulation.partial_window_dropped",
            level=2,
            note="The lost gradient is not even lost: it waits, and joins the next epoch's first.",
        ),
    ),
    hint="Compare with the gradient of one concatenated batch, with unequal numbers of targets.",
    lesson=(
        "The unit of the loss is the token. Divide by the scored tokens of the whole window, and "
        "the split into micro-batches can no longer change anything."
    ),
    symptom=gradient_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
