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
from exercises._lab import GRADIENT_NORM_MAX, IGNORE_INDEX, Lab
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


def break_clipped_inside(lab: Lab) -> Pipeline:
    """Clip after each micro-batch: what has been added up so far is cut again and again."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        tokens = sum(_count(targets) for _, targets in batches)
        last = len(batches) - 1
        optimizer.zero_grad()
        total = torch.zeros(())
        for number, (inputs, targets) in enumerate(batches):
            if _count(targets):
                loss = model(inputs, targets)[1] * (_count(targets) / tokens)
                loss.backward()
                total += loss.detach()
            if number >= 0:  # BROKEN: was if number == last:
                nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        return total if last >= 0 else torch.zeros(())

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
            question=(
                "Four micro-batches of about the same loss are used for one step. How large is "
                "the gradient at the step, compared with that of one batch of all their rows?"
            ),
            hints=(
                "Look at what each backward() is called on, and at what the sum of four such "
                "calls is.",
                "Print the norm of the gradient before any clipping, once for one batch of 32 "
                "rows and once for four of 8. Healthy is equality; here the second is 4 times "
                "as large.",
                "The weight that is used for the reported loss has to be in the loss that "
                "backward() is called on as well.",
            ),
            lesson=(
                "backward() sums, and a sum of means is no mean. A reported loss that is right "
                "says nothing about the gradient, since the two can be divided in different "
                "lines."
            ),
        ),
        Bug(
            name="mean_of_means",
            break_it=break_mean_of_means,
            trips="accumulation",
            reason="accumulation.mean_of_means",
            level=2,
            note="With equal counts it is right, so a test with full rows cannot see it.",
            question=(
                "One micro-batch scores 64 tokens and another one 16. How much does a token of "
                "the second count in the step, compared with one of the first?"
            ),
            hints=(
                "Look at the weight of each micro-batch, and at what it depends on.",
                "Give two micro-batches with 4 and 12 scored tokens, and print the weights. "
                "Healthy is 0.25 and 0.75; here both are 0.5.",
                "The weight has to be the micro-batch's share of the scored tokens of the "
                "window, not its share of the micro-batches.",
            ),
            lesson=(
                "A mean of means equals the mean only where all counts are equal. Test with "
                "unequal counts whatever averages averages: losses, gradients, scores of an "
                "evaluation."
            ),
            guide="The check evaluation",
        ),
        Bug(
            name="partial_window",
            break_it=break_partial_window,
            trips="accumulation",
            reason="accumulation.partial_window_dropped",
            level=2,
            note="The lost gradient is not even lost: it waits, and joins the next epoch's first.",
            question=(
                "The data end with a window of three micro-batches instead of four. How many "
                "steps are made on those three, and when do their gradients act?"
            ),
            hints=(
                "Look at the condition under which the step is made, and at which numbers it "
                "compares.",
                "Count the calls of optimizer.step() for windows of 4, 3 and 1 micro-batches. "
                "Healthy is one each; here the shorter ones get none.",
                "The step belongs after the last micro-batch that there is, not after the "
                "fourth; its number follows from the length of the list.",
            ),
            lesson=(
                "Loops that wait for a full count drop the rest, or carry it over. Test the "
                "last, shorter piece of everything that is cut into pieces."
            ),
        ),
        Bug(
            name="clipped_inside",
            break_it=break_clipped_inside,
            trips="accumulation",
            reason="accumulation.clipped_inside",
            level=2,
            note="The norm at the step looks right, and no direction is printed anywhere.",
            question=(
                "The gradient of a window of four micro-batches has to be clipped, and its norm "
                "at the step is exactly the limit. Does a token of the first micro-batch weigh "
                "as much as one of the last?"
            ),
            hints=(
                "Look at where the clipping stands, and at which sum is in the gradients at "
                "that moment.",
                "Print how often clip_grad_norm_ runs per step. Healthy is once, after the last "
                "micro-batch; here it runs after each of them.",
                "A limit on the norm is meant for the whole gradient, so clipping has to wait "
                "until the last micro-batch has been added.",
            ),
            lesson=(
                "Clipping is not linear: cutting parts and cutting their sum are different "
                "things. Whatever is meant for the gradient of a step belongs right before the "
                "step."
            ),
            guide="Clipping",
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
