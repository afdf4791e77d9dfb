"""Break the batches: repeat them, read a part of the data, or read the wrong split."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import BATCH_SIZE, Lab
from exercises._run import run
from exercises._symptom import measure_honest_loss, train_briefly

CALLS = 32  # batches that are looked at for the figures


def break_always_the_same(lab: Lab) -> Pipeline:
    """Make the loader reproducible at the wrong place: each call starts over."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        generator = torch.Generator().manual_seed(lab.seed)  # BROKEN: was generator = None
        starts = torch.randint(len(data) - T, (BATCH_SIZE, 1), generator=generator)
        places = starts + torch.arange(T)  # (B, T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def break_part_of_data(lab: Lab) -> Pipeline:
    """Keep a bound that was right for another file."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        bound = min(500, len(data) - T)  # BROKEN: was bound = len(data) - T
        places = torch.randint(bound, (BATCH_SIZE, 1)) + torch.arange(T)  # (B, T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def break_same_rows(lab: Lab) -> Pipeline:
    """Draw one start for the whole batch: eight copies of a row."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        rows = 1  # BROKEN: was rows = BATCH_SIZE
        starts = torch.randint(len(data) - T, (rows, 1)).expand(BATCH_SIZE, 1)
        places = starts + torch.arange(T)  # (B, T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def break_last_window(lab: Lab) -> Pipeline:
    """Subtract one too many: the last token of the data is never a target."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        bound = len(data) - T - 1  # BROKEN: was bound = len(data) - T
        places = torch.randint(bound, (BATCH_SIZE, 1)) + torch.arange(T)  # (B, T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def break_val_reads_train(lab: Lab) -> Pipeline:
    """Point both splits at the training ids."""

    def batch(split: str) -> tuple[Tensor, Tensor]:
        ids = lab.train_ids  # BROKEN: was ids = {"train": lab.train_ids, "val": lab.val_ids}[split]
        return lab.get_batch(ids)

    return lab.pipeline(batch=batch)


def break_coarse(lab: Lab) -> Pipeline:
    """Draw fractions of the data in the number type of the weights."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        kind = torch.bfloat16  # BROKEN: was kind = torch.float64
        fractions = torch.rand(BATCH_SIZE, 1, dtype=kind).double()
        starts = (fractions * (len(data) - T)).long()
        places = starts + torch.arange(T)  # (B, T)
        return data[places], data[places + 1]

    return lab.pipeline(get_batch=get_batch)


def batch_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Count what a look at one batch cannot show, and train briefly."""
    get_batch = pipeline.get_batch
    assert get_batch is not None
    data = torch.arange(len(lab.train_ids))  # every value is its own position
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        starts = torch.stack([_first_column(get_batch(data)) for _ in range(CALLS)])  # (calls, B)
    model, losses = train_briefly(lab, pipeline)
    first, last = int(starts.min()), int(starts.max())
    figures = {
        f"different batches in {CALLS} calls": str(len(starts.unique(dim=0))),
        f"different rows in {CALLS} calls": str(len(starts.unique())),
        "starts of rows": f"from {first} to {last} of {len(data) - lab.config.block_size - 1}",
        "training loss at the end": f"{losses[-10:].mean():.3f} nats",
        "honest loss on new text": f"{measure_honest_loss(lab, model):.3f} nats",
    }
    if callable(pipeline.batch):
        figures |= {"validation loss that is reported": _reported(lab, pipeline, model)}
    return figures


def _first_column(pair: object) -> Tensor:
    assert isinstance(pair, tuple)
    inputs: Tensor = pair[0]
    return inputs[:, 0]


def _reported(lab: Lab, pipeline: Pipeline, model: torch.nn.Module) -> str:
    assert callable(pipeline.batch)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        losses = [model(*pipeline.batch("val"))[1] for _ in range(CALLS)]
    return f"{torch.stack(losses).mean():.3f} nats"


EXERCISE = Exercise(
    name="break_batches",
    question=(
        "A loader can return perfect batches and still be wrong. Which mistakes can you not see, "
        "however long you look at one batch?"
    ),
    bugs=(
        Bug(
            name="always_the_same",
            break_it=break_always_the_same,
            trips="batches",
            reason="batches.always_the_same",
            note="The loss falls beautifully: eight rows are soon known by heart.",
            question=(
                "After 150 steps the training loss will be far from the honest loss on new text. "
                "Which of them is near 0, and how much text would a model have to know by heart "
                "for that?"
            ),
            hints=(
                (
                    "One batch is right in every place. Call the loader twice without seeding "
                    "anything in between, and compare the two batches."
                ),
                (
                    "Count the different batches in 32 calls: healthy is 32. Then ask where the "
                    "random numbers of the starts come from."
                ),
                (
                    "No generator may be made inside the function. Let the starts come from the "
                    "global one, which goes on from call to call."
                ),
            ),
            lesson=(
                "A seed belongs before the loop and not into it. A random number that is the same "
                "each time is a constant, and a model learns constants by heart."
            ),
        ),
        Bug(
            name="part_of_data",
            break_it=break_part_of_data,
            trips="batches",
            reason="batches.part_of_data",
            note="Every batch is different and every batch is right.",
            question=(
                "No two batches will be the same, and each row will be a true piece of the text. "
                "Will the training loss be lower than the healthy one, and what about the honest "
                "loss?"
            ),
            hints=(
                "Look at where the rows start, over many calls, and not at what they hold.",
                (
                    "Feed data = 0, 1, 2, ... of the real length and print the largest inputs[:, "
                    "0] of 32 calls. Healthy is near the 36,000 of the data's end."
                ),
                (
                    "The bound of the random starts must come from the length of the data alone, "
                    "with no other number that could be smaller."
                ),
            ),
            lesson=(
                "Variety does not show coverage: the batches of a small part differ as well as "
                "those of the whole. Measure where they come from, on data that tell their place."
            ),
        ),
        Bug(
            name="same_rows",
            break_it=break_same_rows,
            trips="batches",
            reason="batches.same_rows",
            note="Eight copies of a row cost eight times the work and teach as much as one.",
            question=(
                "The batch has its shape and changes at each call. How many different rows will "
                "there be in 32 calls of 8 rows, and which of the two losses will suffer?"
            ),
            hints=(
                (
                    "Compare the rows of one batch with each other: print inputs[:, 0], or count "
                    "the different rows."
                ),
                (
                    "In 32 calls of 8 rows a healthy loader gives about 256 different rows. Print "
                    "the shape of what is drawn, before anything is expanded."
                ),
                (
                    "As many starts must be drawn as there are rows in the batch. Expanding "
                    "repeats a number, it draws no new one."
                ),
            ),
            lesson=(
                "Broadcasting fills a shape without adding information. A batch of equal rows has "
                "a gradient as noisy as that of one row, at the price of many."
            ),
        ),
        Bug(
            name="last_window",
            break_it=break_last_window,
            trips="batches",
            reason="batches.start_never_drawn",
            level=2,
            note=(
                "One window of 36,000 is never drawn, so no number of ordinary batches shows it. "
                "In data with only three windows it is a third of them."
            ),
            question=(
                "How many ordinary batches would you have to look at to notice it, in data with "
                "35,968 windows? And in data with three?"
            ),
            hints=(
                (
                    "Make the data so short that there are two or three windows, and list the "
                    "starts that 30 calls give."
                ),
                (
                    "For N tokens the starts run from 0 to N - T - 1. With data of T + 3 tokens, "
                    "0, 1 and 2 must all come up."
                ),
                (
                    "randint leaves its upper end out by itself, so nothing more may be taken "
                    "off: the bound is the number of windows, N - T."
                ),
            ),
            lesson=(
                "An off-by-one at the end of long data is invisible, and it is fatal in short "
                "ones. Test a sampler on the smallest input that it accepts."
            ),
        ),
        Bug(
            name="val_reads_train",
            break_it=break_val_reads_train,
            trips="batches",
            reason="batches.val_reads_train",
            level=2,
            note="Training is untouched. Only the validation loss is a fiction.",
            question=(
                "Training will be the same in every bit. Where will the reported validation loss "
                "lie: near the training loss, near the honest loss, or in between? After more "
                "steps?"
            ),
            hints=(
                (
                    "Look at the batches of 'val' alone, and search for their rows in both parts "
                    "of the data."
                ),
                (
                    "Count how many of 16 rows of batch('val') stand in lab.val_ids. Healthy is "
                    "16, and 0 in lab.train_ids."
                ),
                (
                    "The name of the split is given and must be used: it decides which of the two "
                    "rows of ids is read."
                ),
            ),
            lesson=(
                "An argument that is not used raises no error. When two curves agree to the third "
                "digit, suspect that they measure the same data."
            ),
            guide="The generalization gap",
        ),
        Bug(
            name="coarse",
            break_it=break_coarse,
            trips="batches",
            reason="batches.few_starts",
            level=2,
            note="Both ends are reached, no batch repeats, and most of the windows are never read.",
            question=(
                "Both ends of the data will be reached and no batch will repeat. How many "
                "different places can rows start from, if you draw them for a whole day?"
            ),
            hints=(
                (
                    "Draw many more rows than 256, from data of the real length, and count how "
                    "many different starts come up."
                ),
                (
                    "4096 rows of 35,968 windows should start at about 3,870 places. Print the "
                    "number that you get, and the type of the random fractions."
                ),
                (
                    "The fractions need a number type with more than 16 bits, so that their grid "
                    "is finer than the windows lie."
                ),
            ),
            lesson=(
                "Random numbers have a resolution: multiplied by a large count, a float of few "
                "bits leaves gaps. Draw whole numbers where you want whole numbers."
            ),
        ),
    ),
    hint="Give the loader data = 0, 1, 2, 3, ... and write down where each row starts.",
    lesson=(
        "One batch can be checked by its shape, a loader only by many batches: do they differ, do "
        "they reach both ends of the data, and does each split come from its own ids? Make the "
        "data so short that the rare case becomes common."
    ),
    symptom=batch_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
