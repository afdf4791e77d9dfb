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


def break_pieces_cut(lab: Lab) -> Pipeline:
    """Encode line by line, each up to a maximum length."""
    lines = [lab.tokenizer.encode(line) for line in lab.train_text.splitlines(keepends=True)]
    longest = 512  # BROKEN: was longest = max(map(len, lines))
    ids = torch.tensor([index for line in lines for index in line[:longest]])
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
            question=(
                "The text has grown by a paragraph since yesterday. Will the first ids, the last "
                "ids and their bounds look any different? Which single number would tell?"
            ),
            hints=(
                (
                    "Compare the number of ids with the number of characters of the text that the "
                    "pipeline holds."
                ),
                (
                    "Print len(text) and len(ids). For a tokenizer of characters they should be "
                    "equal; here they are 1,000 apart."
                ),
                (
                    "The ids must be made from the text as it is now, by the tokenizer that the "
                    "lab uses."
                ),
            ),
            lesson=(
                "Whatever is derived from a source is outdated as soon as the source is changed. "
                "Store the fingerprint of the source with it, and compare before use."
            ),
        ),
        Bug(
            name="thinned",
            break_it=break_thinned,
            trips="text",
            reason="text.tokens_lost",
            note="Half of the tokens are gone; the letters that are left are as common as before.",
            question=(
                "Every id that is left will be a true one, and letters will be as common as "
                "before. What will the decoded beginning look like, and how many ids will there "
                "be?"
            ),
            hints=(
                "Decode the first 48 ids and read them beside the beginning of the text.",
                (
                    "Print len(ids) beside len(lab.train_text). Both should be 36,000, one id for "
                    "each character."
                ),
                "The row must be used as it is stored, without a step in its slice.",
            ),
            lesson=(
                "Counts of single tokens survive many faults that destroy the order. Look at "
                "pairs of tokens, or read the text: two neighbours tell more than any frequency."
            ),
        ),
        Bug(
            name="shuffled",
            break_it=break_shuffled,
            trips="text",
            reason="text.scrambled",
            level=2,
            note="The same tokens, each as often as before: counts and ranges cannot tell.",
            question=(
                "Length, bounds and the count of each token will be exactly those of the healthy "
                "ids. Which loss can a model reach at best on such a row: one near 2.5 nats, or "
                "that of letter frequencies, about 3?"
            ),
            hints=(
                "No count will show it. Decode 48 ids from any place and read them aloud.",
                (
                    "Compare ids[:20] with lab.train_ids[:20]: all should be equal. Then sort "
                    "both rows: they are equal then, in any case."
                ),
                (
                    "The tokens must stay in the order in which the text has them. Nothing may be "
                    "reordered before windows are cut."
                ),
            ),
            lesson=(
                "Shuffling is for rows, never for what stands in them. A loss that stops at the "
                "entropy of single tokens says that the context tells the model nothing."
            ),
            guide="What a model that knows nothing would score",
        ),
        Bug(
            name="lost_page",
            break_it=break_lost_page,
            trips="text",
            reason="text.part_differs",
            level=2,
            note="Decoding the first thousand ids shows a perfect text.",
            question=(
                "Suppose that you decode the first thousand ids and the last thousand, and both "
                "read well. How sure may you be of the rest?"
            ),
            hints=(
                (
                    "The beginning is right. Compare ids and lab.train_ids everywhere, and find "
                    "the first place at which they part."
                ),
                (
                    "Count the zeros in each page of 2,000 ids: id 0 is the line end, and a "
                    "healthy page has at most some dozens of it."
                ),
                (
                    "Every page must be written, whatever its number is. The condition should "
                    "hold for all of them."
                ),
            ),
            lesson=(
                "An array that is filled in pieces looks whole with a piece left out. Fill it "
                "first with a value that no token has, and look for that value afterwards."
            ),
        ),
        Bug(
            name="pieces_cut",
            break_it=break_pieces_cut,
            trips="text",
            reason="text.pieces_cut",
            level=2,
            note="Every line begins as it should, and short ones are whole.",
            question=(
                "The first lines will read well, and so will every short line. How would you find "
                "out, without reading 36,000 characters, whether each line is there to its end?"
            ),
            hints=(
                (
                    "Compare lengths line by line: the ids of a line beside its characters. Begin "
                    "with the longest lines."
                ),
                (
                    "Print len(ids): healthy is 36,000, one for each character. Then print the "
                    "largest length of a line before it is joined, which is above 512."
                ),
                (
                    "The limit must let the longest line through whole. It should be taken from "
                    "the lines themselves."
                ),
            ),
            lesson=(
                "A maximum length is for the rows of a batch and not for the data. Where pieces "
                "are cut to it before they are joined, the end of every long one is lost without "
                "a word."
            ),
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
