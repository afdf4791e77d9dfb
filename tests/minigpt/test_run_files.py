"""The files of a run: in which order they are written, by whom, and what is known of them."""

from pathlib import Path

from minigpt._run_files import RunFiles
from minigpt._training_state import BEST_NAME, LAST_NAME, LOG_NAME, StepReport, TrainState
from minigpt.parallel import ALONE, Team
from tests.minigpt.test_trainer import read_log


def make_files(folder: Path, team: Team = ALONE) -> RunFiles:
    """Return files that give up at once and must have nothing to warn of."""

    def refuse(text: str) -> None:
        raise AssertionError(text)

    return RunFiles(folder, team, wait_seconds=0.0, should_stop=lambda: False, on_warning=refuse)


class Written:
    """Takes the place of `save_checkpoint`: notes the names, and makes empty files."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, path: Path) -> None:
        self.names.append(path.name)
        path.write_bytes(b"")


def test_the_last_comes_before_the_best(tmp_path: Path) -> None:
    """A run that is killed between the two finds its newest step in the last."""
    files, write = make_files(tmp_path), Written()
    files.start(TrainState(), write)
    assert write.names == []  # nothing was learnt yet
    files.save(3, write, best=False)
    files.save(6, write, best=True)
    assert write.names == [LAST_NAME, LAST_NAME, BEST_NAME]
    assert files.last_good == (tmp_path / LAST_NAME, 6)
    assert files.holds(6)
    assert not files.holds(3)


def test_what_is_saved_already_is_not_saved_again(tmp_path: Path) -> None:
    """Started again at step 6, the trainer that has saved it writes no checkpoint."""
    files, write = make_files(tmp_path), Written()
    state = TrainState(step=6, best_step=6)
    files.log.start()
    files.start(state, write)
    assert write.names == [LAST_NAME, BEST_NAME]
    files.start(state, write)
    assert write.names == [LAST_NAME, BEST_NAME]
    state.step = 7
    files.start(state, write)
    assert write.names == [LAST_NAME, BEST_NAME, LAST_NAME]


def test_rows_and_their_digest(tmp_path: Path) -> None:
    """The digest is that of the rows in the file."""
    files = make_files(tmp_path)
    files.start(TrainState(), Written())
    empty = files.log_digest
    files.log_row(StepReport(step=1, train_loss=2.5))
    assert files.log_digest == files.log.digest != empty
    assert [(row["step"], row["train_loss"]) for row in read_log(tmp_path)] == [(1, 2.5)]


def test_another_rank_writes_nothing(tmp_path: Path) -> None:
    """Rank 1 calls everything that exchanges no message, and the folder stays as it was."""
    files = make_files(tmp_path, Team(rank=1, size=2))
    files.log_row(StepReport(step=1, train_loss=2.5))
    assert list(tmp_path.iterdir()) == []
    assert files.log.path == tmp_path / LOG_NAME
