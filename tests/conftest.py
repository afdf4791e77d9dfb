"""What every test shares."""

import os
import re
import sys

import pytest
import torch

# tests of all checks, exercises and cases, where `distributed` is the one that has to fork
FORKS = re.compile(
    r"test_injections\.py::.*-distributed\]"
    r"|test_exercises\.py::.*\[break_distributed-"
    r"|catalogue/.*\[.*shard-boundary-check"
)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """One thread is faster at debug size, and gives the same numbers on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test starts from the same global random state, in whatever order they run."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what cannot run here, and the thorough tests, which take an hour."""
    if sys.platform != "linux":
        for item in items:
            if FORKS.search(item.nodeid):
                item.add_marker(pytest.mark.skip(reason="distributed forks, on Linux only"))
    if os.environ.get("THOROUGH"):
        return
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason="THOROUGH=1 runs it"))
