"""What to turn when it does not fit, in the course guide's order, with the bytes of each knob.

The order goes from what changes nothing about the result to what changes the model: measure first,
then batch and accumulation (the same effective batch in smaller pieces), length, precision,
activation checkpointing, and last weights and optimizer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from minigpt._memory_budget import MemoryBudget, budget_for
from minigpt._memory_sizes import ModelSizes, Workload
from minigpt._training_state import evaluation_rows

LARGEST_BATCH = 2**20  # nobody asks for more rows
SHORTEST_BLOCK = 32  # the debug size: below it there is little to attend to
SMALLEST_DIM = 64

Setting = tuple[ModelSizes, Workload]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One thing to turn, and the budget when only this is turned.

    how: the flags of the trainer, or what to do where there is no flag. remark: what it costs.
    """

    name: str
    how: str
    after: MemoryBudget
    remark: str = ""


def list_knobs(budget: MemoryBudget) -> list[Knob]:
    """Return the knobs that can be turned, each one step further, in the guide's order."""
    setting = _setting_of(budget)
    knobs = []
    remarks = TRAINING_REMARKS if budget.workload.mode == "train" else REMARKS
    for name, turn in TURNS:
        turned = turn(setting)
        if turned is not None:
            after = budget_for(*turned)
            if turn is _evaluate_fewer and after.needed == budget.needed:
                continue  # the evaluation is not the peak
            how = describe_change(budget, after)
            knobs.append(Knob(name=name, how=how, after=after, remark=remarks.get(name, "")))
    return knobs


def find_fitting(budget: MemoryBudget, limit: int) -> MemoryBudget | None:
    """Return the first budget that fits into `limit` bytes, turning knob after knob; or None.

    Each knob is turned until it fits or until it gives nothing more, and stays there.
    """
    for tried in _turned_ever_further(_setting_of(budget)):
        if tried.needed <= limit:
            return tried
    return None


def find_largest_batch(budget: MemoryBudget, limit: int) -> int:
    """Return the most rows in a batch with which everything else fits; 0 if not even one does."""
    sizes, workload = _setting_of(budget)
    low, high = 0, LARGEST_BATCH + 1  # low fits, high does not
    while high - low > 1:
        middle = (low + high) // 2
        tried = budget_for(sizes, dataclasses.replace(workload, batch_size=middle))
        low, high = (middle, high) if tried.needed <= limit else (low, middle)
    return low


def describe_change(before: MemoryBudget, after: MemoryBudget) -> str:
    """Return the flags, and what has none, that lead from one budget to the other."""
    flags, others = [], []
    training = before.workload.mode == "train"
    for old, new in ((before.workload, after.workload), (before.sizes, after.sizes)):
        for field in dataclasses.fields(new):
            value = getattr(new, field.name)
            if value != getattr(old, field.name):
                words = WITHOUT_FLAG.get(field.name)
                if field.name == "dtype" and not training:
                    words = "model.to(torch.{})"
                if words is None:
                    flags.append(f"--{field.name.replace('_', '-')} {value}")
                else:
                    others.append(words.format(value) + " (no flag)")
    return ", ".join([" ".join(flags), *others] if flags else others)


def _setting_of(budget: MemoryBudget) -> Setting:
    names = [field.name for field in dataclasses.fields(ModelSizes)]
    sizes = ModelSizes(**{name: getattr(budget.sizes, name) for name in names})
    return sizes, budget.workload


def _turned_ever_further(setting: Setting) -> Iterator[MemoryBudget]:
    best = budget_for(*setting)
    yield best
    for turns in FITTING_TURNS:
        progress = True
        while progress:
            progress = False
            for turn in turns:
                turned = turn(_setting_of(best))
                if turned is not None and (tried := budget_for(*turned)).needed < best.needed:
                    best, progress = tried, True
                    yield best


def _split_batch(setting: Setting) -> Setting | None:
    """Take the next smaller batch of which a whole number makes the same effective batch."""
    sizes, workload = setting
    rows = workload.batch_size
    if rows == 1:
        return None
    factor = next(n for n in range(2, rows + 1) if rows % n == 0)
    steps = workload.accumulation_steps * (factor if workload.mode == "train" else 1)
    return sizes, dataclasses.replace(workload, batch_size=rows // factor, accumulation_steps=steps)


def _evaluate_fewer(setting: Setting) -> Setting | None:
    sizes, workload = setting
    most = evaluation_rows(sizes.block_size, sizes.vocab_size)
    rows = min(most, workload.evaluation_windows or most)
    if workload.mode != "train" or rows < 2:
        return None
    return sizes, dataclasses.replace(workload, evaluation_windows=rows // 2)


def _shorten(setting: Setting) -> Setting | None:
    sizes, workload = setting
    if sizes.block_size < 2 * SHORTEST_BLOCK:
        return None
    return dataclasses.replace(sizes, block_size=sizes.block_size // 2), workload


def _halve_precision(setting: Setting) -> Setting | None:
    sizes, workload = setting
    if workload.dtype == "bfloat16":
        return None
    return sizes, dataclasses.replace(workload, dtype="bfloat16")


def _checkpoint(setting: Setting) -> Setting | None:
    sizes, workload = setting
    if workload.checkpointed or workload.mode != "train":
        return None
    return sizes, dataclasses.replace(workload, checkpointed=True)


def _narrow(setting: Setting) -> Setting | None:
    sizes, workload = setting
    dim = sizes.embedding_dim // 2
    if dim < SMALLEST_DIM or dim % sizes.num_heads:
        return None
    return dataclasses.replace(sizes, embedding_dim=dim), workload


def _simplify_optimizer(setting: Setting) -> Setting | None:
    sizes, workload = setting
    if workload.mode != "train" or workload.optimizer != "adamw":
        return None
    return sizes, dataclasses.replace(workload, optimizer="sgd-momentum")


Turn = Callable[[Setting], Setting | None]
TURNS: tuple[tuple[str, Turn], ...] = (
    ("batch", _split_batch),
    ("evaluation", _evaluate_fewer),
    ("length", _shorten),
    ("precision", _halve_precision),
    ("recompute", _checkpoint),
    ("weights", _narrow),
    ("optimizer", _simplify_optimizer),
)
REMARKS = {  # what it costs
    "length": "; the model sees less context",
    "weights": "; another, smaller model",
}
TRAINING_REMARKS = REMARKS | {
    "batch": "; the effective batch stays",
    "evaluation": "; it reads that many rows at once, whatever the batch",
    "precision": "; the weights themselves stay float32",
    "recompute": "; one input a block is kept, for about a third more compute",
    "optimizer": "; one state a weight; it usually learns more slowly",
}
# Batch and evaluation take turns: whichever of the two is the peak hides the other.
FITTING_TURNS: tuple[tuple[Turn, ...], ...] = (
    (_split_batch, _evaluate_fewer),
    (_shorten,),
    (_halve_precision,),
    (_checkpoint,),
    (_narrow,),
    (_simplify_optimizer,),
)
WITHOUT_FLAG = {  # fields for which `python -m minigpt.train` has no flag
    "checkpointed": "torch.utils.checkpoint around each block",
    "optimizer": "{} in minigpt/optimizer.py",
}
