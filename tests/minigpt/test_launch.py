"""The variables of torchrun: a process's place, its share of the cores, and half a set of them."""

import pytest

from minigpt import _launch
from minigpt._launch import Launch, read_launch


def test_without_variables_a_process_is_alone() -> None:
    assert read_launch({}) == Launch(rank=0, size=1, local_rank=0, local_size=1)
    assert read_launch({"WORLD_SIZE": "1", "RANK": "0"}) == Launch()


def test_torchrun_on_two_machines() -> None:
    """Process 3 of 4 is the second one of its machine."""
    given = {"WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert read_launch(given) == Launch(rank=3, size=4, local_rank=1, local_size=2)


def test_without_local_variables_all_are_on_one_machine() -> None:
    assert read_launch({"WORLD_SIZE": "4", "RANK": "3"}) == Launch(
        rank=3, size=4, local_rank=3, local_size=4
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"WORLD_SIZE": "2"}, r"RANK must be a whole number in 0\.\.1, got ''"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, r"RANK must be a whole number in 0\.\.1, got '2'"),
        ({"WORLD_SIZE": "0"}, r"WORLD_SIZE must be a whole number >= 1, got '0'"),
        ({"WORLD_SIZE": "two"}, r"WORLD_SIZE must be a whole number >= 1, got 'two'"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_WORLD_SIZE": "3"},
            r"LOCAL_WORLD_SIZE must be a whole number in 1\.\.2, got '3'",
        ),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "-1"},
            r"LOCAL_RANK must be a whole number in 0\.\.1, got '-1'",
        ),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message + "; torchrun sets it, unset it to run alone"):
        read_launch(given)


@pytest.mark.parametrize(
    ("launch", "environment", "threads"),
    [
        (Launch(), {}, None),
        (Launch(), {"OMP_NUM_THREADS": "1"}, None),
        (Launch(size=2, local_size=2), {"OMP_NUM_THREADS": "1"}, 4),
        (Launch(size=2, local_size=2), {}, 4),
        (Launch(size=6, local_size=3), {"OMP_NUM_THREADS": "1"}, 2),
        (Launch(size=99, local_size=99), {}, 1),
        (Launch(size=2, local_size=2), {"OMP_NUM_THREADS": "3"}, None),
    ],
)
def test_eight_cores_are_shared_out(
    monkeypatch: pytest.MonkeyPatch, launch: Launch, environment: dict[str, str], threads: int
) -> None:
    """Among the processes of a machine, unless the user gave a number; a 1 may be torchrun's."""
    monkeypatch.setattr(_launch, "available_cores", lambda: 8)
    assert launch.default_threads(environment) == threads


def test_there_is_a_core() -> None:
    assert _launch.available_cores() >= 1
