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
        ),
        Bug(
            name="part_of_data",
            break_it=break_part_of_data,
            trips="batches",
            reason="batches.part_of_data",
            note="Every batch is different and every batch is right.",
        ),
        Bug(
            name="same_rows",
            break_it=break_same_rows,
            trips="batches",
            reason="batches.same_rows",
            note="Eight copies of a row cost eight times the work and teach as much as one.",
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
        ),
        Bug(
            name="val_reads_train",
            break_it=break_val_reads_train,
            trips="batches",
            reason="batches.val_reads_train",
            level=2,
            note="Training is untouched. Only the validation loss is a fiction.",
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
