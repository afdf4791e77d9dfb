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


def break_windows_overlap(lab: Lab) -> Pipeline:
    """Cut windows that overlap, shuffle them, and split after that."""
    whole = torch.cat((lab.train_ids, lab.val_ids))
    stride = ROW // 2  # BROKEN: was stride = ROW
    rows = whole.unfold(0, ROW, stride)  # (rows, T + 1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(lab.seed))
    cut = len(rows) // 10
    return lab.pipeline(
        train_ids=rows[order[cut:]].flatten(),
        val_ids=rows[order[:cut]].flatten(),
        train_text=None,
        files=(),
        batches_from=None,  # the lab's own reads the text in its first order
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
            question=(
                "After a long training, will the gap between training loss and validation loss be "
                "wide, narrow or none at all, and what would you conclude from it?"
            ),
            hints=(
                "Compare the two rows of ids with each other, before any window is cut from them.",
                (
                    "Print len(train_ids), len(val_ids) and whether the first hundred ids agree. "
                    "Healthy are 36,000, 4,000 and no."
                ),
                "The validation ids are at hand in the lab, under a name of their own.",
            ),
            lesson=(
                "A curve that cannot differ carries no news. Before you read a validation loss, "
                "make sure that it could have been another number than the training loss."
            ),
            guide="The generalization gap",
        ),
        Bug(
            name="too_short",
            break_it=break_too_short,
            trips="split",
            reason="split.too_short",
            note="A check that takes the mean of no windows would not even notice.",
            question=(
                "How many windows of 32 inputs and a last target can be cut from the validation "
                "part, and what is the mean of no numbers?"
            ),
            hints=(
                "Look at the length of the validation ids beside the block size.",
                (
                    "A window takes 33 ids, so fewer than 33 give none. Print len(val_ids): "
                    "healthy is 4,000."
                ),
                "All ids of the validation part must be kept, and not a fraction of a fraction.",
            ),
            lesson=(
                "A part must be long enough for what is measured on it, and a mean over few "
                "windows is noise. Decide how many windows you need, and derive the fraction from "
                "that."
            ),
        ),
        Bug(
            name="two_orders",
            break_it=break_two_orders,
            trips="split",
            reason="split.overlap",
            level=2,
            note="The parts are of different lengths and begin differently; 9 lines of 10 leak.",
            question=(
                "A tenth of the lines is for validation, and no line was copied on purpose. What "
                "share of them do you expect to find among the training lines: none, a tenth or "
                "nine tenths?"
            ),
            hints=(
                (
                    "For each of the two parts ask: from which list of lines was it taken, and "
                    "where was the cut?"
                ),
                (
                    "Count the lines of the validation part that stand in the training part too. "
                    "Healthy is 0."
                ),
                (
                    "Both slices must be taken from the same list, one up to the cut and one from "
                    "it on."
                ),
            ),
            lesson=(
                "Two slices part a list only if it is one list. Make the split in a single "
                "statement, or prove afterwards that the parts have nothing in common."
            ),
        ),
        Bug(
            name="repeated",
            break_it=break_repeated,
            trips="split",
            reason="split.overlap",
            level=2,
            note="No row was given to both parts. Their copies were.",
            question=(
                "Each row goes to exactly one of the two parts, drawn at random with a seed. Can "
                "a validation text still be known by heart, and how large a share of it?"
            ),
            hints=(
                (
                    "Look at what is in the list before it is shuffled, and how often each line "
                    "is there."
                ),
                (
                    "Print len(many), len(rows) and len(set(rows)). All three should be 147. With "
                    "four times as many, hardly a line of val is without a copy in train."
                ),
                (
                    "The rows must be split while each is there once. What makes more of them may "
                    "come only after that."
                ),
            ),
            lesson=(
                "Split first, then repeat, augment or oversample. Whatever is multiplied before "
                "the split is on both sides of it."
            ),
        ),
        Bug(
            name="redrawn",
            break_it=break_redrawn,
            trips="split",
            reason="split.redrawn",
            level=2,
            note="The two parts at hand are clean; the run that is resumed has other ones.",
            question=(
                "You compare the two parts of this run, and they have nothing in common. What "
                "should you compare besides, if the run is stopped at step 10 and started again?"
            ),
            hints=(
                (
                    "The two parts at hand are right. Look at the rows from which batches are "
                    "drawn after a restart."
                ),
                (
                    "Compare split(0)[0] with the training rows that batches_from(10) draws from. "
                    "They should be the same rows; here about one row in ten is another one."
                ),
                (
                    "The split must not depend on the step. One fixed seed has to give the same "
                    "parts at every start."
                ),
            ),
            lesson=(
                "A random split is made once and stored. A run that draws it anew after each "
                "restart has trained on all of the validation text after a few of them."
            ),
        ),
        Bug(
            name="windows_overlap",
            break_it=break_windows_overlap,
            trips="split",
            reason="split.windows_overlap",
            level=2,
            note="No window was given to both parts, and hardly a token is in one of them only.",
            question=(
                "The share of long runs that both parts hold will be 0.0 percent before and "
                "after. Which share of the validation tokens has a model nevertheless been "
                "trained on?"
            ),
            hints=(
                (
                    "Count tokens: the two parts together should hold about 40,000 of them. How "
                    "many are there?"
                ),
                (
                    "Cut the same windows from data = 0, 1, 2, ... and count the values of val "
                    "that stand in train as well. Healthy is 0; here it is nearly all."
                ),
                (
                    "Windows that are shuffled into two parts may not share a token. Each must "
                    "begin where the one before it has ended."
                ),
            ),
            lesson=(
                "A window is no unit of a split when windows overlap: their neighbours carry the "
                "same text to the other side. Split ranges or documents, then cut windows."
            ),
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
