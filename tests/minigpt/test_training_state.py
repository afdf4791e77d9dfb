"""The effective batch, and how it stays the same on another number of processes."""

import dataclasses

import pytest

from minigpt._training_state import TrainSettings, TrainState


def test_the_effective_batch_is_a_product() -> None:
    """4 rows x 3 processes x 5 accumulation steps = 60."""
    assert TrainSettings(batch_size=4, processes=3, accumulation_steps=5).rows_per_update == 60


def test_settings_of_older_checkpoints_are_of_one_process() -> None:
    stored = dataclasses.asdict(TrainSettings())
    del stored["processes"]
    assert TrainSettings(**stored) == TrainSettings(processes=1)


@pytest.mark.parametrize(("processes", "accumulation"), [(1, 6), (2, 3), (3, 2), (6, 1)])
def test_batches_are_dealt_out_anew(processes: int, accumulation: int) -> None:
    """2 x 3 = 6 batches an update, whoever reads them; nothing else changes."""
    settings = TrainSettings(processes=2, accumulation_steps=3, learning_rate=0.5)
    assert settings.with_processes(processes) == TrainSettings(
        processes=processes, accumulation_steps=accumulation, learning_rate=0.5
    )


def test_the_numbers_that_fit_are_named() -> None:
    settings = TrainSettings(processes=2, accumulation_steps=3)
    with pytest.raises(ValueError, match="divide the 6 batches of an update, got 4; these") as told:
        settings.with_processes(4)
    assert str(told.value).endswith("these fit: 1, 2, 3, 6")


def test_no_process_is_none_too_few() -> None:
    with pytest.raises(ValueError, match="processes must be >= 1, got 0"):
        TrainSettings(processes=0)


def test_evaluations_are_judged_one_after_the_other() -> None:
    """Losses 5 (untrained), 3, 3, 2: the baseline is no best, an equal loss is no gain."""
    state, judged = TrainState(), []
    for step, loss in enumerate((5.0, 3.0, 3.0, 2.0)):
        state.step = step
        state.judge(loss, loss + 0.5)
        judged.append((state.best_validation_loss, state.best_step, state.evaluations_without_gain))
    assert judged == [(None, 0, 0), (3.0, 1, 0), (3.0, 1, 1), (2.0, 3, 0)]
    assert (state.validation_loss, state.training_loss) == (2.0, 2.5)
