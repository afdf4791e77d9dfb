"""The files of a run, in step with one another: log, last and best checkpoint.

A run may be killed between any two writes. What it leaves must go on from the newest step that was
saved, with the rows of the log up to it, so the order of writing is part of what is promised here.
Of several processes only the first one writes; when it cannot, all of them end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minigpt._files import remove_leftovers
from minigpt._saving import RunFolder
from minigpt._training_log import TrainingLog
from minigpt._training_state import BEST_NAME, LAST_NAME, LOG_NAME, StepReport, TrainState
from minigpt.checkpoint import Checkpoint
from minigpt.parallel import Team

WriteCheckpoint = Callable[[Path], None]  # writes the trainer's state, whole or not at all


class RunFiles(RunFolder):
    """What a trainer writes into its folder; `RunFolder` has the lock and the patience."""

    def __init__(
        self,
        folder: Path,
        team: Team,
        *,
        wait_seconds: float,
        should_stop: Callable[[], bool],
        on_warning: Callable[[str], None],
    ) -> None:
        super().__init__(
            folder, wait_seconds=wait_seconds, should_stop=should_stop, on_warning=on_warning
        )
        self.team, self.log = team, TrainingLog(folder / LOG_NAME)
        self.last_path, self.best_path = folder / LAST_NAME, folder / BEST_NAME
        self._best_saved_at = 0  # by this trainer; of a file it knows nothing
        self._log_digest: str | None = None  # and where else its rows may be, for a resumed run
        self._log_beside: Path | None = None
        self._owed_row: dict[str, Any] | None = None  # the one that this run gave up writing

    @property
    def log_digest(self) -> str:
        """The digest of the run's rows: the checkpoint's until the log has been begun."""
        return self._log_digest or self.log.digest

    def holds(self, step: int) -> bool:
        """Tell whether mini_gpt_last is known to hold the state after `step`."""
        return self.last_good == (self.last_path, step)

    def go_on_from(self, checkpoint: Checkpoint) -> None:
        """Take over what a checkpoint, perhaps of another folder, says of the run's files."""
        self._log_digest = (checkpoint.trainer_state or {}).get("log")
        self._log_beside = checkpoint.path.parent / LOG_NAME
        self.last_good = (checkpoint.path, checkpoint.step)

    def start(self, state: TrainState, write: WriteCheckpoint) -> None:
        """Bring the folder to the step at which this run starts, whatever a crash has left there.

        Checkpoints first: while the log still has later rows, the file that would be resumed may
        be a later one. Failing here is not waited for: who has just started a run is there.
        """
        unsaved = state.step > 0 and not self.holds(state.step)
        with self.team.united():
            if self.team.is_first:
                for path in (self.last_path, self.best_path, self.log.path):
                    remove_leftovers(path)
                if self._owed_row is not None and self._owed_row["step"] == state.step > 0:
                    self._write_row(self._owed_row, patient=False)  # checkpoints know their log
                if unsaved:
                    self._write_last(state.step, write, patient=False)
                if 0 < state.best_step == state.step != self._best_saved_at:
                    self._write_best(state.step, write, patient=False)
                self.write(
                    self.log.path,
                    lambda: self._start_log(state.step),
                    step=state.step,
                    patient=False,
                )
        if unsaved:
            self.last_good = (self.last_path, state.step)

    def log_row(self, report: StepReport) -> None:
        """Add a row to the log; every process may call."""
        if self.team.is_first:
            self._write_row(dataclasses.asdict(report))

    def save(self, step: int, write: WriteCheckpoint, *, best: bool) -> None:
        """Write the state to mini_gpt_last, and to mini_gpt_best where it is the best so far.

        In this order: a run that is killed in between resumes at this very state, and writes the
        best from it. The other way round, the best file could belong to a run that has no last.
        """
        with self.team.united():
            if self.team.is_first:
                self.write(self.log.path, self.log.sync, step=step)
                self._write_last(step, write)
                if best:
                    self._write_best(step, write)
                self.log.forget_old()
            self.last_good = (self.last_path, step)

    def _write_row(self, row: dict[str, Any], *, patient: bool = True) -> None:
        self._owed_row = row
        self.write(self.log.path, lambda: self.log.append(row), step=row["step"], patient=patient)
        self._owed_row = None

    def _write_last(self, step: int, write: WriteCheckpoint, *, patient: bool = True) -> None:
        path = self.last_path
        self.write(path, lambda: write(path), step=step, patient=patient)
        self.last_good = (path, step)

    def _write_best(self, step: int, write: WriteCheckpoint, *, patient: bool = True) -> None:
        path = self.best_path
        self.write(path, lambda: write(path), step=step, patient=patient)
        self._best_saved_at = step

    def _start_log(self, step: int) -> None:
        if step == 0:
            self.log.start()
        elif not self.log.start_at(step, self._log_digest, beside=self._log_beside):
            self.on_warning(
                f"{self.log.path} does not hold the rows of this run until step {step}; "
                "it goes on with the rows that are there"
            )
        self._log_digest = None
