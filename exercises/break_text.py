"""Break the text: ids that are in range, of the right type, and say something else."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run

PAGE = 2_000  # ids that a writer hands over at a time


def break_stale(lab: Lab) -> Pipeline:
    """Add a paragraph to the text, and keep the ids of the day before."""
    half = len(lab.train_text) // 2
    text = lab.train_text[:half] + lab.text[-1_000:] + lab.train_text[half:]
    ids = lab.train_ids  # BROKEN: was ids = torch.tensor(lab.tokenizer.encode(text))
    return lab.pipeline(train_text=text, train_ids=ids, files=())


def break_thinned(lab: Lab) -> Pipeline:
    """Read the row with a step that was meant for pairs of bytes."""
    ids = lab.train_ids[::2]  # BROKEN: was ids = lab.train_ids
    return lab.pipeline(train_ids=ids, files=())


def break_shuffled(lab: Lab) -> Pipeline:
    """Shuffle before the rows are cut, and so shuffle tokens instead of rows."""
    generator = torch.Generator().manual_seed(lab.seed)
    order = torch.randperm(len(lab.train_ids), generator=generator)
    ids = lab.train_ids[order]  # BROKEN: was ids = lab.train_ids
    return lab.pipeline(train_ids=ids, files=())


def break_lost_page(lab: Lab) -> Pipeline:
    """Write the row page by page into an array of zeros, and leave out the sixth page."""
    ids = torch.zeros_like(lab.train_ids)
    for number, page in enumerate(lab.train_ids.split(PAGE)):
        written = number != 5  # BROKEN: was written = number >= 0
        if written:
            ids[number * PAGE :][: len(page)] = page
    return lab.pipeline(train_ids=ids, files=())


def show_decoded(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show what a person would look at first: bounds, beginning, and one other place."""
    ids, tokenizer = pipeline.train_ids, pipeline.tokenizer
    assert ids is not None
    place = 5 * PAGE + PAGE // 2
    return {
        "ids": f"{len(ids)}, from {int(ids.min())} to {int(ids.max())}",
        "they begin": ascii(tokenizer.decode(ids[:48])),
        f"from {place} on": ascii(tokenizer.decode(ids[place : place + 48])),
    }


EXERCISE = Exercise(
    name="break_text",
    question=(
        "All ids are in range and the tokenizer is the right one. What would you have to read to "
        "be sure that they are the ids of your text?"
    ),
    bugs=(
        Bug(
            name="stale",
            break_it=break_stale,
            trips="text",
            reason="text.piece_missing",
            note="The model never sees what was added, and nothing says so.",
        ),
        Bug(
            name="thinned",
            break_it=break_thinned,
            trips="text",
            reason="text.tokens_lost",
            note="Half of the tokens are gone; the letters that are left are as common as before.",
        ),
        Bug(
            name="shuffled",
            break_it=break_shuffled,
            trips="text",
            reason="text.scrambled",
            level=2,
            note="The same tokens, each as often as before: counts and ranges cannot tell.",
        ),
        Bug(
            name="lost_page",
            break_it=break_lost_page,
            trips="text",
            reason="text.part_differs",
            level=2,
            note="Decoding the first thousand ids shows a perfect text.",
        ),
    ),
    hint="Decode the first 200 ids and 200 from the middle; compare lengths with the text.",
    lesson=(
        "Decode the whole row and compare it with the whole text, from the first character to the "
        "last: a sample shows the fault only where the sample was taken."
    ),
    symptom=show_decoded,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
