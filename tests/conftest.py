"""What every test shares."""

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """One thread is faster at debug size, and gives the same numbers on every machine."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Each test starts from the same global random state, in whatever order they run."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the thorough tests to those who ask for them: they take an hour."""
    if os.environ.get("THOROUGH"):
        return
    for item in items:
        if item.get_closest_marker("thorough"):
            item.add_marker(pytest.mark.skip(reason="THOROUGH=1 runs it"))
