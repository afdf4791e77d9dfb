"""What each process of tests/minigpt/test_parallel.py does; run as `-m`, with a folder, by it.

Every result goes into `rank<r>.pt`. The expectations stand in the test.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minigpt._launch import read_launch
from minigpt.batches import get_batch
from minigpt.checkpoint import load_checkpoint
from minigpt.model import IGNORE_INDEX, MiniGPT, MiniGPTConfig
from minigpt.parallel import ALONE, PeerError, Team, team_of
from minigpt.seed import set_seed
from minigpt.tokenizer import CharTokenizer
from minigpt.trainer import NonFiniteError, SaveError, StepReport, Trainer, TrainSettings
from minigpt.update import update_weights

V, T = 11, 8
TOKENIZER = CharTokenizer(map(chr, range(65, 65 + V)))
TRAIN_IDS = torch.arange(600) ** 2 % V
VALIDATION_IDS = torch.arange(600, 760) ** 2 % V
SETTINGS = TrainSettings(
    max_steps=12,
    batch_size=4,
    warmup_steps=3,
    log_every=1,
    evaluate_every=6,
    evaluation_windows=4,
)
SILENT_SECONDS = 10  # also the time that a busy machine has to connect the two
# Which targets are scored, of 4 x 8: for each case, each rank's micro-batches.
SCORED = {
    "uneven": ([32, 5], [0, 17]),
    "one rank has none": ([9], [0]),
    "no rank has any": ([0], [0]),
}


def make_model(dropout: float = 0.0) -> MiniGPT:
    """The same weights in every call and every process."""
    set_seed(5)
    return MiniGPT(MiniGPTConfig(V, T, 16, num_heads=2, num_layers=2, dropout=dropout))


def make_batches(case: str, rank: int) -> list[tuple[Tensor, Tensor]]:
    """The micro-batches of one rank, with as many scored targets as the table says."""
    batches = []
    for part, count in enumerate(SCORED[case][rank]):
        generator = torch.Generator().manual_seed(10 * rank + part)
        inputs, targets = get_batch(TRAIN_IDS, 4, T, generator=generator)
        targets.view(-1)[count:] = IGNORE_INDEX
        batches.append((inputs, targets))
    return batches


def make_trainer(
    folder: Path,
    team: Team = ALONE,
    *,
    dropout: float = 0.0,
    resume: Path | None = None,
    accumulation_steps: int = 1,
    **options: Any,
) -> Trainer:
    """A trainer of a team, fresh or from a checkpoint."""
    settings = dataclasses.replace(
        SETTINGS, processes=team.size, accumulation_steps=accumulation_steps
    )
    model, checkpoint = make_model(dropout), None
    if resume is not None:
        set_seed(99 + team.rank)  # as another process would be
        checkpoint = load_checkpoint(resume / "mini_gpt_last.safetensors")
        model = checkpoint.model
        assert checkpoint.trainer_state is not None
        stored = TrainSettings(**checkpoint.trainer_state["settings"])
        settings = stored.with_processes(team.size)
    return Trainer(
        model,
        TOKENIZER,
        TRAIN_IDS,
        VALIDATION_IDS,
        settings,
        folder=folder,
        team=team,
        checkpoint=checkpoint,
        save_wait_seconds=0.0,
        **options,
    )


def flat(model: torch.nn.Module) -> Tensor:
    """All weights in one vector."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def run_updates(team: Team) -> dict[str, Any]:
    """One update of each case, and two that are special, with SGD at rate 1 without momentum."""
    results: dict[str, Any] = {}
    for case in [*SCORED, "clipped", "a NaN on rank 1", "rank 1 wants to stop"]:
        model = make_model()
        shared = team.wrap(model)
        if case == "a NaN on rank 1" and team.rank == 1:
            model.head.weight.register_hook(lambda gradient: gradient * math.nan)
        update = update_weights(
            shared,
            torch.optim.SGD(model.parameters(), lr=1.0),
            make_batches(case if case in SCORED else "uneven", team.rank),
            clip_norm=0.01 if case == "clipped" else 0.0,
            stop=case == "rank 1 wants to stop" and team.rank == 1,
        )
        results[case] = dataclasses.asdict(update) | {"weights": flat(model)}
    return results


def run_trainers(team: Team, folder: Path) -> dict[str, Any]:
    """Whole, paused and resumed runs; each rank is given a folder of its own to write into."""
    results: dict[str, Any] = {}

    def run(name: str, stop_after: int | None = None, **options: Any) -> None:
        reports: list[StepReport] = []
        own = folder / f"{name}_{team.rank}"
        trainer = make_trainer(own, team, on_step=reports.append, **options)
        row = trainer.coming_row()
        reason = trainer.run(stop_after=stop_after)
        results[name] = {
            "reason": reason,
            "row": row,
            "state": dataclasses.asdict(trainer.state),
            "losses": [report.train_loss for report in reports],
            "norms": [report.grad_norm for report in reports],
            "weights": flat(trainer.model),
        }

    run("whole")
    run("micro", accumulation_steps=2)
    run("paused", 5)
    run("dropout_whole", dropout=0.2)
    run("dropout_paused", 5, dropout=0.2)
    run("dropout_resumed", resume=folder / "dropout_paused_0")
    asked = itertools.count(1)
    run("stopped", should_stop=lambda: next(asked) == 4 and team.rank == 1)
    return results


def failure(act: Callable[[], object]) -> list[str]:
    """Class and words of the error that `act` must end with."""
    try:
        act()
    except (NonFiniteError, SaveError, PeerError, ValueError) as error:
        return [type(error).__name__, str(error)]
    raise AssertionError("this was to fail")


def run_failures(team: Team, folder: Path) -> dict[str, Any]:
    """What ends one rank ends all: each says how."""

    def poisoned() -> None:
        trainer = make_trainer(folder / "nan", team)
        if team.rank == 1:

            def poison(gradient: Tensor) -> Tensor:
                return gradient * (math.nan if trainer.state.step == 8 else 1.0)

            trainer.model.head.weight.register_hook(poison)
        trainer.run()

    def unwritable() -> None:
        (folder / "file").write_text("")
        make_trainer(folder / "file" / "checkpoints", team).run()

    def half_missing() -> None:
        with team.united():
            if team.rank == 1:
                raise ValueError("no data on this machine")

    def missing() -> None:
        with team.united():
            raise ValueError(f"rank {team.rank} has no data")

    return {
        "nan": failure(poisoned),
        "unwritable": failure(unwritable),
        "half missing": failure(half_missing),
        "missing": failure(missing),
        "different": failure(lambda: team.require_same("the step", {"step": team.rank})),
    }


def find_all(team: Team, folder: Path) -> dict[str, Any]:
    """Everything that ends well."""
    results: dict[str, Any] = {
        "updates": run_updates(team),
        "trainers": run_trainers(team, folder),
        "failures": run_failures(team, folder),
        "gathered": torch.stack(team.gather(torch.tensor([team.rank + 5]))),
        "total": team.total([1.0, 10.0 + team.rank]),
    }
    team.require_same("the step", {"step": 3})
    team.reseed(1, 2)
    return results | {"drawn": torch.rand(4)}


def fall_silent(team: Team, folder: Path) -> None:
    """Rank 1 lives and sends nothing until rank 0 has given up."""
    if team.rank == 0:
        team.total([1.0])
    while not (folder / "lost_silent").exists():
        time.sleep(0.05)


def die(team: Team, folder: Path) -> None:
    """Rank 1 ends without a word, as by a SIGKILL."""
    if team.rank == 1:
        os._exit(9)
    team.total([1.0])


def main(folder: Path, ports: list[str]) -> None:
    """Be one of two processes, three times, each time over a port of its own."""
    torch.set_num_threads(1)
    launch, device = read_launch(), torch.device("cpu")
    os.environ["MASTER_PORT"] = ports[0]
    with team_of(launch, device, timeout=timedelta(seconds=120)) as team:
        torch.save(find_all(team, folder), folder / f"rank{team.rank}.pt")
    for port, name, act, seconds in (
        (ports[1], "silent", fall_silent, SILENT_SECONDS),
        (ports[2], "dead", die, 120),
    ):
        os.environ["MASTER_PORT"] = port
        try:
            with team_of(launch, device, timeout=timedelta(seconds=seconds)) as team:
                act(team, folder)
        except PeerError as error:
            (folder / f"lost_{name}").write_text(str(error))
            # The failed group goes with its process; here a new one is made in the same process.
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
