"""Break distributed training: processes that share rows, or train models of their own.

Shapes: B batch, T time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import GRADIENT_NORM_MAX, Lab
from exercises._run import run

Pair = tuple[Tensor, Tensor]
ROWS = 8
WINDOWS = 81  # an odd number, as data have it


def break_same_samples(lab: Lab) -> Pipeline:
    """Draw the rows of each step from a generator that is seeded with the step alone."""

    def rank_batches(rank: int, processes: int) -> Iterator[Pair]:
        for number in itertools.count():
            seed = number  # BROKEN: was seed = number * processes + rank
            yield _draw(lab, seed)

    return lab.pipeline(rank_batches=rank_batches)


def break_around_the_wrapper(lab: Lab) -> Pipeline:
    """Call the model inside the wrapper, which reduces gradients only when it is called itself."""

    def train_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        called = getattr(model, "module", model)  # BROKEN: was called = model
        loss: Tensor = called(x, y)[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=train_step)


def break_summed(lab: Lab) -> Pipeline:
    """Reduce by hand: all_reduce adds up, and the division is forgotten."""

    def train_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss: Tensor = model(x, y)[1]
        loss.backward()
        for gradient in _gradients(model) if dist.is_initialized() else ():
            dist.all_reduce(gradient)
            gradient /= 1  # BROKEN: was gradient /= dist.get_world_size()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=train_step, replicate=_broadcast, accumulate=None)


def break_clipped_apart(lab: Lab) -> Pipeline:
    """Clip first and reduce afterwards."""

    def clip(model: nn.Module) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)

    def train_step(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss: Tensor = model(x, y)[1]
        loss.backward()
        for action in (clip, _average):  # BROKEN: was for action in (_average, clip):
            action(model)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=train_step, replicate=_broadcast, accumulate=None)


def break_sent_too_early(lab: Lab) -> Pipeline:
    """Reduce at the first micro-batch instead of the last: the others stay where they are."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: list[Pair]) -> Tensor:
        model.train()
        optimizer.zero_grad()
        counts = [int((targets != -100).sum()) for _, targets in batches]
        total = torch.zeros(())
        for number, (inputs, targets) in enumerate(batches):
            sends = number == 0  # BROKEN: was sends = number == len(batches) - 1
            no_sync = getattr(model, "no_sync", nullcontext)
            if counts[number]:
                with nullcontext() if sends else no_sync():
                    loss = model(inputs, targets)[1] * (counts[number] / sum(counts))
                    loss.backward()
                total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        return total

    return lab.pipeline(accumulate=accumulate)


def break_uneven(lab: Lab) -> Pipeline:
    """Give the rank with the remainder one batch more."""

    def rank_batches(rank: int, processes: int) -> Iterator[Pair]:
        windows = lab.train_ids.unfold(0, lab.config.block_size + 1, lab.config.block_size)
        own = windows[rank:WINDOWS:processes]  # (rows, T + 1)
        usable = len(own)  # BROKEN: was usable = WINDOWS // processes
        for rows in own[:usable].split(ROWS):
            yield rows[:, :-1], rows[:, 1:]

    return lab.pipeline(rank_batches=rank_batches)


def rows_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Return what two ranks would read, and how many batches they would have."""
    found: dict[str, str] = {}
    assert pipeline.rank_batches is not None
    for rank in range(2):
        batches = list(itertools.islice(pipeline.rank_batches(rank, 2), 20))
        assert isinstance(batches[0], tuple)
        found[f"first row of rank {rank}"] = repr(lab.tokenizer.decode(batches[0][0][0].tolist()))
        count = str(len(batches)) if len(batches) < 20 else "20 or more"
        found[f"batches of rank {rank}"] = count
    return found


def _average(model: nn.Module) -> None:
    """Replace each gradient by its mean over the ranks; alone, leave it."""
    for gradient in _gradients(model) if dist.is_initialized() else ():
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()


def _broadcast(model: nn.Module) -> nn.Module:
    """Give every rank the weights of rank 0."""
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    return model


def _gradients(model: nn.Module) -> list[Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _draw(lab: Lab, seed: int) -> Pair:
    """Return random windows (B, T) with their targets, drawn with a generator of their own."""
    starts = torch.randint(
        len(lab.train_ids) - lab.config.block_size,
        (ROWS,),
        generator=torch.Generator().manual_seed(seed),
    )
    windows = lab.train_ids.unfold(0, lab.config.block_size + 1, 1)[starts]
    return windows[:, :-1], windows[:, 1:]


EXERCISE = Exercise(
    name="break_distributed",
    question=(
        "Two processes train one model. Which numbers must be equal in both, which must differ, "
        "and what would you see if neither knew of the other?"
    ),
    bugs=(
        Bug(
            name="same_samples",
            break_it=break_same_samples,
            trips="distributed",
            reason="distributed.same_samples",
            note="Two machines, the work of one. Losses, gradients and weights agree, perfectly.",
            question=(
                "Two ranks draw with generators that have the same seed. What does the mean of "
                "their two gradients tell that one of them alone does not?"
            ),
            hints=(
                "Look at what the seed of each step is made of, and at what it leaves out.",
                "Print the first row of both ranks. Healthy are two rows; here they are one and "
                "the same.",
                "The seed has to hold the rank, so that no two ranks ever have the same one: step "
                "times processes plus rank.",
            ),
            lesson=(
                "A reproducible seed is the same seed everywhere, unless the rank is in it. Let "
                "every process print its first row: they must differ."
            ),
        ),
        Bug(
            name="around_the_wrapper",
            break_it=break_around_the_wrapper,
            trips="distributed",
            reason="distributed.local_gradient",
            note="The wrapper is there, and its hooks never run.",
            question=(
                "DistributedDataParallel gets ready to reduce when its own forward is called. "
                "What happens when the model inside of it is called instead?"
            ),
            hints=(
                "Look at which object is called with the batch.",
                "Print the norm of a gradient on both ranks after backward(). Healthy is one "
                "number; here each rank has its own.",
                "The step has to call what replicate returned. Only names and settings may be "
                "read from .module.",
            ),
            lesson=(
                "A wrapper acts on what goes through it. Saving needs the model inside, training "
                "needs the wrapper; sums of weights, printed on each rank, show the difference "
                "after one step."
            ),
        ),
        Bug(
            name="summed",
            break_it=break_summed,
            trips="distributed",
            reason="distributed.gradient_scale",
            level=2,
            note="AdamW divides it away, clipping hides the rest; SGD would show it.",
            question=(
                "all_reduce adds up by default. With AdamW and clipping, what changes on 2 "
                "processes if nobody divides? And on 64?"
            ),
            hints=(
                "Look at the line after all_reduce, and at what it divides by.",
                "Print the norm of the gradient before clipping, with one process and with two "
                "on the same rows. Healthy is one number; here the second is 2 times as large.",
                "The sum has to be divided by the number of processes, which "
                "dist.get_world_size() tells.",
            ),
            lesson=(
                "A sum in place of a mean makes the rate depend on the number of machines. An "
                "optimizer that normalises hides it, so compare gradients and not losses."
            ),
        ),
        Bug(
            name="clipped_apart",
            break_it=break_clipped_apart,
            trips="distributed",
            reason="distributed.clipped_apart",
            level=2,
            note="All ranks agree to the last bit. Only one process on all data would not.",
            question=(
                "One rank has a gradient of norm 0.5, the other one of norm 10, and both are cut "
                "to 1 before they are averaged. How much does each count?"
            ),
            hints=(
                "Look at the order of the two actions between backward() and step().",
                "Print the norm that is cut on each rank. Healthy is one number on all ranks; "
                "here each rank cuts a norm of its own.",
                "The gradients have to be averaged first; what is cut afterwards is the gradient "
                "of the step, and it is the same on every rank.",
            ),
            lesson=(
                "Equal weights on all ranks prove that the ranks agree, not that they are right. "
                "Clipping is not linear, so it belongs after the reduction, right before the step."
            ),
            guide="Clipping",
        ),
        Bug(
            name="sent_too_early",
            break_it=break_sent_too_early,
            trips="distributed",
            reason="distributed.partly_synchronised",
            level=2,
            note="A quarter of the gradient is shared, so the ranks drift apart slowly.",
            question=(
                "no_sync() saves sending gradients for all micro-batches but one. Which one has "
                "to send, and what happens to those after it?"
            ),
            hints=(
                "Look at which micro-batch is outside of no_sync().",
                "Print a sum over the weights on both ranks after one step. Healthy is one "
                "number; here there are two.",
                "A reduction takes along what has been accumulated so far, so the last "
                "micro-batch is the one that has to send.",
            ),
            lesson=(
                "What is sent once has to be sent last. Whenever communication is skipped for "
                "speed, compare the weights of all ranks after a step."
            ),
            guide="The check accumulation",
        ),
        Bug(
            name="uneven",
            break_it=break_uneven,
            trips="distributed",
            reason="distributed.uneven",
            level=2,
            note="It runs for an epoch, then it stands still, and no error is raised.",
            question=(
                "81 windows are dealt out to 2 ranks, 8 to a batch. How many batches has each, "
                "and what does the rank with more do at its last one?"
            ),
            hints=(
                "Look at how many windows each rank uses.",
                "Count the batches of both ranks. Healthy is 5 and 5; here they are 6 and 5.",
                "Every rank has to use as many windows as the smallest share has: the number of "
                "windows, divided by the processes and rounded down.",
            ),
            lesson=(
                "A collective call waits for everyone. Test the end of the data with a number of "
                "samples that the processes do not divide."
            ),
        ),
    ),
    hint="Compare two ranks: first rows, numbers of batches, gradient norms, sums of weights.",
    lesson=(
        "Many processes must be one process that is faster. Whatever enters a step is either "
        "equal on all ranks or different on purpose, and both can be printed."
    ),
    symptom=rows_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
