"""Break the range: ids of V, wrapped, or misread."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import CharTokenizer, MiniGPT

MANY = 400  # different characters: more than a byte can number


def break_equals_v(lab: Lab) -> Pipeline:
    """Put one id of V, the first that has no row in the embedding, into the data."""
    V = lab.tokenizer.vocab_size
    ids = lab.train_ids.clone()
    ids[7] = V  # BROKEN: was ids[7] = lab.train_ids[7]
    return lab.pipeline(train_ids=ids)


def break_ignored_input(lab: Lab) -> Pipeline:
    """Mark a place without a label in the inputs too."""

    def batch(split: str) -> tuple[Tensor, Tensor]:
        inputs, targets = lab.get_batch(lab.train_ids if split == "train" else lab.val_ids)
        targets[0, 0] = -100
        inputs[0, 0] = -100  # BROKEN: was inputs[0, 0] = lab.train_ids[0]
        return inputs, targets

    return lab.pipeline(batch=batch, get_batch=None)


def break_wrapped(lab: Lab) -> Pipeline:
    """Store the ids of a large vocabulary in one byte each."""
    generator = torch.Generator().manual_seed(lab.seed)
    drawn = torch.randint(MANY, (4_000,), generator=generator).tolist()
    text = "".join(chr(0x4E00 + number) for number in drawn)
    tokenizer = CharTokenizer(sorted(set(text)))
    true = np.array(tokenizer.encode(text))
    stored = true.astype(np.uint8)  # BROKEN: was stored = true.astype(np.uint16)
    V = tokenizer.vocab_size
    return lab.pipeline(
        model=MiniGPT(dataclasses.replace(lab.config, vocab_size=V)),
        make_model=None,
        vocab_size=V,
        tokenizer=tokenizer,
        train_text=text,
        train_ids=torch.from_numpy(stored.astype(np.int64)),
        val_ids=None,
        files=(),
    )


def break_wrong_type(lab: Lab) -> Pipeline:
    """Write 32-bit ids to a raw file, and read it as 16-bit ones."""
    path = lab.folder / "train.bin"
    lab.train_ids.numpy().astype(np.uint32).tofile(path)
    dtype = np.uint16  # BROKEN: was dtype = np.uint32
    ids = np.fromfile(path, dtype=dtype).astype(np.int64)
    return lab.pipeline(train_ids=torch.from_numpy(ids), files=(path,))


def show_ids(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the bounds of the ids, the first of them, and the text that they make."""
    ids, tokenizer = pipeline.train_ids, pipeline.tokenizer
    assert ids is not None
    try:
        decoded = ascii(tokenizer.decode(ids[:40]))
    except IndexError as error:
        decoded = str(error)
    rows = {"data": ids}
    if callable(pipeline.batch):
        rows["inputs of a batch"] = pipeline.batch("train")[0]  # type: ignore[index]
    bounds = [f"{name} {int(row.min())} to {int(row.max())}" for name, row in rows.items()]
    return {
        "ids": ", ".join(bounds) + f", for V = {pipeline.vocab_size}",
        "first ids": str(ids[:12].tolist()),
        "decoded": decoded,
    }


EXERCISE = Exercise(
    name="break_range",
    question=(
        "Ids run from 0 to V - 1. Which wrong ids does the comparison with these two numbers find, "
        "and which ones pass it?"
    ),
    bugs=(
        Bug(
            name="equals_v",
            break_it=break_equals_v,
            trips="range",
            reason="range.equals_vocab_size",
            note="One id of V: an index error on the CPU, an opaque assert on a GPU, now and then.",
            question=(
                "One id of 36,000 is another one than before, and a batch reads 256 of them. Will "
                "the first training step fail, a later one, or none, and what would a GPU say?"
            ),
            hints=(
                (
                    "Print the largest training id beside V, the number of rows of the embedding, "
                    "and find the place where that id stands."
                ),
                (
                    "The largest id should be V - 1 = 86 at most. Print ids[5:10] beside "
                    "lab.train_ids[5:10]: all five should be equal."
                ),
                (
                    "The eighth id must be the one that the data had there, taken from the "
                    "untouched row of ids."
                ),
            ),
            lesson=(
                "The number of ids is one more than the largest id. After adding a token, let the "
                "embedding grow with the tokenizer, and take V from one place only."
            ),
        ),
        Bug(
            name="ignored_input",
            break_it=break_ignored_input,
            trips="range",
            reason="range.negative",
            note="-100 is right among targets and has no row among inputs.",
            question=(
                "The ids of the data are untouched. Which part of a batch can still hold a number "
                "that the embedding has no row for, and would the loss mind that number?"
            ),
            hints=(
                (
                    "Look at one batch and not at the data: print the smallest id of its inputs "
                    "and of its targets."
                ),
                (
                    "Targets may go down to -100. The inputs may not: their smallest id should be "
                    "0 or more. Print inputs[0, 0]."
                ),
                (
                    "Only the target at the first place is marked. The input there must stay an "
                    "ordinary id, such as the first one of the training data."
                ),
            ),
            lesson=(
                "A mark belongs to the one part that knows it. Inputs are padded with an id that "
                "the embedding has, targets with the number that the loss ignores."
            ),
        ),
        Bug(
            name="wrapped",
            break_it=break_wrapped,
            trips="range",
            reason="range.wrapped",
            level=2,
            note="Every id is in range: id 300 became id 44 without a word.",
            question=(
                "Smallest and largest id will lie inside the limits. Which share of the ids will "
                "stand for another character all the same: none, about a third, or all of them?"
            ),
            hints=(
                (
                    "Compare the ids before and after they are stored, and look at the type in "
                    "between."
                ),
                (
                    "Print true[:12], stored[:12] and the largest of each. 400 characters need "
                    "ids up to 399, so the largest stored id should be above 255."
                ),
                (
                    "The array must be converted to a whole-numbered type that holds 399. 16 bits "
                    "without a sign are enough."
                ),
            ),
            lesson=(
                "Converting to a narrow whole-numbered type is modular arithmetic and raises "
                "nothing. Choose the width from V - 1, and compare the ids after they were stored "
                "and read."
            ),
        ),
        Bug(
            name="wrong_type",
            break_it=break_wrong_type,
            trips="range",
            reason="range.wrong_dtype",
            level=2,
            note="Every id is in range: a zero stands after each of them.",
            question=(
                "Every id will be in range. How many ids will there be, compared with the "
                "characters of the text, and what will they decode to?"
            ),
            hints=(
                (
                    "Compare the number of ids with the number of characters, and look at the "
                    "first twelve ids."
                ),
                (
                    "The row should hold 36,000 ids, and fewer than 1 in 100 should be 0. Print "
                    "len(ids) and the share of zeros."
                ),
                (
                    "A raw file says nothing about its type. The reader must name the same width "
                    "as the writer two lines above it."
                ),
            ),
            lesson=(
                "A raw file of numbers has no type until somebody names one, and a wrong one is "
                "not an error. Store the type with the data, or use a format that does."
            ),
        ),
    ),
    hint="Print minimum, maximum and the first twenty ids; decode them and read the text.",
    lesson=(
        "Compare with 0 and V - 1, then decode and read: what wrapped round or was read with "
        "another type is in range. Choose the type by V, and store it with the data."
    ),
    symptom=show_ids,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
