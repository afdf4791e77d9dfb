"""Break the split: validation text that was trained on, or too little of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from diagnostics import Pipeline
from diagnostics._ngrams import RUN_LENGTH_MIN, measure_overlap
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run

ROW = 33  # tokens of one row: a block and one more target


def break_same_file(lab: Lab) -> Pipeline:
    """Read both parts from one path."""
    val_ids = lab.train_ids  # BROKEN: was val_ids = lab.val_ids
    return lab.pipeline(val_ids=val_ids)


def break_too_short(lab: Lab) -> Pipeline:
    """Keep so small a fraction for validation that no window fits into it."""
    kept = len(lab.val_ids) // 200  # BROKEN: was kept = len(lab.val_ids)
    return lab.pipeline(val_ids=lab.val_ids[:kept])


def break_two_orders(lab: Lab) -> Pipeline:
    """Take the training lines after shuffling, and the validation lines before."""
    lines = [line for line in lab.text.splitlines(keepends=True) if line.strip()]
    generator = torch.Generator().manual_seed(lab.seed)
    shuffled = [lines[i] for i in torch.randperm(len(lines), generator=generator).tolist()]
    cut = len(lines) // 10
    val = lines[:cut]  # BROKEN: was val = shuffled[:cut]
    return _of_lines(lab, shuffled[cut:], val)


def break_repeated(lab: Lab) -> Pipeline:
    """Repeat the rows to have more of them, and split after that."""
    rows = [line for line in lab.text.splitlines(keepends=True) if line.strip()]
    times = 4  # BROKEN: was times = 1
    generator = torch.Generator().manual_seed(lab.seed)
    many = rows * times
    shuffled = [many[i] for i in torch.randperm(len(many), generator=generator).tolist()]
    cut = len(shuffled) // 10
    return _of_lines(lab, shuffled[cut:], shuffled[:cut])


def break_redrawn(lab: Lab) -> Pipeline:
    """Split at random at every start of the program, without a seed of its own."""
    whole = torch.cat((lab.train_ids, lab.val_ids))
    rows = whole[: len(whole) // ROW * ROW].view(-1, ROW)  # (rows, T + 1)
    cut = len(rows) // 10

    def split(seed: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
        return rows[order[cut:]], rows[order[:cut]]

    def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        train, _ = split(step)  # BROKEN: was train, _ = split(0)
        generator = torch.Generator().manual_seed(step)
        while True:
            drawn = train[torch.randint(len(train), (8,), generator=generator)]  # (B, T + 1)
            yield drawn[:, :-1], drawn[:, 1:]

    train, val = split(0)
    return lab.pipeline(
        train_ids=train.flatten(),
        val_ids=val.flatten(),
        train_text=None,
        files=(),
        batches_from=batches_from,
    )


def _of_lines(lab: Lab, train: list[str], val: list[str]) -> Pipeline:
    text = "".join(train)
    return lab.pipeline(
        train_text=text,
        train_ids=torch.tensor(lab.tokenizer.encode(text)),
        val_ids=torch.tensor(lab.tokenizer.encode("".join(val))),
        files=(),
        batches_from=None,  # the lab's own reads the text in its first order
    )


def show_overlap(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the sizes of both parts, and how much of one stands in the other."""
    train, val = pipeline.train_ids, pipeline.val_ids
    assert train is not None
    assert val is not None
    found = measure_overlap(train.numpy(), val.numpy(), length=32)
    shown = f"too short for runs of {RUN_LENGTH_MIN}" if found is None else f"{found.share:.1%}"
    return {
        "ids for training": str(len(train)),
        "ids for validation": str(len(val)),
        "validation text in the training text": shown,
    }


EXERCISE = Exercise(
    name="break_split",
    question=(
        "The two parts are different tensors of different lengths. What else has to be true before "
        "the validation loss means anything?"
    ),
    bugs=(
        Bug(
            name="same_file",
            break_it=break_same_file,
            trips="split",
            reason="split.identical",
            note="The two curves lie on each other, which looks like a model without overfitting.",
        ),
        Bug(
            name="too_short",
            break_it=break_too_short,
            trips="split",
            reason="split.too_short",
            note="A check that takes the mean of no windows would not even notice.",
        ),
        Bug(
            name="two_orders",
            break_it=break_two_orders,
            trips="split",
            reason="split.overlap",
            level=2,
            note="The parts are of different lengths and begin differently; 9 lines of 10 leak.",
        ),
        Bug(
            name="repeated",
            break_it=break_repeated,
            trips="split",
            reason="split.overlap",
            level=2,
            note="No row was given to both parts. Their copies were.",
        ),
        Bug(
            name="redrawn",
            break_it=break_redrawn,
            trips="split",
            reason="split.redrawn",
            level=2,
            note="The two parts at hand are clean; the run that is resumed has other ones.",
        ),
    ),
    hint="Look for pieces of the validation text, of 50 characters, in the training text.",
    lesson=(
        "Split the source first, by documents or ranges, store both parts, and only then repeat, "
        "shuffle or cut windows. Compare the parts by long runs of tokens, not by equality."
    ),
    symptom=show_overlap,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
